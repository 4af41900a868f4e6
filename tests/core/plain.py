"""A plain, slow decaying histogram: one object a row, one sample at a time, written for clarity only."""

from __future__ import annotations

import math

from vpa import buckets

COUNT, LAST, EPSILON = buckets.COUNT, buckets.LAST, buckets.EPSILON
_ZERO_TO_EPOCH = 62135596800 * 10**9
_LONGEST = 2**63


class PlainHistogram:
    """What a row of the bank has to be equal to, bit for bit."""

    def __init__(self, half_life: int) -> None:
        self.half_life = half_life
        self.weights = [0.0] * COUNT
        self.total = 0.0
        self.low, self.high = LAST, 0
        self.reference: int | None = None

    def add(self, bucket: int, weight: float, time: int) -> None:
        weight *= self._factor(time)
        self.weights[bucket] += weight
        self.total += weight
        if self.weights[bucket] >= EPSILON:
            self.low, self.high = min(self.low, bucket), max(self.high, bucket)

    def subtract(self, bucket: int, weight: float, time: int) -> None:
        weight *= self._factor(time)
        self.total = self._less(self.total, weight)
        self.weights[bucket] = self._less(self.weights[bucket], weight)
        self._tighten()

    def merge(self, other: PlainHistogram) -> None:
        if self._start() < other._start():
            self._shift(other._start())
        elif other._start() < self._start():
            other._shift(self._start())
        for bucket in range(other.low, other.high + 1):
            self.weights[bucket] += other.weights[bucket]
        self.total += other.total
        self.low, self.high = min(self.low, other.low), max(self.high, other.high)

    def percentile_bucket(self, percentile: float) -> int:
        if self.weights[self.low] < EPSILON:
            return -1
        running, bucket = 0.0, self.low
        while bucket < self.high:
            running += self.weights[bucket]
            if running >= percentile * self.total:
                break
            bucket += 1
        return bucket

    def state(self) -> tuple[object, ...]:
        return self.weights, self.total, self.low, self.high, self.reference

    def _start(self) -> int:
        return -_ZERO_TO_EPOCH if self.reference is None else self.reference

    def _factor(self, time: int) -> float:
        if time > self._start() + 100 * self.half_life:
            self._shift(time)
        return self._exp2(float(time - self._start()) / float(self.half_life))

    def _shift(self, time: int) -> None:
        rest = (time + _ZERO_TO_EPOCH) % self.half_life
        moved = time - rest if 2 * rest < self.half_life else time - rest + self.half_life
        distance = max(self._start() - moved, -_LONGEST)
        factor = math.ldexp(1.0, math.floor(float(distance) / float(self.half_life) + 0.5))
        for bucket in range(self.low, self.high + 1):
            self.weights[bucket] *= factor
        self.total *= factor
        self.reference = moved
        self._tighten()

    def _tighten(self) -> None:
        while self.weights[self.low] < EPSILON and self.low < LAST:
            self.low += 1
        while self.weights[self.high] < EPSILON and self.high > 0:
            self.high -= 1

    @staticmethod
    def _less(weight: float, taken: float) -> float:
        return 0.0 if weight - taken < EPSILON else weight - taken

    @staticmethod
    def _exp2(x: float) -> float:
        k = math.trunc(x + math.copysign(0.5, x))
        t = x - k
        hi, lo = t * 6.93147180369123816490e-01, -t * 1.90821492927058770002e-10
        r = hi - lo
        q = r * r
        c = r - q * (
            1.66666666666666657415e-01
            + q
            * (
                -2.77777777770155933842e-03
                + q
                * (
                    6.61375632143793436117e-05
                    + q * (-1.65339022054652515390e-06 + q * 4.13813679705723846039e-08)
                )
            )
        )
        return math.ldexp(1 - ((lo - (r * c) / (2 - c)) - hi), k)
