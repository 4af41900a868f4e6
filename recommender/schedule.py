"""When each checkpoint is due: spread evenly over a period, urgent ones first. Times are seconds. Pure."""

from __future__ import annotations

import heapq
import zlib
from collections.abc import Iterator

CheckpointKey = tuple[str, str, str]
"""(namespace, VPA, container)"""


def spread(key: tuple[str, ...]) -> float:
    """A number in [0, 1) that stays the same for a key and differs among keys."""
    return zlib.crc32("/".join(key).encode()) / 2**32


class Schedule:
    """Due times of keys; the one that has been due longest comes first."""

    def __init__(self, period: float) -> None:
        self.period = period
        self._due: dict[CheckpointKey, float] = {}
        self._heap: list[tuple[float, CheckpointKey]] = []

    def __len__(self) -> int:
        return len(self._due)

    def __contains__(self, key: CheckpointKey) -> bool:
        return key in self._due

    def __iter__(self) -> Iterator[CheckpointKey]:
        return iter(self._due)

    def add(self, key: CheckpointKey, now: float) -> None:
        """A new key is due at its own place in the period; a known one stays where it is."""
        if key not in self._due:
            self._set(key, now + spread(key) * self.period)

    def hurry(self, key: CheckpointKey, now: float) -> None:
        """The key is due now."""
        if key in self._due:
            self._set(key, min(self._due[key], now))

    def done(self, key: CheckpointKey, now: float, *, again: float | None = None) -> None:
        """The key is due again after a period, or after *again* seconds."""
        if key in self._due:
            self._set(key, now + (self.period if again is None else again))

    def drop(self, key: CheckpointKey) -> None:
        """Forget a key."""
        self._due.pop(key, None)

    def take(self, now: float) -> CheckpointKey | None:
        """The key that has been due longest, None if none is; call :meth:`done` when it is dealt with."""
        while self._heap and self._heap[0][0] <= now:
            due, key = heapq.heappop(self._heap)
            if self._due.get(key) == due:
                return key
        return None

    def next_due(self) -> float | None:
        """When the next key is due; None if there is none."""
        while self._heap and self._due.get(self._heap[0][1]) != self._heap[0][0]:
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def in_order(self) -> list[CheckpointKey]:
        """All keys, the most pressing first."""
        return sorted(self._due, key=lambda key: self._due[key])

    def _set(self, key: CheckpointKey, due: float) -> None:
        self._due[key] = due
        heapq.heappush(self._heap, (due, key))
