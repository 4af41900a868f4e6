"""Why this number: the steps that made a container's recommendation, computed on demand.

The steps are the very ones of the tick (:meth:`vpa.recommendations.Roster.finals`), run over one slot.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import NamedTuple

import numpy as np

from vpa import estimators, recommendations, times
from vpa.estimators import BOUNDS, CPU, MEMORY, Trace
from vpa.histograms import NEVER
from vpa.numerics import AMOUNT_MAX
from vpa.recommendations import Container, Roster
from vpa.usage import Usage


class Step(NamedTuple):
    """One step of one number; amounts are whole millicores or bytes.

    *bound* is ``target``, ``lowerBound`` or ``upperBound``; *before* is None for the first step.
    """

    resource: str
    bound: str
    name: str
    before: int | None
    after: int
    why: str


def explain(roster: Roster, key: Hashable, container: str) -> list[Step]:
    """All steps of one container of a registered VPA, resource by resource, bound by bound.

    A ``KeyError`` says that the VPA recommends nothing for that container.
    """
    chosen = next((entry for entry in roster.containers(key) if entry.name == container), None)
    if chosen is None:
        raise KeyError(container)
    roster.run([key])  # brings a merged row up to date
    return [step for resource in chosen.resources for step in _steps(roster, chosen, resource)]


def _steps(roster: Roster, container: Container, resource: str) -> Iterator[Step]:
    trace = Trace()
    roster.finals(resource, np.array([container.slot]), trace)
    reasons = _Reasons(roster, container, resource, trace)
    for index, bound in enumerate(BOUNDS):
        before: int | None = None
        for step in trace.steps:
            after = int(step.after[index, 0])
            yield Step(resource, bound, step.name, before, after, reasons.of(step.name, index, before, after))
            before = after


class _Reasons:
    """The words beside each step of one container's resource."""

    def __init__(self, roster: Roster, container: Container, resource: str, trace: Trace) -> None:
        self.roster = roster
        self.container = container
        self.resource = resource
        self.trace = trace

    def of(self, name: str, index: int, before: int | None, after: int) -> str:
        """Why step *name* of the bound with that index led from *before* to *after*."""
        settings = self.roster.settings
        if name == estimators.PERCENTILE:
            return self._percentile(index)
        if name == estimators.MARGIN:
            return f"+ {100 * settings.recommendation_margin_fraction:.4g} % safety margin"
        if name == estimators.CONFIDENCE:
            return self._confidence(index)
        if name == estimators.MINIMUM:
            return self._minimum(before == after)
        if name == recommendations.ROUNDING:
            cpu, memory = settings.round_cpu_millicores, settings.round_memory_bytes
            multiple = f"{cpu} millicores" if self.resource == CPU else f"{memory} bytes"
            return f"rounded up to a multiple of {multiple}" if max(cpu, memory) > 1 else "no rounding"
        if name == recommendations.HUMANIZING:
            return "two decimals in the largest fitting unit"
        if name == recommendations.WHOLE_CORES:
            return "whole cores, by annotation" if self.container.integer_cpu else "no annotation"
        return self._cap(name, before == after)

    def _percentile(self, index: int) -> str:
        stop = int(self.trace.stops[index, 0])
        share = 100 * float(estimators.percentiles(self.roster.settings, self.resource)[index])
        what = "CPU use" if self.resource == CPU else "memory peaks"
        return f"no {what} known" if stop < 0 else f"p{share:.4g} of {what}: bucket {stop}"

    def _confidence(self, index: int) -> str:
        trust = float(self.trace.confidence[0])
        if BOUNDS[index] == estimators.TARGET:
            return "the target does not depend on it"
        if not trust:
            return "confidence 0: no bound yet"
        factor = 1 + 1 / trust if BOUNDS[index] == estimators.UPPER_BOUND else (1 + 0.001 / trust) ** -2
        return f"× {factor:.4g} at confidence {trust:.3g}"

    def _minimum(self, unchanged: bool) -> str:
        settings = self.roster.settings
        if self.resource == CPU:
            pod = f"{settings.pod_recommendation_min_cpu_millicores:.4g}m"
        else:
            pod = f"{settings.pod_recommendation_min_memory_mb:.4g}Mi"
        share = f"pod minimum {pod} ÷ {self.container.sharing}"
        return f"not below {share}" if unchanged else f"raised to {share}"

    def _cap(self, name: str, unchanged: bool) -> str:
        limits = self.container.limits(self.resource)
        limit = limits.low if name == recommendations.MIN_ALLOWED else limits.high
        if limit is None or limit.is_zero:
            return f"no {name}"
        source = "flag" if name == recommendations.MAX_ALLOWED and limits.high_is_global else "policy"
        return f"within {name} {limit} of the {source}" if unchanged else f"{name} {limit} of the {source}"


def oom_evidence(usage: Usage, row: int) -> str | None:
    """What OOM kills have taught about a row, in one line; None without any."""
    count = int(usage.oom_count[row])
    if not count:
        return None
    counted = recommendations.quantity(MEMORY, int(usage.oom_memory[row]))
    last = times.text(int(usage.oom_time[row]))
    kills = "1 OOM kill" if count == 1 else f"{count} OOM kills, the last"
    return f"{kills} at {last}: counted as a memory peak of {counted}"


def shown(resource: str, amount: int) -> str:
    """An amount as text; the largest one stands for "unbounded", a negative one for "no evidence"."""
    if amount < 0:
        return "-"
    return "∞" if amount >= AMOUNT_MAX else str(recommendations.quantity(resource, amount))


def history_span(usage: Usage, row: int) -> str:
    """Since when, until when and how many CPU samples a row knows."""
    first, last = int(usage.first_sample[row]), int(usage.last_sample[row])
    if first == NEVER:
        return "no CPU samples"
    return f"{int(usage.sample_count[row])} CPU samples, {times.text(first)} to {times.text(last)}"
