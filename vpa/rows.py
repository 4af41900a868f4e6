"""One histogram of a bank as plain numbers.

A long run of samples of one row is no work for arrays: each would have one element. These are the same
operations as the bank's, in the same order, so that they leave the same bits.
"""

from __future__ import annotations

from dataclasses import dataclass

from vpa.buckets import EPSILON, LAST


@dataclass(slots=True)
class Row:
    """Weights by bucket, their sum, the range of the filled buckets, and whether weight lies below it."""

    weights: list[float]
    total: float
    low: int
    high: int
    ragged: bool

    def add(self, bucket: int, weight: float) -> None:
        """Add a weight to a bucket; a bucket that is lighter than epsilon does not widen the range."""
        weights = self.weights
        weights[bucket] += weight
        self.total += weight
        if weights[bucket] >= EPSILON:
            self.low = min(self.low, bucket)
            self.high = max(self.high, bucket)
        elif bucket < self.low:
            self.ragged = True

    def subtract(self, bucket: int, weight: float) -> None:
        """Take a weight out of a bucket; what falls below epsilon becomes exactly 0."""
        self.total = _less(self.total, weight)
        self.weights[bucket] = _less(self.weights[bucket], weight)
        loose_low = self.low < LAST and self.weights[self.low] < EPSILON
        loose_high = self.high > 0 and self.weights[self.high] < EPSILON
        if loose_low and loose_high and self.low >= self.high:
            self.ragged = self.ragged or self.weights[self.low] > 0
            self.low, self.high = LAST, 0
            return
        if loose_low:
            self._raise_low()
        if loose_high:
            self._lower_high()

    def _raise_low(self) -> None:
        weights, low = self.weights, self.low
        while low < LAST and weights[low] < EPSILON:
            self.ragged = self.ragged or weights[low] > 0
            low += 1
        self.low = low

    def _lower_high(self) -> None:
        weights, high = self.weights, self.high
        while high > 0 and weights[high] < EPSILON:
            high -= 1
        self.high = high


def _less(weight: float, taken: float) -> float:
    left = weight - taken
    return 0.0 if left < EPSILON else left
