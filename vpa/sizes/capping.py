"""From a VPA's recommendation to what one pod may have: LimitRanges, policies, container limits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from vpa.objects.autoscalers import (
    ContainerPolicy,
    ContainerRecommendation,
    ResourcePolicy,
    VerticalPodAutoscaler,
)
from vpa.objects.limits import LimitRangeItem
from vpa.objects.meta import ResourceList
from vpa.objects.pods import Pod
from vpa.policies import REQUESTS_ONLY, container_policy, controlled_values, whole
from vpa.quantities import MILLI, Quantity
from vpa.reasons import Reason, Refusal
from vpa.rules import Rules
from vpa.sizes.actual import NOTHING, Actual, actual_resources
from vpa.sizes.limit_ranges import Ranges
from vpa.sizes.managed import LeftAlone, managed, untouchable
from vpa.sizes.pod_ranges import UpstreamFailsError, Work, fit_pod_range
from vpa.sizes.scaling import RESOURCES, boundary_request, listed

BY_LIMIT_RANGE: Final = "LimitRange"
BY_POLICY: Final = "policy"
BY_LIMIT: Final = "container limit"
BY_POD_RESOURCES: Final = "pod-level resources"
BY_NODE: Final = "node"

MIN_RANGE: Final = "capped to fit Min in container LimitRange"
MAX_RANGE: Final = "capped to fit Max in container LimitRange"
MIN_ALLOWED: Final = "capped to minAllowed"
MAX_ALLOWED: Final = "capped to maxAllowed"
CONTAINER_LIMIT: Final = "capped to container limit"


class CappingError(ValueError):
    """There is nothing that could be capped."""


@dataclass(frozen=True, slots=True)
class Cap:
    """One step of a value: what changed it, from what to what. ``note`` is the text for the pod."""

    container: str
    resource: str
    by: str
    before: Quantity
    after: Quantity
    note: str


@dataclass(slots=True)
class Capped:
    """Recommendations as one pod may have them; ``None`` if the VPA has neither recommendation nor policy.

    They are also ``None`` where upstream's rules cannot be applied, with ``refusal`` saying why.
    """

    recommendations: list[ContainerRecommendation] | None = None
    notes: dict[str, list[str]] = field(default_factory=dict)
    caps: list[Cap] = field(default_factory=list)
    left_alone: list[LeftAlone] = field(default_factory=list)
    refusal: Refusal | None = None


def capped(
    vpa: VerticalPodAutoscaler | None,
    pod: Pod | None,
    ranges: Ranges,
    *,
    rules: Rules,
    actual: Mapping[str, Actual] | None = None,
    bounds: bool = True,
) -> Capped:
    """What of *vpa*'s recommendation *pod* may have. Containers that the pod lacks are left out.

    *bounds* False computes targets only.
    """
    if vpa is None:
        raise CappingError("cannot process nil vpa")
    if pod is None:
        raise CappingError("cannot process nil pod")
    policy = vpa.spec.resource_policy
    recommendation = vpa.status.recommendation if vpa.status else None
    if recommendation is None and policy is None:
        return Capped()
    actual = actual_resources(pod) if actual is None else actual
    names = [container.name for container in pod.spec.containers or ()]
    given = (recommendation and recommendation.container_recommendations) or ()
    entries, left_alone = managed(given, pod, policy, rules=rules)
    works = [Work.of(entry, bounds=bounds) for entry in entries]
    done: list[ContainerRecommendation] = []
    result = Capped(recommendations=done, left_alone=left_alone)
    if ranges.pod is not None:
        before = {work.name: dict(work.target or {}) for work in works}
        fixed = untouchable(pod, policy, rules=rules)
        try:
            works = fit_pod_range(
                works,
                names,
                actual,
                ranges.pod,
                fixed=fixed,
                requests_only=_requests_only(names, policy) if rules.range_without_ratio else (),
                rules=rules,
            )
        except UpstreamFailsError as error:
            return Capped(refusal=Refusal(Reason.UPSTREAM_FAILS, str(error)))
        result.caps.extend(_pod_caps(before, works))
    for work in works:
        if work.name in names:
            container = container_policy(policy, work.name)
            _cap(work, actual.get(work.name, NOTHING), container, ranges, rules, result)
            done.append(work.done())
    return result


def _requests_only(names: list[str], policy: ResourcePolicy | None) -> set[str]:
    return {name for name in names if controlled_values(policy, name) == REQUESTS_ONLY}


def _pod_caps(before: Mapping[str, ResourceList], works: list[Work]) -> list[Cap]:
    """What the Pod LimitRange changed; upstream's texts do not mention it."""
    return [
        Cap(work.name, resource, BY_LIMIT_RANGE, before[work.name][resource], value, "")
        for work in works
        for resource, value in (work.target or {}).items()
        if resource in before.get(work.name, ()) and before[work.name][resource] != value
    ]


