"""From estimated amounts to what a VPA's status says: rounding, whole cores, caps, and the text.

A :class:`Roster` holds all containers of all VPAs, one slot each, so that one vectorised pass per resource
gives the final integers of every container; quantities and text are made only for VPAs that changed.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from vpa import estimators, policies
from vpa.durations import DAY
from vpa.estimators import BOUNDS, CPU, MEMORY, RESOURCES
from vpa.numerics import INT64_MAX, Ints
from vpa.objects.autoscalers import ContainerRecommendation, Recommendation, VerticalPodAutoscaler
from vpa.objects.meta import ResourceList
from vpa.quantities import BINARY_SI, Quantity
from vpa.settings import Estimation
from vpa.slots import Slots
from vpa.usage import Usage

UNCAPPED_TARGET = "uncappedTarget"
INTEGER_CPU_PREFIX = "vpa-post-processor.kubernetes.io/"
INTEGER_CPU_SUFFIX = "_integerCPU"

ROUNDING = "rounding"
HUMANIZING = "humanizing"
WHOLE_CORES = "whole cores"
MIN_ALLOWED = "minAllowed"
MAX_ALLOWED = "maxAllowed"

NOT_CAPPED, CAPPED_TO_MIN, CAPPED_TO_MAX = 0, 1, 2
_NO_VIEWS: Mapping[int, tuple[int, ...]] = MappingProxyType({})
_PART = 8192  # slots of one pass: all intermediate arrays stay in the processor's cache
_UNCAPPED = len(BOUNDS)  # index of the uncapped target among the amounts of one resource


class Limits(NamedTuple):
    """A container's allowed range of one resource, as quantities in the policy's own notation."""

    low: Quantity | None = None
    high: Quantity | None = None
    high_is_global: bool = False


@dataclass(frozen=True, slots=True)
class Container:
    """One container of a registered VPA."""

    name: str
    slot: int
    resources: tuple[str, ...]
    cpu: Limits
    memory: Limits
    integer_cpu: bool
    sharing: int
    """How many containers divide the pod minimum."""

    def limits(self, resource: str) -> Limits:
        """The allowed range of ``cpu`` or ``memory``."""
        return self.cpu if resource == CPU else self.memory


@dataclass(frozen=True, slots=True)
class Registered:
    """What the roster knows of one VPA."""

    containers: tuple[Container, ...]
    views: Mapping[int, tuple[int, ...]]
    """Merged row → the rows that it merges."""


class Finals(NamedTuple):
    """One resource's final amounts: ``int64[4, n]`` (target, lower, upper bound, uncapped target), and what
    capped the first three: ``uint8[3, n]``."""

    amounts: Ints
    capped: NDArray[np.uint8]


@dataclass(frozen=True)
class Pass:
    """One pass over some slots: the slots, each slot's place among them, and the finals of each resource."""

    slots: Ints
    place: Ints
    finals: Mapping[str, Finals]


def allowed(vpa: VerticalPodAutoscaler, container: str, resource: str, settings: Estimation) -> Limits:
    """The range that policy and flags allow; the policy's own maximum wins over the flag's."""
    policy = policies.container_policy(vpa.spec.resource_policy, container)
    lows: ResourceList = (policy and policy.min_allowed) or {}
    highs: ResourceList = (policy and policy.max_allowed) or {}
    if resource in highs:
        return Limits(lows.get(resource), highs[resource])
    everywhere = settings.container_recommendation_max_allowed_memory
    if resource == CPU:
        everywhere = settings.container_recommendation_max_allowed_cpu
    return Limits(lows.get(resource), everywhere, high_is_global=True)


def controlled_resources(vpa: VerticalPodAutoscaler, container: str) -> tuple[str, ...]:
    """The resources recommended for a container; both unless its policy lists some."""
    policy = policies.container_policy(vpa.spec.resource_policy, container)
    if policy is None or policy.controlled_resources is None:
        return RESOURCES
    return tuple(resource for resource in RESOURCES if resource in policy.controlled_resources)


def wants_integer_cpu(vpa: VerticalPodAutoscaler, container: str, settings: Estimation) -> bool:
    """Whether the container's CPU is to be whole cores, by flag and annotation."""
    annotation = f"{INTEGER_CPU_PREFIX}{container}{INTEGER_CPU_SUFFIX}"
    return (
        settings.cpu_integer_post_processor_enabled
        and (vpa.metadata.annotations or {}).get(annotation) == "true"
    )


