"""From histogram rows to recommended amounts: percentile → margin → confidence → minimum.

Each step is a function of arrays with one element per row. The service runs them over all rows at once, a
trace over one row; both go through :func:`estimate`, so an explanation shows the very numbers.
"""

from __future__ import annotations

from collections.abc import Callable
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

_MINUTE = 60 * 10**9


class Step(NamedTuple):
    """One step of one number: its name and the amount after it, ``int64[rows]``."""

    bound: str
    name: str
    after: Ints


@dataclass(frozen=True)
class Trace:
    """What :func:`estimate` leaves behind when asked: where percentiles stopped, confidence, all steps."""

    stops: list[Buckets] = field(default_factory=list)
    confidence: list[Floats] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)


def bank_of(usage: Usage, resource: str) -> HistogramBank:
    """The histograms of ``cpu`` or ``memory``."""
    return usage.cpu if resource == CPU else usage.memory


def percentiles(settings: Estimation, resource: str) -> Floats:
    """Percentile of target, lower and upper bound, ``float64[3]``."""
    names = ("target_{}_percentile", "recommendation_lower_bound_{}_percentile")
    names += ("recommendation_upper_bound_{}_percentile",)
    return np.array([getattr(settings, name.format(resource)) for name in names])


def percentile_amounts(layout: Layout, stops: Buckets) -> Ints:
    """Whole amount of the bucket edge at which a percentile stopped; an empty histogram (-1) gives 0."""
    return np.append(layout.edge_amounts, 0)[stops]


def add_margin(amounts: Ints, fraction: float) -> Ints:
    """The safety margin on top; it is truncated by itself."""
    return amounts + numerics.scale(amounts, fraction)


def confidence(usage: Usage, rows: Ints, interval: int) -> Floats:
    """How much history there is, in intervals (a day): the less of its length and of its samples, one a minute."""
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
    widen: dict[str, Callable[[Ints, Floats], Ints]] = {LOWER_BOUND: widen_down, UPPER_BOUND: widen_up}
    result = np.empty(stops.shape, dtype=np.int64)
    if trace is not None:
        trace.stops.append(stops)
        trace.confidence.append(trust)

    def note(bound: str, name: str, amounts: Ints) -> Ints:
        if trace is not None:
            trace.steps.append(Step(bound, name, amounts))
        return amounts

    for index, bound in enumerate(BOUNDS):
        amounts = note(bound, "percentile", percentile_amounts(bank.layout, stops[index]))
        amounts = note(bound, "margin", add_margin(amounts, settings.recommendation_margin_fraction))
        if bound in widen:
            amounts = note(bound, "confidence", widen[bound](amounts, trust))
        result[index] = note(bound, "minimum", np.maximum(amounts, minimum))
    return result
