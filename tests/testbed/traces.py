"""The public traces of `tests/traces` as arrays, and the memory that is made up for them."""

from __future__ import annotations

import csv
import gzip
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

FOLDER = Path(__file__).resolve().parent.parent / "traces"

Floats = NDArray[np.float64]

ALL = tuple(sorted(path.name.removesuffix(".csv.gz") for path in FOLDER.glob("*.csv.gz")))


def cpu(name: str) -> tuple[Floats, Floats]:
    """(seconds since the epoch, cores) of one trace. A percentage is read as that share of one core."""
    with gzip.open(FOLDER / f"{name}.csv.gz", "rt", encoding="ascii") as file:
        rows = list(csv.reader(file))[1:]
    if name.startswith("nab"):
        times = [datetime.fromisoformat(time).replace(tzinfo=UTC).timestamp() for time, _ in rows]
        return np.array(times), np.array([float(value) / 100 for _, value in rows])
    return np.array([float(time) for time, _ in rows]), np.array([float(value) for _, value in rows])


def resampled(name: str, *, end: float, length: float, step: float, peak: float) -> tuple[Floats, Floats]:
    """The last *length* seconds of a trace, moved to end at *end*, every *step* seconds, up to *peak* cores.

    A trace that is too short is repeated.
    """
    times, values = cpu(name)
    times = times - times[0]
    wanted = np.arange(end - length, end + step / 2, step)
    inside = (times[-1] - (end - wanted)) % times[-1]
    return wanted, np.interp(inside, times, values) * (peak / values.max())


def memory(cores: Floats, *, floor: float, seed: int) -> Floats:
    """Made-up bytes for a CPU series: *floor*, plus as much again at the highest use.

    ``floor × (1 + e / max e + 0.02 · n)``: *e* is the CPU smoothed with weight 0.05 for the newest value, *n*
    standard normal noise from ``numpy.random.default_rng(seed)``; rounded to pages of 4096 bytes.
    """
    smooth = np.empty_like(cores)
    level = cores[0]
    for i, value in enumerate(cores):
        level += 0.05 * (value - level)
        smooth[i] = level
    noise = np.random.default_rng(seed).standard_normal(len(cores))
    pages: Floats = np.rint(floor * (1 + smooth / max(smooth.max(), 1e-9) + 0.02 * noise) / 4096)
    return pages * 4096
