"""Which containers have reached a memory peak in a higher bucket than ever before. Pure."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from recommender.schedule import CheckpointKey
from vpa.numerics import Ints

UNSEEN = -1


class Peaks:
    """The highest filled bucket of each row when it was last looked at."""

    def __init__(self) -> None:
        self._rows: Ints = np.zeros(0, dtype=np.int64)
        self._keys: list[CheckpointKey] = []
        self._high: Ints = np.zeros(0, dtype=np.int64)

    def link(self, pairs: Iterable[tuple[int, CheckpointKey]], capacity: int) -> None:
        """Which rows belong to which checkpoint."""
        found = list(pairs)
        rows = np.array([row for row, _ in found], dtype=np.int64)
        high = np.full(capacity, UNSEEN, dtype=np.int64)
        kept = rows[rows < len(self._high)]
        high[kept] = self._high[kept]
        self._rows, self._keys, self._high = rows, [key for _, key in found], high

    def risen(self, high: NDArray[np.int16]) -> set[CheckpointKey]:
        """Checkpoints whose peak is higher than at the last call. *high*: highest bucket of all rows."""
        now = high[self._rows].astype(np.int64)
        before = self._high[self._rows]
        self._high[self._rows] = np.maximum(now, before)
        risen = (now > before) & (before > 0)  # a first peak is no news: nothing is lost with it yet
        return {self._keys[place] for place in np.flatnonzero(risen).tolist()}