def _cap(
    work: Work,
    actual: Actual,
    policy: ContainerPolicy | None,
    ranges: Ranges,
    rules: Rules,
    result: Capped,
) -> None:
    """Cap target and bounds of one container; only what happens to the target is noted."""
    requests_only = policy is not None and policy.controlled_values == REQUESTS_ONLY
    caps: list[Cap] = []
    for values in (work.target, work.lower, work.upper):
        if not values:
            continue
        found: list[Cap] | None = [] if values is work.target else None
        if ranges.container is not None:
            _cap_to_range(work.name, values, actual, ranges.container, requests_only, rules, found)
        if policy is not None:
            _cap_to_policy(work.name, values, policy, rules, found)
        if requests_only:
            _cap_to_limits(work.name, values, actual.limits, rules, found)
        if found:
            caps = found
    if rules.ordered_bounds:
        _order(work)
    if caps:
        result.caps.extend(caps)
        result.notes[work.name] = [cap.note for cap in caps]


def _order(work: Work) -> None:
    """Lower bound at most the target, upper bound at least the target."""
    for resource, target in (work.target or {}).items():
        if work.lower is not None and resource in work.lower:
            work.lower[resource] = min(work.lower[resource], target)
        if work.upper is not None and resource in work.upper:
            work.upper[resource] = max(work.upper[resource], target)


def _set(
    name: str, values: ResourceList, resource: str, new: Quantity, by: str, text: str, found: list[Cap] | None
) -> None:
    if found is not None:
        found.append(Cap(name, resource, by, values[resource], new, f"{resource} {text}"))
    values[resource] = new


def _cap_to_policy(
    name: str, values: ResourceList, policy: ContainerPolicy, rules: Rules, found: list[Cap] | None
) -> None:
    for resource in sorted(values):
        least = policy.min_allowed.get(resource) if policy.min_allowed else None
        most = policy.max_allowed.get(resource) if policy.max_allowed else None
        if rules.whole_bounds:
            least, most = least and whole(resource, least), most and whole(resource, most)
        if least is not None and not least.is_zero and values[resource] < least:
            _set(name, values, resource, least, BY_POLICY, MIN_ALLOWED, found)
        if most is not None and not most.is_zero and values[resource] > most:
            _set(name, values, resource, most, BY_POLICY, MAX_ALLOWED, found)


def _cap_to_limits(
    name: str, values: ResourceList, limits: ResourceList | None, rules: Rules, found: list[Cap] | None
) -> None:
    """With RequestsOnly the limit stays, so no request may exceed it."""
    for resource, limit in sorted((limits or {}).items()):
        value = values.get(resource)
        if value is None:
            continue
        if rules.limits_fit_int64:
            above = value.milli() > limit.milli()
        else:
            above = value.int64_value(MILLI) > limit.int64_value(MILLI)
        if above:
            _set(name, values, resource, limit, BY_LIMIT, CONTAINER_LIMIT, found)


def _cap_to_range(
    name: str,
    values: ResourceList,
    actual: Actual,
    item: LimitRangeItem,
    requests_only: bool,
    rules: Rules,
    found: list[Cap] | None,
) -> None:
    """Neither request nor the limit that follows it may leave the range."""
    for resource in sorted(values):
        if resource not in RESOURCES:
            continue
        if requests_only and rules.range_without_ratio:
            least, most = _plain_bounds(resource, actual, item)
        else:
            least, most = _ratio_bounds(resource, actual, item, rules)
        if not least.is_zero and values[resource] < least:
            _set(name, values, resource, least, BY_LIMIT_RANGE, MIN_RANGE, found)
        if not most.is_zero and values[resource] > most:
            _set(name, values, resource, most, BY_LIMIT_RANGE, MAX_RANGE, found)


def _ratio_bounds(
    resource: str, actual: Actual, item: LimitRangeItem, rules: Rules
) -> tuple[Quantity, Quantity]:
    """Bounds of the request such that the limit, in its old proportion, stays in the range; zero is none."""

    def boundary(bounds: ResourceList | None) -> Quantity:
        if bounds is None:
            return _ZERO
        found = boundary_request(
            resource,
            request=listed(actual.requests, resource),
            limit=listed(actual.limits, resource),
            boundary=listed(bounds, resource),
            default=listed(item.default, resource),
            rules=rules,
        )
        return found if found is not None else _ZERO

    least, most = boundary(item.min), boundary(item.max)
    return max(least, listed(item.min, resource)), most


def _plain_bounds(resource: str, actual: Actual, item: LimitRangeItem) -> tuple[Quantity, Quantity]:
    """Bounds of a request whose limit stays as it is: the minimum, and the lower of limit and maximum."""
    limit = (actual.limits or {}).get(resource) or (item.default or {}).get(resource)
    most = (item.max or {}).get(resource)
    candidates = [bound for bound in (limit, most) if bound is not None and not bound.is_zero]
    return listed(item.min, resource), min(candidates, default=_ZERO)


_ZERO: Final = Quantity(0, "", exponent=0)
