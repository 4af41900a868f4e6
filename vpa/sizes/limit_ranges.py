"""All LimitRanges of a namespace as one: what bounds a container, and what bounds a pod."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from vpa.objects.limits import LimitRange, LimitRangeItem
from vpa.objects.meta import ResourceList
from vpa.quantities import Quantity
from vpa.rules import Rules
from vpa.sizes.scaling import RESOURCES

CONTAINER: Final = "Container"
POD: Final = "Pod"


@dataclass(frozen=True, slots=True)
class Ranges:
    """The joint bounds of one namespace; ``None`` where no LimitRange says anything."""

    container: LimitRangeItem | None = None
    pod: LimitRangeItem | None = None


NO_RANGES: Final = Ranges()


def ranges_of(limit_ranges: Iterable[LimitRange], *, rules: Rules) -> Ranges:
    """The bounds that hold when all of *limit_ranges* (of one namespace) hold at once."""
    found = list(limit_ranges)
    if not found:
        return NO_RANGES
    if rules.defaults_per_resource:
        found.sort(key=lambda limit_range: limit_range.metadata.name)
    return Ranges(container=_joint(CONTAINER, found, rules), pod=_joint(POD, found, rules))


def ranges_by_namespace(limit_ranges: Iterable[LimitRange], *, rules: Rules) -> dict[str, Ranges]:
    """Namespace → its bounds, for namespaces that have a LimitRange."""
    found: dict[str, list[LimitRange]] = {}
    for limit_range in limit_ranges:
        found.setdefault(limit_range.metadata.namespace, []).append(limit_range)
    return {namespace: ranges_of(those, rules=rules) for namespace, those in found.items()}


def _joint(kind: str, limit_ranges: Iterable[LimitRange], rules: Rules) -> LimitRangeItem | None:
    """Lowest maximum, highest minimum, lowest ratio; the last default, or the first of each resource."""
    lowest: ResourceList | None = None
    highest: ResourceList | None = None
    default: ResourceList | None = None
    ratio: ResourceList | None = None
    for limit_range in limit_ranges:
        for item in limit_range.spec.limits or ():
            if item.type != kind:
                continue
            lowest = _merged(lowest, item.max, min)
            highest = _merged(highest, item.min, max)
            ratio = _merged(ratio, item.max_limit_request_ratio, min)
            if item.default is not None:
                first = default if default and rules.defaults_per_resource else {}
                default = {**item.default, **first}
    if not rules.admissible_pods:
        ratio = None
    if lowest is None and highest is None and default is None and ratio is None:
        return None
    return LimitRangeItem(type=kind, max=lowest, min=highest, default=default, max_limit_request_ratio=ratio)


def _merged(
    known: ResourceList | None,
    new: ResourceList | None,
    stricter: Callable[[Quantity, Quantity], Quantity],
) -> ResourceList | None:
    """*known* with the stricter of both values; resources other than CPU and memory only from the first."""
    if new is None:
        return known
    if known is None:
        return dict(new)
    for resource in RESOURCES:
        if resource in new:
            known[resource] = stricter(new[resource], known[resource]) if resource in known else new[resource]
    return known
