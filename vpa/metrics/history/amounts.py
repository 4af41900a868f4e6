"""Prometheus' floating point numbers → whole millicores and bytes, and what a point weighs. Pure."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from vpa.rules import Rules

MOST = 1e14
"""The largest amount, as upstream."""

CPU_WEIGHT = 0.1
"""Weight of a CPU sample of one minute."""


def millicores(cores: NDArray[np.float64], rules: Rules) -> NDArray[np.int64]:
    """int64 millicores of finite, not negative *cores*.

    Rounded up exactly as decimal text would be: 0.029 is 29m although 0.029 × 1000 is a little more in
    floating point. Under ``upstream`` truncated.
    """
    if not rules.history_rounds_up:
        return np.minimum(cores * 1000.0, MOST).astype(np.int64)
    nearest = np.rint(np.minimum(cores * 1000.0, MOST))
    return (nearest + (cores > nearest / 1000.0)).astype(np.int64).clip(max=int(MOST))


def whole_bytes(amount: NDArray[np.float64], rules: Rules) -> NDArray[np.int64]:
    """int64 bytes of finite, not negative *amount*, rounded up; under ``upstream`` truncated."""
    capped = np.minimum(amount, MOST)
    return (np.ceil(capped) if rules.history_rounds_up else capped).astype(np.int64)


def sample_weight(step: int, rules: Rules) -> tuple[float, int]:
    """(weight, count) of one CPU point of *step* seconds.

    A point of an hour stands for sixty samples of a minute, or confidence in a full week would never come:
    upstream counts it as one sample.
    """
    if not rules.history_weighs_steps:
        return CPU_WEIGHT, 1
    return CPU_WEIGHT * step / 60, max(round(step / 60), 1)
