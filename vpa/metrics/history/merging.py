"""History and checkpoints are two tellings of one past: no sample may count twice. Pure."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Merge:
    """What history does to one row (one container of one controller).

    ``replaces``: the row's checkpoint is dropped first. Points count that are later than ``after`` and not
    later than ``until`` (int64 nanoseconds since the epoch; None: no bound).
    """

    replaces: bool
    after: int | None
    until: int | None

    def span(self, times: NDArray[np.int64]) -> slice:
        """The part of sorted *times* that counts."""
        low = 0 if self.after is None else int(np.searchsorted(times, self.after, side="right"))
        high = len(times) if self.until is None else int(np.searchsorted(times, self.until, side="right"))
        return slice(low, max(low, high))


def merge(
    *,
    history_first: int | None,
    checkpoint_first: int | None,
    checkpoint_last: int | None,
    live_first: int | None = None,
) -> Merge:
    """How history goes into a row.

    *history_first*: time of the row's oldest point in history, None without any. *checkpoint_first* and
    *checkpoint_last*: oldest and newest sample that the checkpoint tells of, None without one. *live_first*:
    the first sample that this process itself added to the row; from then on the row knows better.

    Where history reaches further back than the checkpoint it replaces it; otherwise it only adds what is
    newer than the checkpoint.
    """
    until = None if live_first is None else live_first - 1
    if history_first is None:
        return Merge(replaces=False, after=checkpoint_last, until=until)
    if checkpoint_first is None or checkpoint_last is None:
        return Merge(replaces=True, after=None, until=until)
    if history_first < checkpoint_first:
        return Merge(replaces=True, after=None, until=until)
    return Merge(replaces=False, after=checkpoint_last, until=until)
