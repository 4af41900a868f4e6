"""The ratios between limits and requests that a template asks for, as far as LimitRanges allow them.

A limit follows its request in the ratio that the two have now. Where the API server refuses that ratio, a new
pod gets a lower limit. So it has another ratio once it runs, and would be given another target then, unless
the ratio of its template is lowered first.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from vpa.objects.meta import ResourceList
from vpa.sizes.actual import Actual
from vpa.sizes.bounds import Line, Range, figures, lowered
from vpa.sizes.limit_ranges import Ranges
from vpa.sizes.scaling import RESOURCES, quantity_of


def allowed_ratios(
    actual: Mapping[str, Actual], following: Collection[str], ranges: Ranges
) -> dict[str, Actual]:
    """*actual* with the limits of the containers *following* no higher than the ratios of *ranges* allow."""
    found = dict(actual)
    defaults = (ranges.container.default if ranges.container else None) or {}
    for resource in RESOURCES:
        container, pod = Range.of(resource, ranges.container), Range.of(resource, ranges.pod)
        if container.ratio is None and pod.ratio is None:
            continue
        lines = [_line(resource, name, one, defaults, name in following) for name, one in found.items()]
        lower = _allowed(lines, container, pod)
        for name, limit in lower.items():
            requests, limits = found[name]
            written = (limits or {}).get(resource) or defaults[resource]
            new = quantity_of(resource, limit, written.format)
            found[name] = Actual(requests, {**(limits or {}), resource: new})
    return found


def _line(resource: str, name: str, actual: Actual, defaults: ResourceList, follows: bool) -> Line:
    request, limit = figures(resource, actual.requests, {**defaults, **(actual.limits or {})})
    ours = follows and limit is not None and 0 < request <= limit
    return Line(name=name, managed=ours, follows=ours, request=request, limit=limit)


def _allowed(lines: Sequence[Line], container: Range, pod: Range) -> dict[str, int]:
    """Container → its limit, where that has to be lower."""
    written = [line.limit for line in lines]
    ours = [line for line in lines if line.follows]
    for line in ours:
        highest = container.highest_limit(line.request)
        if line.limit is not None and highest is not None:
            line.limit = max(min(line.limit, highest), line.request)
    most = pod.highest_limit(sum(line.request for line in lines))
    if most is not None:
        limits = lowered(ours, sum(line.limit or 0 for line in lines) - most)
        for line, limit in zip(ours, limits or (), strict=limits is not None):
            line.limit = limit
    return {
        line.name: line.limit
        for line, limit in zip(lines, written, strict=True)
        if line.limit is not None and line.limit != limit
    }
