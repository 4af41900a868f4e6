"""The last step of sizing a pod: what LimitRanges, pod-level resources and nodes leave of the wanted sizes.

The API server refuses a pod that breaks one of them, so they win over container policies. Requests give way
in proportion; a limit that follows its request gives way first where only the limit is too large.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from vpa.objects.meta import ResourceList
from vpa.objects.pods import Pod
from vpa.sizes.actual import Actual
from vpa.sizes.capping import BY_LIMIT_RANGE, BY_NODE, BY_POD_RESOURCES, Cap
from vpa.sizes.limit_ranges import Ranges
from vpa.sizes.scaling import MOST, RESOURCES, amount, quantity_of, unit
from vpa.sizes.shares import grow, shrink

NEAR: Final = 10
"""A running pod that a LimitRange bounds is left at sizes that are wrong by less than one part in so many.

The ratios that its limits have now are not exactly those of its template; a new pod would be no better.
"""

CONTAINER_RANGE: Final = "container LimitRange"
POD_RANGE: Final = "pod LimitRange"

_BY: Final = {
    CONTAINER_RANGE: BY_LIMIT_RANGE,
    POD_RANGE: BY_LIMIT_RANGE,
    BY_POD_RESOURCES: BY_POD_RESOURCES,
    BY_NODE: BY_NODE,
}


@dataclass(slots=True)
class Sizes:
    """What one container shall have; both maps hold only what is to be set, ``notes`` the pod's texts."""

    name: str
    requests: ResourceList
    limits: ResourceList
    notes: list[str]


@dataclass(slots=True)
class _Line:
    """One resource of one container in millicores or bytes.

    ``managed``: the request is ours to set. ``follows``: the limit is ours, too. ``limit`` is ``None``
    without one.
    """

    sizes: Sizes
    managed: bool
    follows: bool
    request: int
    limit: int | None
    least: int = 0
    most: int | None = None

    def set_request(self, request: int) -> None:
        """Change the request; a limit of ours keeps its ratio and is never below."""
        if self.follows and self.limit is not None:
            scaled = self.limit * request // self.request if self.request else self.limit
            self.limit = max(request, scaled)
        self.request = request


def fit(
    parts: Sequence[Sizes],
    pod: Pod,
    actual: Mapping[str, Actual],
    ranges: Ranges,
    room: Mapping[str, int] | None,
    settle: Collection[str] = (),
) -> list[Cap]:
    """Make *parts*, all containers of *pod* in order, fit; return what that changed.

    *room* is the most that a node can hold of the pod, in nanos by resource. Where a LimitRange had a say
    (here, or before for the resources that *settle* names), sizes that are near the present ones give way
    to them, so that a pod that was fitted is not fitted again.
    """
    caps: list[Cap] = []
    for resource in RESOURCES:
        if any(resource in part.requests for part in parts):
            caps.extend(_Fitting(resource, parts, pod, actual, ranges, room).run(resource in settle))
    return caps


