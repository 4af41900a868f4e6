"""The last step of sizing a pod: what LimitRanges, pod-level resources and nodes leave of the wanted sizes.

The API server refuses a pod that breaks one of them, so they win over container policies. Requests give way
in proportion; a limit that follows its request gives way first where only the limit is too large. A resource
for which nothing fits is left as it is.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from vpa.objects.meta import ResourceList
from vpa.objects.pods import Pod
from vpa.reasons import Reason, Refusal
from vpa.sizes.actual import Actual
from vpa.sizes.bounds import CONTAINER_RANGE, POD_RANGE, POD_RESOURCES, Bounds, Line, figures, lowered
from vpa.sizes.capping import BY_LIMIT_RANGE, BY_NODE, BY_POD_RESOURCES, Cap
from vpa.sizes.limit_ranges import Ranges
from vpa.sizes.managed import LeftAlone
from vpa.sizes.scaling import MOST, RESOURCES, amount, quantity_of, whole_units
from vpa.sizes.shares import grow, shrink

NEAR: Final = 10
"""A running pod that a LimitRange bounds is left at sizes that are wrong by less than one part in so many.

The ratios that its limits have now are not exactly those of its template; a new pod would be no better.
"""

_BY: Final = {
    CONTAINER_RANGE: BY_LIMIT_RANGE,
    POD_RANGE: BY_LIMIT_RANGE,
    POD_RESOURCES: BY_POD_RESOURCES,
    BY_NODE: BY_NODE,
}


@dataclass(slots=True)
class Sizes:
    """What one container shall have; both maps hold only what is to be set, ``notes`` the pod's texts."""

    name: str
    requests: ResourceList
    limits: ResourceList
    notes: list[str]

    def copy(self) -> Sizes:
        return Sizes(self.name, dict(self.requests), dict(self.limits), list(self.notes))

    def leave(self, resource: str) -> None:
        """Set nothing of *resource*, and say nothing about it."""
        self.requests.pop(resource, None)
        self.limits.pop(resource, None)
        self.notes = [note for note in self.notes if note.partition(" ")[0].rstrip(":") != resource]


def fit(
    parts: Sequence[Sizes],
    pod: Pod,
    actual: Mapping[str, Actual],
    ranges: Ranges,
    room: Mapping[str, int] | None,
    settle: Collection[str] = (),
) -> tuple[list[Cap], list[LeftAlone]]:
    """Make *parts*, all containers of *pod* in order, fit; return what that changed, and what nothing fits.

    *room* is the most that a node can hold of the pod, in nanos by resource. Where a LimitRange had a say
    (here, or before for the resources that *settle* names), sizes that are near the present ones give way
    to them, so that a pod that was fitted is not fitted again.
    """
    caps: list[Cap] = []
    alone: list[LeftAlone] = []
    for resource in RESOURCES:
        if not any(resource in part.requests for part in parts):
            continue
        fitting = _Fitting(resource, parts, pod, actual, ranges, room)
        broken = fitting.run(resource in settle)
        if broken is None:
            caps.extend(fitting.write_back())
            continue
        why = Refusal(
            Reason.NO_SIZE_FITS,
            f"no {resource} of this pod's containers would satisfy {broken}, so it stays as it is",
        )
        for part in parts:
            if resource in part.requests:
                part.leave(resource)
                alone.append(LeftAlone(part.name, resource, why))
    return caps, alone


