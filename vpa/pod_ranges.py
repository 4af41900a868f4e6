"""What a LimitRange of type ``Pod`` leaves of a recommendation: all containers share one bound."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from vpa.actual import Actual
from vpa.objects.autoscalers import ContainerRecommendation
from vpa.objects.limits import LimitRangeItem
from vpa.objects.meta import ResourceList
from vpa.quantities import Quantity
from vpa.rules import Rules
from vpa.scaling import CPU, MOST, RESOURCES, amount, proportional, proportional_limit, quantity_of

_ZERO = Quantity(0, "", exponent=0)


@dataclass(slots=True)
class Work:
    """A container recommendation while it is being capped; ``None`` is a bound that was never given."""

    name: str
    target: ResourceList | None
    lower: ResourceList | None
    upper: ResourceList | None
    uncapped: ResourceList | None

    @classmethod
    def of(cls, recommendation: ContainerRecommendation) -> Work:
        return cls(
            name=recommendation.container_name,
            target=_copy(recommendation.target),
            lower=_copy(recommendation.lower_bound),
            upper=_copy(recommendation.upper_bound),
            uncapped=recommendation.uncapped_target,
        )

    def done(self) -> ContainerRecommendation:
        return ContainerRecommendation(
            container_name=self.name,
            target=self.target,
            lower_bound=self.lower,
            upper_bound=self.upper,
            uncapped_target=self.uncapped,
        )


def _copy(resources: ResourceList | None) -> ResourceList | None:
    return None if resources is None else dict(resources)


@dataclass(slots=True)
class _Share:
    """One container's part: where its value is kept (``None``: it may not change), and what it has."""

    values: ResourceList | None
    request: Quantity
    limit: Quantity
    value: Quantity


def fit_pod_range(
    works: list[Work], names: list[str], actual: Mapping[str, Actual], item: LimitRangeItem, *, rules: Rules
) -> list[Work]:
    """Scale the bounds and targets of *works*, the containers *names* of a pod, to *item*."""
    if rules.spare_unmanaged_containers:
        strained = [resource for resource in RESOURCES if _breaks_as_written(resource, names, actual, item)]
        if strained:
            works = [*works, *_requests_as_recommendations(works, names, actual, strained)]
    else:
        works = [*works, *_requests_as_recommendations(works, names, actual, None)]
    by_name: dict[str, Work] = {}
    for work in works:
        by_name.setdefault(work.name, work)
    for bound in ("upper", "target", "lower"):
        for resource in RESOURCES:
            shares = [_share(bound, resource, by_name.get(name), actual[name], rules) for name in names]
            _scale(resource, shares, item, rules)
    return works


def _breaks_as_written(
    resource: str, names: list[str], actual: Mapping[str, Actual], item: LimitRangeItem
) -> bool:
    """Do the limits that the pod's owner wrote exceed the maximum already?"""
    most = (item.max or {}).get(resource)
    written = sum(limit.nanos for name in names if (limit := (actual[name].limits or {}).get(resource)))
    return most is not None and 0 < most.nanos < written


def _requests_as_recommendations(
    works: list[Work], names: list[str], actual: Mapping[str, Actual], only: list[str] | None
) -> list[Work]:
    """Containers without a recommendation count with their requests, and are scaled like the others."""
    known = {work.name for work in works}
    added = []
    for name in names:
        requests = actual[name].requests
        if only is not None and requests:
            requests = {resource: requests[resource] for resource in only if resource in requests}
        if name not in known and requests:
            added.append(Work(name=name, target=dict(requests), lower=None, upper=None, uncapped=None))
    return added


def _share(bound: str, resource: str, work: Work | None, actual: Actual, rules: Rules) -> _Share:
    request = (actual.requests or {}).get(resource, _ZERO)
    limit = (actual.limits or {}).get(resource, _ZERO)
    values: ResourceList | None = getattr(work, bound) if work is not None else None
    if work is None:
        return _Share(None, request, limit, request)
    if rules.spare_unmanaged_containers and resource not in (values or ()):
        return _Share(None, request, limit, request)
    return _Share(values, request, limit, (values or {}).get(resource, _ZERO))


def _scale(resource: str, shares: list[_Share], item: LimitRangeItem, rules: Rules) -> None:
    """Bring the sums of *shares* between the minimum and the maximum of *item*, in place."""
    least = (item.min or {}).get(resource, _ZERO)
    most = (item.max or {}).get(resource, _ZERO)
    default = (item.default or {}).get(resource, _ZERO)
    limits, fixed_limits, values, fixed_values = 0, 0, 0, 0
    for share in shares:
        limit, _ = proportional_limit(
            resource,
            limit=share.limit,
            request=share.request,
            recommended=share.value,
            default=default,
            rules=rules,
        )
        nanos = limit.nanos if limit is not None else 0
        limits += nanos
        values += share.value.nanos
        if share.values is None:
            fixed_limits += nanos
            fixed_values += share.value.nanos
    if least.nanos <= limits and least.nanos <= values and (most.is_zero or most.nanos >= limits):
        return
    if limits == 0:
        return
    if least.nanos > values:
        total, whole, up = least.nanos, values, True
        fixed = fixed_values
    else:
        total, whole, up = (most.nanos if 0 < most.nanos < limits else least.nanos), limits, False
        fixed = fixed_limits
    if rules.spare_unmanaged_containers:
        total, whole = total - fixed, whole - fixed
        if total <= 0 or whole <= 0:
            return
    wanted, present = Quantity(total), Quantity(whole)
    for share in shares:
        if share.values is not None:
            share.values[resource] = _scaled(resource, share.value, present, wanted, up, rules)


def _scaled(
    resource: str, value: Quantity, whole: Quantity, total: Quantity, up: bool, rules: Rules
) -> Quantity:
    """``value × total / whole``: up to the minimum, or down to the maximum."""
    exact = rules.whole_shares
    if amount(resource, whole, exact=exact) == 0:
        return value
    result = proportional(
        resource, value, whole, total, exact=exact, round_up=up and (exact or resource == CPU)
    )
    if result is None:
        return quantity_of(resource, MOST, value.format)
    if exact or resource == CPU or up or result.nanos > 0:
        return result
    # Upstream takes 999 thousandths off and rounds away from zero: nothing becomes -1.
    return Quantity.from_int(result.value() - 1, result.format)