def round_up(amounts: Ints, multiple: int) -> Ints:
    """Each amount rounded up to a multiple; a multiple below 1 changes nothing."""
    if multiple <= 1:
        return amounts
    return (np.ceil(amounts.astype(np.float64) / multiple) * multiple).astype(np.int64)


def humanize(amount: int) -> Quantity:
    """Bytes with two decimals in the largest fitting unit, read back (``--humanize-memory``)."""
    for unit, suffix in ((1 << 40, "Ti"), (1 << 30, "Gi"), (1 << 20, "Mi"), (1 << 10, "Ki")):
        if amount >= unit:
            return Quantity.parse(f"{amount / unit:.2f}{suffix}")
    return Quantity.from_int(amount, BINARY_SI)


@lru_cache(maxsize=1 << 12)
def quantity(resource: str, amount: int) -> Quantity:
    """A whole amount of millicores or bytes as a quantity."""
    return Quantity.from_milli(amount) if resource == CPU else Quantity.from_int(amount, BINARY_SI)


class Roster:
    """All containers of all VPAs of a recommender, in slots; the caller gives each VPA's key."""

    def __init__(self, usage: Usage, settings: Estimation, *, capacity: int = 1024) -> None:
        self.usage = usage
        self.settings = settings
        self._vpas: dict[Hashable, Registered] = {}
        self._slots = Slots()
        self._live = np.zeros(capacity, dtype=np.bool_)
        self._row = np.zeros(capacity, dtype=np.int64)
        self._minimum = {resource: np.zeros(capacity, dtype=np.int64) for resource in RESOURCES}
        self._low = {resource: np.zeros(capacity, dtype=np.int64) for resource in RESOURCES}
        self._high = {resource: np.full(capacity, INT64_MAX, dtype=np.int64) for resource in RESOURCES}
        self._integer_cpu = np.zeros(capacity, dtype=np.bool_)
        self._published = {resource: np.full((4, capacity), -1, dtype=np.int64) for resource in RESOURCES}
        self._key_of: list[Hashable] = [None] * capacity

    def put(
        self, key: Hashable, vpa: VerticalPodAutoscaler, rows: Mapping[str, int | Sequence[int]]
    ) -> tuple[Container, ...]:
        """Register a VPA, or anew after a change: container name → its row, or the rows that it merges.

        Containers whose policy is ``Off`` are left out, and so don't share in the pod minimum.
        """
        self.drop(key)
        names = sorted(name for name in rows if not policies.is_off(vpa.spec.resource_policy, name))
        slots = self._slots.take(len(names))
        self._reserve(self._slots.used)
        views = {}
        containers = []
        for name, slot in zip(names, slots.tolist(), strict=True):
            given = rows[name]
            sources = (given,) if isinstance(given, int | np.integer) else tuple(given)
            row = sources[0]
            if len(sources) > 1:
                row = int(self.usage.new_rows(1, 0)[0])
                views[row] = sources
            container = Container(
                name=name,
                slot=slot,
                resources=controlled_resources(vpa, name),
                cpu=allowed(vpa, name, CPU, self.settings),
                memory=allowed(vpa, name, MEMORY, self.settings),
                integer_cpu=wants_integer_cpu(vpa, name, self.settings),
                sharing=len(names),
            )
            self._fill(container, row)
            self._key_of[slot] = key
            containers.append(container)
        self._vpas[key] = Registered(tuple(containers), views or _NO_VIEWS)
        return self._vpas[key].containers

    def drop(self, key: Hashable) -> None:
        """Forget a VPA; its rows stay."""
        registered = self._vpas.pop(key, None)
        if registered is None:
            return
        slots = np.array([container.slot for container in registered.containers], dtype=np.int64)
        self._live[slots] = False
        self._slots.give_back(slots)
        if registered.views:
            self.usage.free_rows(np.array(list(registered.views), dtype=np.int64))

    def containers(self, key: Hashable) -> tuple[Container, ...]:
        """The containers of a registered VPA, by name."""
        return self._vpas[key].containers

    def confidence(self, key: Hashable) -> float:
        """How many days of data the VPA's containers have, the least of them; 0 without containers."""
        rows = self._row[[container.slot for container in self._vpas[key].containers]]
        if len(rows) == 0:
            return 0.0
        return float(estimators.confidence(self.usage, rows, DAY).min())

    def row(self, container: Container) -> int:
        """The row that a container's numbers come from; a merged one is up to date after :meth:`finals`."""
        return int(self._row[container.slot])

    def _reserve(self, count: int) -> None:
        have = len(self._live)
        if count <= have:
            return
        extra = max(count, 2 * have) - have
        self._live = np.append(self._live, np.zeros(extra, dtype=np.bool_))
        self._integer_cpu = np.append(self._integer_cpu, np.zeros(extra, dtype=np.bool_))
        self._row = np.append(self._row, np.zeros(extra, dtype=np.int64))
        for columns in (self._minimum, self._low, self._high):
            for resource in RESOURCES:
                columns[resource] = np.append(columns[resource], np.zeros(extra, dtype=np.int64))
        self._key_of += [None] * extra
        for resource in RESOURCES:
            published = np.full((4, have + extra), -1, dtype=np.int64)
            published[:, :have] = self._published[resource]
            self._published[resource] = published

    def _fill(self, container: Container, row: int) -> None:
        slot = container.slot
        self._live[slot] = True
        self._row[slot] = row
        self._integer_cpu[slot] = container.integer_cpu
        for resource in RESOURCES:
            limits = container.limits(resource)
            minimum = estimators.minimum_amount(self.settings, resource, container.sharing)
            self._minimum[resource][slot] = minimum
            self._low[resource][slot] = _ceiling(resource, limits.low)
            self._high[resource][slot] = _floor(resource, limits.high)
            self._published[resource][:, slot] = -1

    def slots(self, keys: Iterable[Hashable] | None = None) -> Ints:
        """The slots of the given VPAs, or of all."""
        if keys is None:
            return np.flatnonzero(self._live)
        return np.array([c.slot for key in keys for c in self._vpas[key].containers], dtype=np.int64)

    def run(self, keys: Sequence[Hashable] | None = None) -> Pass:
        """The tick: final integers of all containers of the given VPAs, or of all VPAs."""
        for key in self._vpas if keys is None else keys:
            for view, sources in self._vpas[key].views.items():
                merge_rows(self.usage, view, sources)
        slots = self.slots(keys)
        place = np.full(len(self._live), -1, dtype=np.int64)
        place[slots] = np.arange(len(slots))
        return Pass(slots, place, {resource: self._all_finals(resource, slots) for resource in RESOURCES})

    def _all_finals(self, resource: str, slots: Ints) -> Finals:
        amounts = np.empty((_UNCAPPED + 1, len(slots)), dtype=np.int64)
        capped = np.empty((_UNCAPPED, len(slots)), dtype=np.uint8)
        for start in range(0, len(slots), _PART):
            part = slice(start, start + _PART)
            amounts[:, part], capped[:, part] = self.finals(resource, slots[part])
        return Finals(amounts, capped)

    def finals(self, resource: str, slots: Ints, trace: estimators.Trace | None = None) -> Finals:
        """Final integers of one resource for the given slots, through every step."""
        settings = self.settings
        estimated = estimators.estimate(
            self.usage,
            self._row[slots],
            resource=resource,
            minimum=self._minimum[resource][slots],
            settings=settings,
            trace=trace,
        )
        note = trace.note if trace is not None else _ignore
        multiple = settings.round_cpu_millicores if resource == CPU else settings.round_memory_bytes
        down = up = note(ROUNDING, round_up(estimated, multiple))
        if resource == MEMORY and settings.humanize_memory:
            down, up = _humanized(up)
            note(HUMANIZING, up)
        elif resource == CPU and settings.cpu_integer_post_processor_enabled:
            whole = self._integer_cpu[slots]
            down = up = note(WHOLE_CORES, np.where(whole, round_up(up, 1000), up))
        low, high = self._low[resource][slots], self._high[resource][slots]
        raised = down < low
        bounded = note(MIN_ALLOWED, np.where(raised, low, up))
        lowered = bounded > high
        amounts = np.vstack((note(MAX_ALLOWED, np.where(lowered, high, bounded)), up[:1]))
        capped = np.where(raised, np.uint8(CAPPED_TO_MIN), np.uint8(NOT_CAPPED))
        capped[lowered] = CAPPED_TO_MAX
        return Finals(amounts, capped)

    def recommendation(self, key: Hashable, run: Pass) -> Recommendation:
        """What the VPA's status says after a pass."""
        containers = [self._container(container, run) for container in self._vpas[key].containers]
        return Recommendation(container_recommendations=containers or None)

    def _container(self, container: Container, run: Pass) -> ContainerRecommendation:
        lists: tuple[ResourceList, ...] = ({}, {}, {}, {})
        place = int(run.place[container.slot])
        for resource in container.resources:
            amounts, capped = run.finals[resource]
            limits = container.limits(resource)
            for kind, values in enumerate(lists):
                by = capped[kind, place] if kind < _UNCAPPED else NOT_CAPPED
                if by == CAPPED_TO_MIN and limits.low is not None:
                    values[resource] = limits.low
                elif by == CAPPED_TO_MAX and limits.high is not None:
                    values[resource] = limits.high
                else:
                    values[resource] = self._quantity(resource, int(amounts[kind, place]))
        target, lower, upper, uncapped = lists
        return ContainerRecommendation(
            container_name=container.name,
            target=target,
            lower_bound=lower or None,
            upper_bound=upper or None,
            uncapped_target=uncapped or None,
        )

    def _quantity(self, resource: str, amount: int) -> Quantity:
        if resource == MEMORY and self.settings.humanize_memory:
            return humanize(amount)
        return quantity(resource, amount)

    # What was written

    def mark_published(self, key: Hashable, run: Pass) -> None:
        """Remember that the numbers of this pass are in the VPA's status."""
        slots = np.array([container.slot for container in self._vpas[key].containers], dtype=np.int64)
        for resource in RESOURCES:
            self._published[resource][:, slots] = run.finals[resource].amounts[:, run.place[slots]]

    def moved(self, run: Pass, threshold: float) -> tuple[set[Hashable], set[Hashable]]:
        """VPAs with a stale status: (a target changed or a bound moved by *threshold*, any other change)."""
        clearly = np.zeros(len(run.slots), dtype=np.bool_)
        slightly = np.zeros(len(run.slots), dtype=np.bool_)
        for resource in RESOURCES:
            now, before = run.finals[resource].amounts, self._published[resource][:, run.slots]
            changed = now != before
            far = changed & (np.abs(now - before) >= threshold * np.abs(before))
            clearly |= changed[0] | changed[_UNCAPPED] | far.any(axis=0)
            slightly |= changed.any(axis=0)
        keys = self._key_of
        important = {keys[slot] for slot in run.slots[clearly].tolist()}
        return important, {keys[slot] for slot in run.slots[slightly & ~clearly].tolist()} - important


