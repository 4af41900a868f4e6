"""All decaying histograms of one resource in one array.

:class:`HistogramBank` behaves, row by row, like upstream's decaying exponential histogram, bit for bit: the
order of additions, the range between the lowest and highest filled bucket, the reference time to which a
sample's weight is scaled, and the losses of saving and loading.

The array is bucket-major, ``float64[176, capacity]``: a percentile of all rows is a running sum over buckets,
and buckets that nobody touches are never paged in.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from vpa import batches, numerics
from vpa.buckets import COUNT, EPSILON, LAST, Buckets, Layout
from vpa.flags import show_float
from vpa.numerics import Floats, Ints
from vpa.rows import Row

NEVER = numerics.INT64_MIN
"""A reference or sample time that was never set (Go's zero time)."""

MAX_EXPONENT = 100
"""A sample this many half-lives after the reference moves the reference."""

CHECKPOINT_WEIGHT = 10000
"""What the heaviest bucket weighs in a checkpoint."""

_ZERO_TO_EPOCH = 62135596800 * 10**9  # nanoseconds from Go's zero time (year 1) to the Unix epoch
_REFERENCE_LIMIT = 2**62  # keeps differences of two times inside an int64
_NOTHING_LEFT = -(2**30)  # half-lives after which a weight is 0; the true number may not fit in 32 bits
_CHUNK = 8192  # rows of one percentile pass: running sums and thresholds stay in the processor's cache
_NUMBERS = np.arange(COUNT, dtype=np.int16)[:, None]  # bucket numbers as a column


@dataclass(frozen=True)
class Saved:
    """One histogram as a checkpoint holds it: bucket → weight of 0…10000, total weight, reference (ns)."""

    weights: dict[int, int] = field(default_factory=dict)
    total: float = 0.0
    reference: int = NEVER


class LoadError(ValueError):
    """A checkpoint's histogram cannot be loaded; the message is upstream's."""


class HistogramBank:
    """Histograms of one resource: rows in, rows out, no names.

    ``half_life`` is in nanoseconds; 0 means that weights do not decay. All arrays that a caller passes have
    one element per sample or per row; times are nanoseconds since the Unix epoch.
    """

    def __init__(self, layout: Layout, *, half_life: int, capacity: int = 1024) -> None:
        self.layout = layout
        self.half_life = int(half_life)
        self._horizon = min(MAX_EXPONENT * self.half_life, 2 * _REFERENCE_LIMIT - 1)
        self.capacity = capacity
        self._weights: Floats = np.zeros((COUNT, capacity))
        self.total: Floats = np.zeros(capacity)
        self.reference: Ints = np.full(capacity, NEVER, dtype=np.int64)
        self.low: NDArray[np.int16] = np.full(capacity, LAST, dtype=np.int16)
        self.high: NDArray[np.int16] = np.zeros(capacity, dtype=np.int16)
        # Rows that may hold weight below `low`, which a percentile must not count.
        self._ragged: NDArray[np.bool_] = np.zeros(capacity, dtype=np.bool_)
        self._touched: NDArray[np.bool_] = np.zeros(COUNT, dtype=np.bool_)

    # Rows

    def grow(self, capacity: int) -> None:
        """Make room for *capacity* rows; pages of untouched buckets stay untouched."""
        if capacity <= self.capacity:
            return
        weights = np.zeros((COUNT, capacity))
        for bucket in np.flatnonzero(self._touched):
            weights[bucket, : self.capacity] = self._weights[bucket]
        extra = capacity - self.capacity
        self._weights = weights
        self.total = np.append(self.total, np.zeros(extra))
        self.reference = np.append(self.reference, np.full(extra, NEVER, dtype=np.int64))
        self.low = np.append(self.low, np.full(extra, LAST, dtype=np.int16))
        self.high = np.append(self.high, np.zeros(extra, dtype=np.int16))
        self._ragged = np.append(self._ragged, np.zeros(extra, dtype=np.bool_))
        self.capacity = capacity

    def clear(self, rows: Ints) -> None:
        """Make the rows as new."""
        for bucket in np.flatnonzero(self._touched):
            self._weights[bucket, rows] = 0.0
        self.total[rows] = 0.0
        self.reference[rows] = NEVER
        self.low[rows] = LAST
        self.high[rows] = 0
        self._ragged[rows] = False

    def copy(self, source: int, target: int) -> None:
        """Make row *target* equal to row *source*."""
        self._weights[:, target] = self._weights[:, source]
        for column in (self.total, self.reference, self.low, self.high, self._ragged):
            column[target] = column[source]

    def weights(self, row: int) -> Floats:
        """A copy of one row's weights, ``float64[176]``."""
        return self._weights[:, row].copy()

    # Samples

    def add(self, rows: Ints, values: Floats, weights: Floats, times: Ints) -> None:
        """Add samples in order; a row may occur several times. Values are in cores or bytes."""
        if len(rows) and weights.min() < 0:
            raise ValueError("sample weight must be non-negative")
        self.add_to_buckets(rows, self.layout.find(values), weights, times)

    def add_to_buckets(self, rows: Ints, buckets: Buckets, weights: Floats, times: Ints) -> None:
        """:meth:`add` for samples whose buckets are known already; weights must not be negative."""
        if len(rows) == 0:
            return
        where = batches.compact(rows)
        cut = self._advance(rows, where, times)
        if cut < len(rows):  # a later sample moves the reference of a row that has an earlier one here
            self.add_to_buckets(rows[:cut], buckets[:cut], weights[:cut], times[:cut])
            self.add_to_buckets(rows[cut:], buckets[cut:], weights[cut:], times[cut:])
            return
        scaled = self._scaled(where, weights, times)
        flat = buckets * self.capacity + rows
        everything = self._weights.reshape(-1)
        np.add.at(everything, flat, scaled)
        batches.fold(np.add, self.total, where, scaled)
        if not self._touched[buckets].all():
            self._touched[buckets] = True
        small = buckets.astype(np.int16)
        if scaled.min() < EPSILON:  # else every bucket that was added to is heavy enough
            filled = everything[flat] >= EPSILON
            hidden = ~filled & (small < self.low[rows])
            self._ragged[rows[hidden]] = True
            where, small = rows[filled], small[filled]
        batches.fold(np.minimum, self.low, where, small)
        batches.fold(np.maximum, self.high, where, small)

    def subtract(self, rows: Ints, values: Floats, weights: Floats, times: Ints) -> None:
        """Take samples out again, in order; what falls below epsilon becomes exactly 0."""
        self.subtract_from_buckets(rows, self.layout.find(values), weights, times)

    def subtract_from_buckets(self, rows: Ints, buckets: Buckets, weights: Floats, times: Ints) -> None:
        """:meth:`subtract` for samples whose buckets are known already."""
        if len(rows) and weights.min() < 0:
            raise ValueError("sample weight must be non-negative")
        for wave in batches.waves(rows):
            chosen, bucket = rows[wave], buckets[wave]
            self._advance(chosen, chosen, times[wave])
            scaled = self._scaled(chosen, weights[wave], times[wave])
            self.total[chosen] = _less(self.total[chosen], scaled)
            self._weights[bucket, chosen] = _less(self._weights[bucket, chosen], scaled)
            self._tighten(chosen)

    def replace(self, row: int, leaving: Buckets, arriving: Buckets, weights: Floats, times: Ints) -> None:
        """For each sample of one row in order: take *leaving* (-1: nothing) out and put *arriving* in."""
        where, rows = slice(row, row + 1), np.array([row])
        start = 0
        while start < len(times):
            self._advance(rows, where, times[start : start + 1])
            late = np.flatnonzero(self.reference[row] < times[start:] - self._horizon)
            stop = start + int(late[0]) if self.half_life and len(late) else len(times)
            part = slice(start, stop)
            scaled = self._scaled(where, weights[part], times[part])
            self._replace(row, leaving[part].tolist(), arriving[part].tolist(), scaled.tolist())
            start = stop

    def _replace(self, row: int, leaving: list[int], arriving: list[int], scaled: list[float]) -> None:
        one = Row(
            self._weights[:, row].tolist(),
            float(self.total[row]),
            int(self.low[row]),
            int(self.high[row]),
            bool(self._ragged[row]),
        )
        for out, into, weight in zip(leaving, arriving, scaled, strict=True):
            if out >= 0:
                one.subtract(out, weight)
            one.add(into, weight)
        for bucket in {*leaving, *arriving} - {-1}:
            self._weights[bucket, row] = one.weights[bucket]
            self._touched[bucket] = True
        self.total[row], self._ragged[row] = one.total, one.ragged
        self.low[row], self.high[row] = one.low, one.high

    def _scaled(self, where: slice | Ints, weights: Floats, times: Ints) -> Floats:
        if not self.half_life:
            return weights
        exponents = (times - self.reference[where]).astype(np.float64)
        exponents /= self.half_life
        scaled = numerics.exp2(exponents)
        scaled *= weights
        return scaled

    def _advance(self, rows: Ints, where: slice | Ints, times: Ints) -> int:
        """Move references that lie more than 100 half-lives before a sample; return where to cut the batch.

        A row's first sample may move its reference at once. If a later sample of the same row has to move it
        as well, the samples before that one must be added first: their number is returned, else all.
        *where* are the rows too, as a slice where they are consecutive.
        """
        if not self.half_life:
            return len(rows)
        while True:
            is_late = self.reference[where] < times - self._horizon  # NEVER is before all times
            if not is_late.any():
                return len(rows)
            late = np.flatnonzero(is_late)
            moving, first = np.unique(rows[late], return_index=True)
            index = late[first]
            if len(late) < len(rows):  # not the whole batch: is there an earlier sample of a moving row?
                seen = np.full(self.capacity, len(rows), dtype=np.int64)
                np.minimum.at(seen, rows, np.arange(len(rows)))
                leading = seen[moving] == index
                if not leading.all():
                    cut = int(index[~leading].min())
                    before = leading & (index < cut)
                    self._shift(moving[before], times[index[before]])
                    return cut
            self._shift(moving, times[index])

    def _shift(self, rows: Ints, times: Ints) -> None:
        """Move the rows' references to *times*, rounded to a multiple of the half-life since the year 1."""
        remainder = (times % self.half_life + _ZERO_TO_EPOCH % self.half_life) % self.half_life
        rounded = times - remainder + np.where(2 * remainder < self.half_life, 0, self.half_life)
        old = self.reference[rows]
        unset = old == NEVER
        distance = np.where(unset, float(NEVER), (np.where(unset, 0, old) - rounded).astype(np.float64))
        exponents = np.maximum(np.floor(distance / self.half_life + 0.5), _NOTHING_LEFT)
        self._scale(rows, np.ldexp(1.0, exponents.astype(np.int32)))
        self.reference[rows] = rounded

    def _scale(self, rows: Ints, factors: Floats) -> None:
        """Multiply the weights between a row's lowest and highest filled bucket, and its total."""
        low, high = self.low[rows], self.high[rows]
        if len(rows) and low.min() <= high.max():
            for bucket in range(int(low.min()), int(high.max()) + 1):
                if self._touched[bucket]:
                    inside = (low <= bucket) & (bucket <= high)
                    self._weights[bucket, rows[inside]] *= factors[inside]
        self.total[rows] *= factors
        self._tighten(rows)

    def _tighten(self, rows: Ints) -> None:
        """Move the range's ends inwards over buckets lighter than epsilon."""
        for start in range(0, len(rows), _CHUNK):
            part = rows[start : start + _CHUNK]
            low, high = self.low[part], self.high[part]
            loose_low = (self._weights[low, part] < EPSILON) & (low < LAST)
            loose_high = (self._weights[high, part] < EPSILON) & (high > 0)
            # Rows whose only bucket went light: nothing lies inside their range, so it becomes the empty one.
            emptied = loose_low & loose_high & (low >= high)
            if emptied.any():
                rest = part[emptied]
                self._ragged[rest] |= self._weights[low[emptied], rest] > 0
                self.low[rest] = LAST
                self.high[rest] = 0
                loose_low &= ~emptied
                loose_high &= ~emptied
            if loose_low.any():
                self._raise_low(part[loose_low])
            if loose_high.any():
                self._lower_high(part[loose_high])

    def _raise_low(self, rows: Ints) -> None:
        weights = self._weights[:, rows]
        from_low = self.low[rows] <= _NUMBERS
        filled = (weights >= EPSILON) & from_low
        low = np.where(filled.any(axis=0), filled.argmax(axis=0), LAST).astype(np.int16)
        self._ragged[rows] |= ((weights > 0) & from_low & (low > _NUMBERS)).any(axis=0)
        self.low[rows] = low

    def _lower_high(self, rows: Ints) -> None:
        filled = (self._weights[:, rows] >= EPSILON) & (self.high[rows] >= _NUMBERS)
        self.high[rows] = np.where(filled.any(axis=0), LAST - filled[::-1].argmax(axis=0), 0)

    # Reading

    def is_empty(self, rows: Ints) -> NDArray[np.bool_]:
        """Whether each row's lowest bucket is lighter than epsilon."""
        return self._weights[self.low[rows], rows] < EPSILON

    def percentile_buckets(self, rows: Ints, percentiles: Floats) -> Buckets:
        """The bucket where each percentile stops, -1 for an empty row: ``int64[len(percentiles), n]``."""
        result = np.empty((len(percentiles), len(rows)), dtype=np.int64)
        contiguous = (
            len(rows) > 0 and rows[-1] - rows[0] == len(rows) - 1 and bool((np.diff(rows) == 1).all())
        )
        for start in range(0, len(rows), _CHUNK):
            part = rows[start : start + _CHUNK]
            where = slice(int(part[0]), int(part[-1]) + 1) if contiguous else part
            result[:, start : start + _CHUNK] = self._scan(where, percentiles)
        result[:, self.is_empty(rows)] = -1
        return result

    def percentiles(self, rows: Ints, percentiles: Floats) -> Floats:
        """Percentiles of each row in cores or bytes, 0 for an empty one: ``float64[len(percentiles), n]``."""
        return np.append(self.layout.edges, 0.0)[self.percentile_buckets(rows, percentiles)]

    def _scan(self, where: slice | Ints, percentiles: Floats) -> Buckets:
        """Count, for each percentile, the buckets whose running sum stays below ``percentile × total``.

        The running sum never falls, so that count, kept inside the row's range, is where the scan stops.
        """
        low, high = self.low[where], self.high[where]
        thresholds = percentiles[:, None] * self.total[where]
        bottom, top = int(low.min()), int(high.max())
        below = thresholds > 0
        counts = (below * np.uint8(bottom)).astype(np.uint8)
        running = np.zeros(len(low))
        ragged = bool(self._ragged[where].any())
        for bucket in range(bottom, top):
            if self._touched[bucket]:
                weights = self._weights[bucket, where]
                running += np.where(low <= bucket, weights, 0.0) if ragged else weights
                np.less(running, thresholds, out=below)
            np.add(counts, below.view(np.uint8), out=counts)
        return np.minimum(np.maximum(counts, low), high).astype(np.int64)

    # Whole histograms

    def merge(self, target: int, source: int) -> None:
        """Add row *source* to row *target*. The older reference is moved, even when it is the source's."""
        if self.half_life:
            behind, ahead = (target, source) if self._before(target, source) else (source, target)
            if self._before(behind, ahead):
                self._shift(np.array([behind]), self.reference[[ahead]])
        low, high = int(self.low[source]), int(self.high[source])
        if low <= high:
            self._weights[low : high + 1, target] += self._weights[low : high + 1, source]
        self.total[target] += self.total[source]
        self.low[target] = min(self.low[target], self.low[source])
        self.high[target] = max(self.high[target], self.high[source])
        self._ragged[target] = True  # either row's sub-epsilon weights may now lie below the other's range

    def _before(self, one: int, other: int) -> bool:
        return bool(self.reference[one] < self.reference[other])

    def save(self, row: int) -> Saved:
        """The row as a checkpoint holds it."""
        reference = int(self.reference[row])
        total = float(self.total[row])
        low, high = int(self.low[row]), int(self.high[row])
        weights = self._weights[low : high + 1, row]
        heaviest = weights.max(initial=0.0)
        if heaviest <= 0:
            return Saved(total=total, reference=reference)
        shares = np.floor(weights * (CHECKPOINT_WEIGHT / heaviest) + 0.5).astype(np.int64)
        kept = {low + int(i): int(shares[i]) for i in np.flatnonzero(shares)}
        return Saved(weights=kept, total=total, reference=reference)

    def load(self, row: int, saved: Saved) -> None:
        """Add a saved histogram to a row, normally a new one; a :class:`LoadError` changes nothing."""
        if saved.total < 0:
            raise LoadError(f"cannot load checkpoint with negative weight {show_float(saved.total)}")
        for bucket in saved.weights:
            if bucket >= COUNT:
                raise LoadError(f"checkpoint has bucket {bucket} that is exceeding histogram buckets {COUNT}")
            if bucket < 0:
                raise LoadError(f"checkpoint has a negative bucket {bucket}")
        shares = sum(saved.weights.values())
        if shares:
            factor = saved.total / shares
            for bucket, share in saved.weights.items():
                self.low[row] = min(int(self.low[row]), bucket)
                self.high[row] = max(int(self.high[row]), bucket)
                self._weights[bucket, row] += share * factor
                self._touched[bucket] = True
            self.total[row] += saved.total
            self._tighten(np.array([row]))
        if self.half_life:
            limit = _REFERENCE_LIMIT
            never = saved.reference == NEVER
            self.reference[row] = NEVER if never else min(max(saved.reference, -limit), limit)


def _less(weights: Floats, taken: Floats) -> Floats:
    left = weights - taken
    return np.where(left < EPSILON, 0.0, left)
