"""From histogram rows to recommended amounts: percentile → margin → confidence → minimum.

Each step is a function of arrays with one element per row. The service runs them over all rows at once, a
trace over one row; both go through :func:`estimate`, so an explanation shows the very numbers.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from vpa import numerics
from vpa.buckets import Buckets, Layout
from vpa.histograms import NEVER, HistogramBank
from vpa.numerics import Floats, Ints
from vpa.settings import Estimation
from vpa.usage import Usage

CPU = "cpu"
MEMORY = "memory"
RESOURCES = (CPU, MEMORY)

TARGET = "target"
LOWER_BOUND = "lowerBound"
UPPER_BOUND = "upperBound"
BOUNDS = (TARGET, LOWER_BOUND, UPPER_BOUND)
_LOWER, _UPPER = 1, 2

_MINUTE = 60 * 10**9


PERCENTILE = "percentile"
MARGIN = "margin"
CONFIDENCE = "confidence"
MINIMUM = "minimum"


class Step(NamedTuple):
    """One step of a resource's numbers: its name, and the amounts after it, ``int64[3, rows]`` by bound."""

    name: str
    after: Ints


@dataclass
class Trace:
    """What one pass leaves behind when asked: where percentiles stopped, the confidence, and all steps."""

    stops: Buckets = field(default_factory=lambda: np.zeros((3, 0), dtype=np.int64))
    confidence: Floats = field(default_factory=lambda: np.zeros(0))
    steps: list[Step] = field(default_factory=list)

    def note(self, name: str, amounts: Ints) -> Ints:
        """Keep a step's outcome; gives the amounts back."""
        self.steps.append(Step(name, amounts.copy()))
        return amounts


def bank_of(usage: Usage, resource: str) -> HistogramBank:
    """The histograms of ``cpu`` or ``memory``."""
    return usage.cpu if resource == CPU else usage.memory


def percentiles(settings: Estimation, resource: str) -> Floats:
    """Percentile of target, lower and upper bound, ``float64[3]``."""
    names = (
        f"target_{resource}_percentile",
        f"recommendation_lower_bound_{resource}_percentile",
        f"recommendation_upper_bound_{resource}_percentile",
    )
    return np.array([getattr(settings, name) for name in names])


def percentile_amounts(layout: Layout, stops: Buckets) -> Ints:
    """Whole amount of the bucket edge at which a percentile stopped; an empty histogram (-1) gives 0."""
    return np.append(layout.edge_amounts, 0)[stops]


def add_margin(amounts: Ints, fraction: float) -> Ints:
    """The safety margin on top; it is truncated by itself."""
    return amounts + numerics.scale(amounts, fraction)


def confidence(usage: Usage, rows: Ints, interval: int) -> Floats:
    """How much history there is, in intervals: the less of its length and its samples, one a minute."""
    known = usage.first_sample[rows] != NEVER
    span = np.where(known, usage.last_sample[rows] - np.where(known, usage.first_sample[rows], 0), 0)
    by_length = span.astype(np.float64) / interval
    by_samples = usage.sample_count[rows].astype(np.float64) / (interval / _MINUTE)
    return np.where(known, np.minimum(by_length, by_samples), 0.0)


def widen_up(amounts: Ints, trust: Floats) -> Ints:
    """The upper bound stays far above while little is known: ``× (1 + 1/c)``."""
    with np.errstate(divide="ignore"):
        return numerics.scale(amounts, 1 + 1 / trust)


def widen_down(amounts: Ints, trust: Floats) -> Ints:
    """The lower bound stays below while very little is known: ``× (1 + 0.001/c)⁻²``."""
    with np.errstate(divide="ignore", over="ignore"):
        divisor = 1 + 0.001 / trust
        return numerics.scale(amounts, 1 / (divisor * divisor))


def minimum_amount(settings: Estimation, resource: str, containers: int) -> int:
    """The pod minimum divided among so many containers, in millicores or bytes; at least one container."""
    if resource == CPU:
        pod = numerics.to_amounts(np.array([settings.pod_recommendation_min_cpu_millicores * 0.001 * 1000.0]))
    else:
        pod = numerics.to_amounts(np.array([settings.pod_recommendation_min_memory_mb * 1024 * 1024]))
    return int(numerics.scale(pod, 1 / containers)[0])


def estimate(
    usage: Usage,
    rows: Ints,
    *,
    resource: str,
    minimum: Ints,
    settings: Estimation,
    trace: Trace | None = None,
) -> Ints:
    """Amounts of target, lower and upper bound for each row, ``int64[3, rows]``, before rounding and caps.

    *minimum* is the least amount of each row, ``int64[rows]``.
    """
    bank = bank_of(usage, resource)
    stops = bank.percentile_buckets(rows, percentiles(settings, resource))
    interval = settings.confidence_interval_cpu if resource == CPU else settings.confidence_interval_memory
    trust = confidence(usage, rows, interval)
    amounts = percentile_amounts(bank.layout, stops)
    if trace is not None:
        trace.stops, trace.confidence = stops, trust
        trace.note(PERCENTILE, amounts)
    amounts = add_margin(amounts, settings.recommendation_margin_fraction)
    if trace is not None:
        trace.note(MARGIN, amounts)
    amounts[_LOWER] = widen_down(amounts[_LOWER], trust)
    amounts[_UPPER] = widen_up(amounts[_UPPER], trust)
    if trace is not None:
        trace.note(CONFIDENCE, amounts)
    np.maximum(amounts, minimum, out=amounts)
    if trace is not None:
        trace.note(MINIMUM, amounts)
    return amounts
