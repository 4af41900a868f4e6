"""What a LimitRange of type ``Pod`` leaves of a recommendation: all containers share one bound."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from vpa.objects.autoscalers import ContainerRecommendation
from vpa.objects.limits import LimitRangeItem
from vpa.objects.meta import ResourceList
from vpa.quantities import Quantity
from vpa.rules import Rules
from vpa.sizes.actual import Actual
from vpa.sizes.scaling import CPU, MOST, RESOURCES, amount, proportional, proportional_limit, quantity_of

_ZERO = Quantity(0, "", exponent=0)


class UpstreamFailsError(Exception):
    """Upstream crashes on this pod; only under its rules."""


@dataclass(slots=True)
class Work:
    """A container recommendation while it is being capped; ``None`` is a bound that was never given."""

    name: str
    target: ResourceList | None
    lower: ResourceList | None
    upper: ResourceList | None
    uncapped: ResourceList | None

    @classmethod
    def of(cls, recommendation: ContainerRecommendation, *, bounds: bool = True) -> Work:
        """*bounds* False leaves lower and upper bound out."""
        return cls(
            name=recommendation.container_name,
            target=_copy(recommendation.target),
            lower=_copy(recommendation.lower_bound) if bounds else None,
            upper=_copy(recommendation.upper_bound) if bounds else None,
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
    """One container's part of one resource.

    ``values`` is where its value is kept; ``None``: it may not change. ``limit`` is what counts as its limit,
    in nanos. ``follows``: the limit changes with the value.
    """

    values: ResourceList | None
    value: Quantity
    limit: int
    follows: bool


def fit_pod_range(
    works: list[Work],
    names: list[str],
    actual: Mapping[str, Actual],
    item: LimitRangeItem,
    *,
    fixed: Collection[str] = (),
    requests_only: Collection[str] = (),
    rules: Rules,
) -> list[Work]:
    """Scale the bounds and targets of *works* to *item*; the pod has the containers *names*.

    Those that are *fixed* never change; the limits of those that are *requests_only* stay as they are.
    """
    resources: tuple[str, ...] = RESOURCES
    if rules.spare_unmanaged_containers:
        resources = tuple(name for name in RESOURCES if _breaks_as_written(name, names, actual, item))
    if resources:
        others = [name for name in names if name not in fixed]
        works = [*works, *_requests_as_recommendations(works, others, actual, resources, rules)]
    by_name: dict[str, Work] = {}
    for work in works:
        by_name.setdefault(work.name, work)
    for bound in ("upper", "target", "lower"):
        for resource in RESOURCES:
            shares = [
                _share(
                    resource,
                    actual[name],
                    getattr(by_name[name], bound) if name in by_name else None,
                    known=name in by_name,
                    follows=name not in requests_only,
                    item=item,
                    rules=rules,
                )
                for name in names
            ]
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
    works: list[Work],
    names: list[str],
    actual: Mapping[str, Actual],
    resources: Collection[str],
    rules: Rules,
) -> list[Work]:
    """Containers without a recommendation count with their requests, and are scaled like the others."""
    known = {work.name for work in works}
    added = []
    for name in names:
        requests = actual[name].requests
        if rules.spare_unmanaged_containers and requests:
            requests = {resource: requests[resource] for resource in resources if resource in requests}
        if name not in known and requests:
            added.append(Work(name=name, target=dict(requests), lower=None, upper=None, uncapped=None))
    return added


def _share(
    resource: str,
    actual: Actual,
    values: ResourceList | None,
    *,
    known: bool,
    follows: bool,
    item: LimitRangeItem,
    rules: Rules,
) -> _Share:
    """The part of a container whose recommendation is *known*, with the given *values* of one bound."""
    request = (actual.requests or {}).get(resource, _ZERO)
    limit = (actual.limits or {}).get(resource, _ZERO)
    default = (item.default or {}).get(resource, _ZERO)
    changes = known and ((values is not None and resource in values) or not rules.spare_unmanaged_containers)
    value = (values or {}).get(resource, _ZERO) if changes else request
    if rules.spare_unmanaged_containers and not (changes and follows):
        return _Share(values if changes else None, value, (default if limit.is_zero else limit).nanos, False)
    following, _ = proportional_limit(
        resource, limit=limit, request=request, recommended=value, default=default, rules=rules
    )
    return _Share(values if changes else None, value, 0 if following is None else following.nanos, changes)


def _scale(resource: str, shares: list[_Share], item: LimitRangeItem, rules: Rules) -> None:
    """Bring the sums of *shares* between the minimum and the maximum of *item*, in place."""
    least = (item.min or {}).get(resource, _ZERO).nanos
    most = (item.max or {}).get(resource, _ZERO).nanos
    limits = sum(share.limit for share in shares)
    values = sum(share.value.nanos for share in shares)
    if least <= limits and least <= values and (most == 0 or most >= limits):
        return
    if limits == 0:
        return
    up = least > values
    if up:
        total, whole = least, values
        scaled = [share for share in shares if share.values is not None or share.follows]
        others = values - sum(share.value.nanos for share in scaled)
    else:
        total, whole = (most if 0 < most < limits else least), limits
        scaled = shares
        if rules.spare_unmanaged_containers:
            scaled = [share for share in shares if share.follows and share.limit]
        others = limits - sum(share.limit for share in scaled)
    if rules.spare_unmanaged_containers:
        total, whole = total - others, whole - others
        if total <= 0 or whole <= 0:
            return
    wanted, present = Quantity(total), Quantity(whole)
    for share in scaled:
        if share.values is None:
            raise UpstreamFailsError(
                f"under upstream's rules a LimitRange of type Pod for {resource} cannot be applied to "
                "containers without recommendation or bounds"
            )
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
    if exact and result.is_zero and not value.is_zero:
        return quantity_of(resource, 1, value.format)
    if exact or resource == CPU or up or result.nanos > 0:
        return result
    # Upstream takes 999 thousandths off and rounds away from zero: nothing becomes -1.
    return Quantity.from_int(result.value() - 1, result.format)