class _Fitting:
    """The lines of one resource, and the bounds that hold for them."""

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
        self.actual = actual
        self.placed = bool(pod.spec.node_name)
        self.lines = [self._line(part, actual[part.name]) for part in parts]
        self.managed = [line for line in self.lines if line.managed]
        self.why: dict[str, str] = {}
        container, whole = ranges.container, ranges.pod
        level = pod.spec.resources
        self.least = self._bound(container.min if container else None)
        self.most = self._bound(container.max if container else None)
        self.ratio = self._ratio(container.max_limit_request_ratio if container else None)
        self.pod_least = self._bound(whole.min if whole else None)
        self.pod_most = self._bound(whole.max if whole else None)
        self.pod_ratio = self._ratio(whole.max_limit_request_ratio if whole else None)
        self.level_requests = self._bound(level.requests if level else None)
        self.level_limits = self._bound(level.limits if level else None)
        self.room = None if room is None or resource not in room else self._whole(room[resource])
        self.sidecars = self._sidecars(pod)
        self.overhead = self._bound(pod.spec.overhead) or 0

    def _line(self, part: Sizes, actual: Actual) -> _Line:
        resource = self.resource
        managed = resource in part.requests
        own_limit = part.limits.get(resource)
        limit = own_limit or (actual.limits or {}).get(resource)
        request = part.requests.get(resource) or (actual.requests or {}).get(resource) or limit
        return _Line(
            sizes=part,
            managed=managed,
            follows=managed and own_limit is not None,
            request=0 if request is None else amount(resource, request),
            limit=None if limit is None else amount(resource, limit),
        )

    def _bound(self, resources: ResourceList | None) -> int | None:
        """A bound in whole units; zero bounds nothing."""
        found = resources.get(self.resource) if resources else None
        return None if found is None or found.is_zero else amount(self.resource, found)

    def _ratio(self, resources: ResourceList | None) -> int | None:
        """A limit-to-request ratio in billionths."""
        found = resources.get(self.resource) if resources else None
        return None if found is None or found.is_zero else found.nanos

    def _whole(self, nanos: int) -> int:
        return int(nanos // 10 ** (9 + unit(self.resource)))

    def _sidecars(self, pod: Pod) -> int:
        """What native sidecars request; they run beside the containers and are not ours."""
        total = 0
        for container in pod.spec.init_containers or ():
            resources = container.resources
            if container.restart_policy == "Always" and resources is not None:
                found = (resources.requests or {}).get(self.resource) or (resources.limits or {}).get(
                    self.resource
                )
                total += amount(self.resource, found) if found is not None else 0
        return total

    def run(self, settle: bool) -> list[Cap]:
        """Apply all bounds, write the lines back to their containers, and say what changed."""
        before = [(line.request, line.limit) for line in self.managed]
        for line in self.managed:
            self._fit_container(line)
        others = self.sidecars + sum(line.request for line in self.lines if not line.managed)
        self._fit_requests(BY_POD_RESOURCES, self.level_requests, others)
        self._fit_requests(BY_NODE, self.room, others + self.overhead)
        self._fit_requests(POD_RANGE, self.pod_most, others)
        self._fit_pod_limits()
        self._raise_to_pod_minimum(others)
        self._fit_pod_ratio(others)
        if (settle or self.why) and self._is_near_enough():
            self._keep_present()
        return self._write_back(before)

    def _fit_container(self, line: _Line) -> None:
        """LimitRange of the container, pod-level limit, and a request that is not above its limit."""
        tops = [bound for bound in (self.most, self.level_limits) if bound is not None]
        reason = CONTAINER_RANGE if self.most is not None and self.most == min(tops) else BY_POD_RESOURCES
        if not line.follows and line.limit is not None:
            tops.append(line.limit)
        line.most = min(tops, default=None)
        line.least = max(self.least or 0, min(line.request, 1))
        if line.request < line.least:
            self._change(line, line.least, CONTAINER_RANGE)
        if line.most is not None and line.request > line.most:
            self._change(line, line.most, reason)
        if line.follows and line.limit is not None:
            wanted = max(line.limit, line.request, line.least)
            if line.most is not None:
                wanted = min(wanted, line.most)
            if wanted != line.limit:
                line.limit = wanted
                self.why.setdefault(line.sizes.name, reason)
        self._fit_ratio(line)

    def _fit_ratio(self, line: _Line) -> None:
        if self.ratio is None or line.limit is None or not line.request:
            return
        if line.limit * 1_000_000_000 <= self.ratio * line.request:
            return
        if line.follows:
            line.limit = max(line.request, self.ratio * line.request // 1_000_000_000)
            self.why.setdefault(line.sizes.name, CONTAINER_RANGE)
        else:
            self._change(line, min(-(-line.limit * 1_000_000_000 // self.ratio), line.limit), CONTAINER_RANGE)

    def _change(self, line: _Line, request: int, reason: str) -> None:
        if request != line.request:
            line.set_request(request)
            self.why[line.sizes.name] = reason

    def _fit_requests(self, reason: str, total: int | None, others: int) -> None:
        """The sum of all requests may be *total* at most; *others* of it is not ours."""
        if total is None:
            return
        values = [line.request for line in self.managed]
        if sum(values) + others <= total:
            return
        shares = shrink(values, [line.least for line in self.managed], total - others)
        for line, share in zip(self.managed, shares or values, strict=True):
            self._change(line, share, reason)

    def _fit_pod_limits(self) -> None:
        """The sum of all limits may be the Pod LimitRange's maximum at most."""
        if self.pod_most is None:
            return
        excess = sum(line.limit or 0 for line in self.lines) - self.pod_most
        ours = [line for line in self.managed if line.follows and line.limit is not None]
        if excess <= 0 or not ours:
            return
        if self._lower_limits(ours, excess):
            return
        values = [line.request for line in ours]
        excess -= sum((line.limit or 0) - line.request for line in ours)
        shares = shrink(values, [line.least for line in ours], sum(values) - excess)
        if shares is None:
            return
        for line, share in zip(ours, shares, strict=True):
            line.limit = line.request
            self._change(line, share, POD_RANGE)

    def _lower_limits(self, ours: Sequence[_Line], excess: int) -> bool:
        """Take *excess* from the limits as far as they are above their requests; False if too little."""
        slack = [(line.limit or 0) - line.request for line in ours]
        kept = shrink(slack, [0] * len(slack), sum(slack) - excess)
        if kept is None:
            return False
        for line, spare in zip(ours, kept, strict=True):
            if line.request + spare != line.limit:
                line.limit = line.request + spare
                self.why[line.sizes.name] = POD_RANGE
        return True

    def _raise_to_pod_minimum(self, others: int) -> None:
        """Requests, and limits where there are any, reach the Pod LimitRange's minimum."""
        if self.pod_least is None:
            return
        ours = [line for line in self.managed if line.request]
        tops = [line.most for line in ours]
        wanted = grow([line.request for line in ours], tops, self.pod_least - others)
        if self.pod_most is not None and sum(wanted) + others > self.pod_most:
            return
        for line, request in zip(ours, wanted, strict=True):
            if request != line.request:
                line.request = request
                line.limit = None if line.limit is None else max(line.limit, request)
                self.why[line.sizes.name] = POD_RANGE

    def _fit_pod_ratio(self, others: int) -> None:
        """The pod's limits may be at most so many times its requests."""
        limits = sum(line.limit or 0 for line in self.lines)
        requests = sum(line.request for line in self.managed) + others
        if self.pod_ratio is None or limits * 1_000_000_000 <= self.pod_ratio * requests:
            return
        ours = [line for line in self.managed if line.follows and line.limit is not None]
        excess = limits - self.pod_ratio * requests // 1_000_000_000
        self._lower_limits(ours, excess)

    def _is_near_enough(self) -> bool:
        """Are all present sizes admissible, and about the wanted ones? Rounding and `NEAR` say how about."""
        present = [self._present(line) for line in self.managed]
        smallest = min((limit for _, limit in present if limit), default=MOST)
        for line, (request, limit) in zip(self.managed, present, strict=True):
            slack = 1 + -(-line.request // smallest)
            if self.placed:
                slack = max(slack, line.request // NEAR)
            if not request or abs(request - line.request) > slack:
                return False
            if request < line.least or (line.most is not None and (limit or request) > line.most):
                return False
            if line.follows and (limit is None or limit < request):
                return False
        fixed = [line for line in self.lines if not line.managed]
        limits = sum(limit or 0 for _, limit in present) + sum(line.limit or 0 for line in fixed)
        requests = sum(request for request, _ in present) + sum(line.request for line in fixed)
        return (self.pod_most is None or limits <= self.pod_most) and requests >= (self.pod_least or 0)

    def _present(self, line: _Line) -> tuple[int, int | None]:
        actual = self.actual[line.sizes.name]
        request = (actual.requests or {}).get(self.resource)
        limit = (actual.limits or {}).get(self.resource)
        return (
            0 if request is None else amount(self.resource, request),
            None if limit is None else amount(self.resource, limit),
        )

    def _keep_present(self) -> None:
        for line in self.managed:
            line.request, present = self._present(line)
            line.limit = present if line.follows else line.limit

    def _write_back(self, before: Sequence[tuple[int, int | None]]) -> list[Cap]:
        caps: list[Cap] = []
        resource = self.resource
        for line, (request, limit) in zip(self.managed, before, strict=True):
            sizes = line.sizes
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