class _Fitting:
    """The lines of one resource, and what bounds them."""

    def __init__(
        self,
        resource: str,
        parts: Sequence[Sizes],
        pod: Pod,
        actual: Mapping[str, Actual],
        ranges: Ranges,
        room: Mapping[str, int] | None,
    ) -> None:
        self.resource = resource
        self.parts = parts
        self.actual = actual
        self.placed = bool(pod.spec.node_name)
        self.lines = [self._line(part, actual[part.name]) for part in parts]
        self.managed = [line for line in self.lines if line.managed]
        self.others = [line for line in self.lines if not line.managed]
        self.before = [(line.request, line.limit) for line in self.lines]
        self.bounds = Bounds.of(resource, pod.spec, ranges)
        overhead = (pod.spec.overhead or {}).get(resource)
        taken = 0 if overhead is None else amount(resource, overhead)
        self.room = (
            None if room is None or resource not in room else whole_units(resource, room[resource]) - taken
        )
        self.why: dict[str, str] = {}
        """Container → what changed its size."""

    def _line(self, part: Sizes, actual: Actual) -> Line:
        resource = self.resource
        managed = resource in part.requests
        request, limit = figures(
            resource, {**(actual.requests or {}), **part.requests}, {**(actual.limits or {}), **part.limits}
        )
        follows = managed and resource in part.limits
        return Line(name=part.name, managed=managed, follows=follows, request=request, limit=limit)

    def run(self, settle: bool) -> str | None:
        """Bring the lines within all bounds; return what they still break, ``None`` if they fit."""
        bounds = self.bounds
        for line in self.managed:
            self._fit_container(line)
        self._fit_requests(POD_RESOURCES, bounds.level_requests, bounds.requests.sidecars)
        self._fit_requests(BY_NODE, self.room, bounds.requests.sidecars)
        self._fit_requests(POD_RANGE, bounds.requests.left(bounds.pod.most), 0)
        self._fit_pod_limits()
        self._raise_to_pod_minimum()
        self._fit_pod_ratio()
        if (settle or self.why) and self._is_near_enough():
            self._keep_present()
        return bounds.broken(self.lines)

    def _fit_container(self, line: Line) -> None:
        """LimitRange of the container, pod-level limit, and a request that is not above its limit."""
        own, level = self.bounds.container, self.bounds.level_limits
        tops = [bound for bound in (own.most, level) if bound is not None]
        reason = CONTAINER_RANGE if own.most is not None and own.most == min(tops) else POD_RESOURCES
        line.least = max(own.least or 0, min(line.request, 1))
        if not line.follows and line.limit is not None:
            tops.append(line.limit)
            line.least = max(line.least, own.lowest_request(line.limit))
        line.most = min(tops, default=None)
        if line.request < line.least:
            self._change(line, line.least, CONTAINER_RANGE)
        if line.most is not None and line.request > line.most:
            self._change(line, line.most, reason)
        if line.follows and line.limit is not None:
            tallest = own.highest_limit(line.request)
            if tallest is not None and line.limit > tallest:
                self._change_limit(line, tallest, CONTAINER_RANGE)
            self._change_limit(line, max(line.limit, line.request, line.least), CONTAINER_RANGE)
            if line.most is not None:
                self._change_limit(line, min(line.limit, line.most), reason)

    def _change(self, line: Line, request: int, reason: str) -> None:
        if request != line.request:
            line.set_request(request)
            self.why[line.name] = reason

    def _change_limit(self, line: Line, limit: int, reason: str) -> None:
        if limit != line.limit:
            line.limit = limit
            self.why.setdefault(line.name, reason)

    def _fit_requests(self, reason: str, total: int | None, sidecars: int) -> None:
        """All requests and what *sidecars* take may be *total* at most."""
        if total is None:
            return
        left = total - sidecars - sum(line.request for line in self.others)
        values = [line.request for line in self.managed]
        shares = shrink(values, [line.least for line in self.managed], left)
        for line, share in zip(self.managed, shares or values, strict=True):
            self._change(line, share, reason)

    def _fit_pod_limits(self) -> None:
        """The sum of all limits may be the Pod LimitRange's maximum at most."""
        total = self.bounds.limits.left(self.bounds.pod.most)
        if total is None:
            return
        excess = sum(line.limit or 0 for line in self.lines) - total
        if excess <= 0 or self._lower_limits(excess):
            return
        ours = self._limited()
        excess -= sum((line.limit or 0) - line.request for line in ours)
        values = [line.request for line in ours]
        shares = shrink(values, [line.least for line in ours], sum(values) - excess)
        for line, share in zip(ours, shares or (), strict=bool(shares)):
            line.limit = line.request
            self._change(line, share, POD_RANGE)

    def _limited(self) -> list[Line]:
        """The containers whose limits are ours to set."""
        return [line for line in self.managed if line.follows and line.limit is not None]

    def _lower_limits(self, excess: int) -> bool:
        """Take *excess* from the limits as far as they are above their requests; False if too little."""
        ours = self._limited()
        limits = lowered(ours, excess)
        for line, limit in zip(ours, limits or (), strict=limits is not None):
            self._change_limit(line, limit, POD_RANGE)
        return limits is not None

    def _raise_to_pod_minimum(self) -> None:
        """Requests, and limits where there are any, reach the Pod LimitRange's minimum."""
        least = self.bounds.pod.least
        self._raise_requests(self.bounds.requests.missing(least))
        self._fit_pod_limits()
        ours = self._limited()
        tops = [_lower(line.most, self.bounds.container.highest_limit(line.request)) for line in ours]
        others = sum(line.limit or 0 for line in self.lines) - sum(line.limit or 0 for line in ours)
        wanted = grow([line.limit or 0 for line in ours], tops, self.bounds.limits.missing(least) - others)
        for line, limit in zip(ours, wanted, strict=True):
            self._change_limit(line, limit, POD_RANGE)

    def _raise_requests(self, total: int) -> None:
        """All requests together reach *total*, as far as each one's own bounds let them."""
        ours = [line for line in self.managed if line.request]
        others = sum(line.request for line in self.lines) - sum(line.request for line in ours)
        wanted = grow([line.request for line in ours], [line.most for line in ours], total - others)
        for line, request in zip(ours, wanted, strict=True):
            if request != line.request:
                line.request = request
                line.limit = None if line.limit is None else max(line.limit, request)
                self.why[line.name] = POD_RANGE

    def _fit_pod_ratio(self) -> None:
        """The pod's limits may be at most so many times its requests."""
        bounds = self.bounds
        limits = bounds.limits.total(sum(line.limit or 0 for line in self.lines))
        requests = bounds.requests.total(sum(line.request for line in self.lines))
        highest = bounds.pod.highest_limit(requests)
        if highest is None or limits <= highest:
            return
        slack = sum((line.limit or 0) - line.request for line in self._limited())
        self._lower_limits(min(limits - highest, slack))
        limits = bounds.limits.total(sum(line.limit or 0 for line in self.lines))
        self._raise_requests(bounds.requests.missing(bounds.pod.lowest_request(limits)))

    def _is_near_enough(self) -> bool:
        """Are all present sizes admissible, and about the wanted ones? Rounding and `NEAR` say how about."""
        present = [self._present(line) for line in self.managed]
        smallest = min((line.limit for line in present if line.limit), default=MOST)
        for line, now in zip(self.managed, present, strict=True):
            slack = 1 + -(-line.request // smallest)
            if self.placed:
                slack = max(slack, line.request // NEAR)
            if not now.request or abs(now.request - line.request) > slack:
                return False
            if line.follows and now.limit is None:
                return False
        if self.bounds.broken([*present, *self.others]) is not None:
            return False
        total = sum(line.request for line in (*present, *self.others)) + self.bounds.requests.sidecars
        return self.room is None or total <= self.room

    def _present(self, line: Line) -> Line:
        """The container as it is."""
        request, limit = figures(self.resource, *self.actual[line.name])
        return Line(name=line.name, managed=True, follows=line.follows, request=request, limit=limit)

    def _keep_present(self) -> None:
        for line in self.managed:
            now = self._present(line)
            line.request, line.limit = now.request, now.limit if line.follows else line.limit

    def write_back(self) -> list[Cap]:
        """Write the lines back to their containers, and say what changed."""
        caps: list[Cap] = []
        resource = self.resource
        for sizes, line, (request, limit) in zip(self.parts, self.lines, self.before, strict=True):
            reason = self.why.get(sizes.name, CONTAINER_RANGE)
            if line.follows and line.limit is not None and line.limit != limit:
                sizes.limits[resource] = quantity_of(resource, line.limit, sizes.limits[resource].format)
                if reason != BY_NODE and line.request == request:
                    sizes.notes.append(f"{resource} limit capped to fit {reason}")
            if line.request == request:
                continue
            old = sizes.requests[resource]
            new = sizes.requests[resource] = quantity_of(resource, line.request, old.format)
            note = f"{resource} capped to fit {reason}" if sizes.name in self.why else ""
            if note:
                sizes.notes.append(note)
            caps.append(Cap(sizes.name, resource, _BY[reason], old, new, note))
        return caps


def _lower(one: int | None, other: int | None) -> int | None:
    if one is None or other is None:
        return other if one is None else one
    return min(one, other)
