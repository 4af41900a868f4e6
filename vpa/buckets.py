"""Bucket layouts: which bucket a value falls into, and what a bucket stands for.

176 exponentially growing buckets, upstream's fixed parameters. Checkpoints store bucket numbers, so a layout
can never change without a new checkpoint version.
"""

from __future__ import annotations

import functools
import math

import numpy as np
from numpy.typing import NDArray

from vpa import numerics
from vpa.numerics import Floats, Ints

COUNT = 176
LAST = COUNT - 1
RATIO = 1 + 0.05
EPSILON = 0.001 * 0.1
"""A bucket lighter than this counts as empty."""

Buckets = NDArray[np.int64]


class Layout:
    """One resource's buckets.

    ``starts[n]`` is the lower edge of bucket *n* and ``edges[n]`` the value a percentile takes when it stops
    there: the upper edge, for the last bucket the lower one. Both are in cores or bytes. ``unit`` converts an
    amount (whole millicores or bytes) to such a value by division.
    """

    def __init__(self, *, name: str, first: float, unit: float) -> None:
        self.name = name
        self.first = first
        self.unit = unit
        self._log_ratio = numerics.log(RATIO)
        self.starts: Floats = np.array([self._start(n) for n in range(COUNT)])
        self.edges: Floats = np.append(self.starts[1:], self.starts[LAST])
        self.edge_amounts: Ints = numerics.to_amounts(self.edges * unit)
        self._thresholds: Floats = np.array([self._threshold(n) for n in range(1, COUNT)])

    def _start(self, n: int) -> float:
        return 0.0 if n == 0 else self.first * (numerics.power(RATIO, n) - 1) / (RATIO - 1)

    def _find_one(self, value: float) -> int:
        """The definition, for one value: upstream's formula evaluated in upstream's order."""
        if value < self.first:
            return 0
        argument = value * (RATIO - 1) / self.first + 1
        if math.isinf(argument):
            return LAST
        return min(int(numerics.log(argument) / self._log_ratio), LAST)

    def _threshold(self, n: int) -> float:
        """The least value that falls into bucket *n*: near the bucket's start, but a few ulps off."""
        low, high = float(self.starts[n]) * (1 - 1e-12), float(self.starts[n]) * (1 + 1e-12)
        while (middle := low + (high - low) / 2) not in (low, high):
            if self._find_one(middle) < n:
                low = middle
            else:
                high = middle
        return high

    def find(self, values: Floats) -> Buckets:
        """Bucket of each value (cores or bytes); NaN is not allowed, negatives fall into bucket 0."""
        found = np.searchsorted(self._thresholds, values, side="right")
        # Go's logarithm need not be monotonic within an ulp of a threshold: ask the definition there.
        nearest = self._thresholds[np.minimum(found, LAST - 1)]
        below = self._thresholds[np.maximum(found, 1) - 1]
        with np.errstate(invalid="ignore"):
            close = (np.abs(values - nearest) <= nearest * 1e-12) | (np.abs(values - below) <= below * 1e-12)
        for i in np.flatnonzero(close):
            found[i] = self._find_one(float(values[i]))
        return found

    @functools.cached_property
    def _by_amount(self) -> NDArray[np.uint8]:
        """Bucket of every whole amount up to the last bucket's; made only for CPU (a million millicores)."""
        firsts = [0]
        for n in range(1, COUNT):
            amount = math.ceil(float(self._thresholds[n - 1]) * self.unit)
            while self._find_one(amount / self.unit) < n:
                amount += 1
            while self._find_one((amount - 1) / self.unit) >= n:
                amount -= 1
            firsts.append(amount)
        return np.repeat(np.arange(COUNT, dtype=np.uint8), np.diff([*firsts, firsts[-1] + 1]))

    def find_amounts(self, amounts: Ints) -> Buckets:
        """Bucket of each whole non-negative amount (millicores or bytes)."""
        if self.unit == 1:
            return self.find(amounts.astype(np.float64))
        table = self._by_amount
        return table[np.minimum(amounts, len(table) - 1)].astype(np.int64)


@functools.cache
def cpu() -> Layout:
    """CPU: values in cores, amounts in millicores; first bucket 10 millicores."""
    return Layout(name="cpu", first=0.01, unit=1000.0)


@functools.cache
def memory() -> Layout:
    """Memory: values and amounts in bytes; first bucket 10 MB."""
    return Layout(name="memory", first=1e7, unit=1.0)
