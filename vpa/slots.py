"""Numbers for things that come and go."""

from __future__ import annotations

import numpy as np

from vpa.numerics import Ints


class Slots:
    """Numbered slots with a free list; numbers of freed slots are used again."""

    def __init__(self) -> None:
        self.used = 0
        self._free: list[int] = []

    def take(self, count: int) -> Ints:
        """Take *count* slots, freed ones first."""
        again = [self._free.pop() for _ in range(min(count, len(self._free)))]
        fresh = count - len(again)
        self.used += fresh
        return np.array([*again, *range(self.used - fresh, self.used)], dtype=np.int64)

    def give_back(self, slots: Ints) -> None:
        """Return slots to the free list."""
        self._free.extend(int(slot) for slot in slots)
