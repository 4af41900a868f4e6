"""Two tellings of one past: how much each knows, and how a stored one joins what is known already. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from vpa import checkpoints
from vpa.checkpoints import RunningPeak, State
from vpa.histograms import NEVER
from vpa.usage import MEMORY_WEIGHT, Usage


class Knowledge(NamedTuple):
    """How much a row, or a checkpoint, knows."""

    samples: int
    last_sample: int
    cpu: bool
    memory: bool

    def is_less_than(self, other: Knowledge) -> bool:
        """Whether *other* would be lost by writing this in its place."""
        if self.samples != other.samples:
            return self.samples < other.samples
        return (other.cpu and not self.cpu) or (other.memory and not self.memory)


NOTHING = Knowledge(0, NEVER, False, False)


def of_row(usage: Usage, row: int) -> Knowledge:
    """What a row knows."""
    where = np.array([row])
    return Knowledge(
        samples=int(usage.sample_count[row]),
        last_sample=int(usage.last_sample[row]),
        cpu=not usage.cpu.is_empty(where)[0],
        memory=not usage.memory.is_empty(where)[0],
    )


def of_state(state: State) -> Knowledge:
    """What a checkpoint knows."""
    return Knowledge(
        samples=state.sample_count,
        last_sample=state.last_sample,
        cpu=any(state.cpu.weights.values()),
        memory=any(state.memory.weights.values()),
    )


def adopt(
    usage: Usage,
    row: int,
    state: State,
    peaks: list[RunningPeak],
    instances: Mapping[str, int],
    *,
    now: int,
) -> bool:
    """Bring a checkpoint into a row that perhaps knows something already; whether it was of use.

    *instances*: pod → the instance that feeds the row. What the checkpoint tells of the time before the row's
    first sample is added. Where both tell of the same time, the one that knows more stays alone, so that no
    sample counts twice. Raises `checkpoints.CheckpointError`; the row is as before then.
    """
    scratch = int(usage.new_rows(1, now)[0])
    try:
        checkpoints.load(usage, scratch, state)
        mine, stored = of_row(usage, row), of_state(state)
        if mine == NOTHING:
            usage.copy(scratch, row)
        elif mine.samples and stored.last_sample < usage.first_sample[row]:
            usage.merge(row, scratch)
        elif mine.is_less_than(stored):
            usage.copy(scratch, row)
            _readd_running(usage, row, instances, now)
        else:
            return False
    finally:
        usage.free_rows(np.array([scratch]))
    known = {pod for pod, instance in instances.items() if usage.window_end[instance] != NEVER}
    checkpoints.restore_peaks(usage, row, [peak for peak in peaks if peak.pod not in known], instances)
    return True


def _readd_running(usage: Usage, row: int, instances: Mapping[str, int], now: int) -> None:
    """Windows that run on must find their peak in the histogram when a larger one replaces it."""
    for instance in instances.values():
        peak = max(int(usage.memory_peak[instance]), int(usage.oom_peak[instance]))
        if usage.window_end[instance] > now and peak:
            usage.memory.add(
                np.array([row]),
                np.array([float(peak)]),
                np.array([MEMORY_WEIGHT]),
                usage.window_end[[instance]],
            )