def _ignore(_name: str, amounts: Ints) -> Ints:
    return amounts


def _humanized(amounts: Ints) -> tuple[Ints, Ints]:
    """Humanized bytes, rounded down and up: they may be fractions of a byte."""
    quantities = [humanize(amount) for amount in amounts.ravel().tolist()]
    down = np.array([q.nanos // 10**9 for q in quantities], dtype=np.int64)
    up = np.array([q.value() for q in quantities], dtype=np.int64)
    return down.reshape(amounts.shape), up.reshape(amounts.shape)


def merge_rows(usage: Usage, view: int, sources: Sequence[int]) -> None:
    """Make row *view* the sum of *sources*, which stay as they are."""
    usage.clear_rows(np.array([view], dtype=np.int64))
    scratch = usage.new_rows(1, 0)
    for source in sources:
        usage.copy(source, int(scratch[0]))
        usage.merge(view, int(scratch[0]))
    usage.free_rows(scratch)


def _ceiling(resource: str, low: Quantity | None) -> int:
    """The least whole amount that is not below *low*; no bound, or zero, gives 0."""
    return 0 if low is None or low.is_zero else _int64(low.milli() if resource == CPU else low.value())


def _floor(resource: str, high: Quantity | None) -> int:
    """The largest whole amount that is not above *high*; no bound, or zero, gives no limit."""
    if high is None or high.is_zero:
        return INT64_MAX
    return _int64(high.nanos // (10**6 if resource == CPU else 10**9))


def _int64(amount: int) -> int:
    return max(-INT64_MAX, min(amount, INT64_MAX))
