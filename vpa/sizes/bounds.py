"""What bounds one resource of a pod: the judge that knows which sizes the API server would refuse.

It refuses a request above its limit, containers and pods outside their LimitRanges, and containers that ask
for more than pod-level resources give. Amounts are whole millicores or bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from vpa.objects.limits import LimitRangeItem
from vpa.objects.meta import ResourceList
from vpa.objects.pods import Container, PodSpec
from vpa.sizes.limit_ranges import Ranges
from vpa.sizes.scaling import amount, whole_units
from vpa.sizes.shares import shrink

CONTAINER_RANGE: Final = "container LimitRange"
POD_RANGE: Final = "pod LimitRange"
POD_RESOURCES: Final = "pod-level resources"


@dataclass(slots=True)
class Line:
    """One resource of one container; ``limit`` is ``None`` without one.

    ``managed``: the request is ours to set. ``follows``: the limit is ours, too. ``least`` and ``most`` are
    the container's own bounds.
    """

    name: str
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


def lowered(lines: Sequence[Line], excess: int) -> list[int] | None:
    """The limits of *lines* less *excess*, none below its request; ``None`` if they are too low for that."""
    slack = [(line.limit or 0) - line.request for line in lines]
    kept = shrink(slack, [0] * len(slack), sum(slack) - excess)
    return kept and [line.request + spare for line, spare in zip(lines, kept, strict=True)]


@dataclass(frozen=True, slots=True)
class Range:
    """What LimitRanges of one type say; ``None`` bounds nothing. The ratio is in thousandths."""

    least: int | None = None
    most: int | None = None
    ratio: int | None = None

    @classmethod
    def of(cls, resource: str, item: LimitRangeItem | None) -> Range:
        if item is None:
            return _UNBOUNDED
        ratio = (item.max_limit_request_ratio or {}).get(resource)
        return cls(
            least=_at_least(resource, item.min),
            most=_at_most(resource, item.max),
            ratio=None if ratio is None or ratio.is_zero else ratio.milli(),
        )

    def takes(self, request: int, limit: int | None) -> bool:
        """Is this within the range? What is not asked for at all is."""
        if self.most is not None and max(request, limit or 0) > self.most:
            return False
        if self.least is not None and (0 < request < self.least or 0 < (limit or self.least) < self.least):
            return False
        return not limit or not request or not _exceeds(self.ratio, limit, request)

    def highest_limit(self, request: int) -> int | None:
        """The largest limit that may go with *request*, as far as the ratio is concerned."""
        if self.ratio is None:
            return None
        limit = self.ratio * request // 1000
        return limit - 1 if _exceeds(self.ratio, limit, request) else limit

    def lowest_request(self, limit: int) -> int:
        """The smallest request that may go with *limit*, as far as the ratio is concerned."""
        if self.ratio is None:
            return 0
        request = -(-limit * 1000 // self.ratio)
        return request + 1 if _exceeds(self.ratio, limit, request) else request


_UNBOUNDED: Final = Range()


def _exceeds(ratio: int | None, limit: int, request: int) -> bool:
    """In floating point, as the API server computes it."""
    return ratio is not None and request > 0 and limit / request * 1000 > ratio


def _at_least(resource: str, resources: ResourceList | None) -> int | None:
    """A minimum, rounded up; zero bounds nothing."""
    found = resources.get(resource) if resources else None
    return None if found is None or found.is_zero else amount(resource, found)


def _at_most(resource: str, resources: ResourceList | None) -> int | None:
    """A maximum, rounded down; zero bounds nothing."""
    found = resources.get(resource) if resources else None
    return None if found is None or found.is_zero else whole_units(resource, found.nanos)


@dataclass(frozen=True, slots=True)
class Beside:
    """What a pod has besides its containers; none of it is ours to size.

    ``sidecars`` run beside the containers, ``start`` is the most that is had while init containers run.
    ``instead`` is the pod-level value that replaces the sum of all.
    """

    sidecars: int
    start: int
    instead: int | None

    def total(self, containers: int) -> int:
        """What the pod has when its containers have *containers*."""
        return max(containers + self.sidecars, self.start) if self.instead is None else self.instead

    def left(self, total: int | None) -> int | None:
        """What the containers may have if the pod has *total* at most; ``None``: anything."""
        return None if total is None or self.instead is not None else total - self.sidecars

    def missing(self, total: int | None) -> int:
        """What the containers need to have so that the pod has *total* at least."""
        if total is None or self.instead is not None or self.start >= total:
            return 0
        return total - self.sidecars


@dataclass(frozen=True, slots=True)
class Bounds:
    """All that bounds one resource of a pod."""

    container: Range
    pod: Range
    level_requests: int | None
    level_limits: int | None
    requests: Beside
    limits: Beside
    init_refused: bool
    """Is an init container outside the LimitRange?"""

    @classmethod
    def of(cls, resource: str, spec: PodSpec, ranges: Ranges) -> Bounds:
        level, container = spec.resources, Range.of(resource, ranges.container)
        level_requests = _at_most(resource, level.requests if level else None)
        level_limits = _at_most(resource, level.limits if level else None)
        starting = [(one, *_has(resource, one)) for one in spec.init_containers or ()]
        requests = [(one, request) for one, request, _ in starting]
        limits = [(one, limit or 0) for one, _, limit in starting]
        return cls(
            container=container,
            pod=Range.of(resource, ranges.pod),
            level_requests=level_limits if level_requests is None else level_requests,
            level_limits=level_limits,
            requests=_beside(requests, level_requests),
            limits=_beside(limits, level_limits),
            init_refused=not all(container.takes(request, limit) for _, request, limit in starting),
        )

    def broken(self, lines: Sequence[Line]) -> str | None:
        """What the API server would refuse the containers *lines* for; ``None`` if nothing."""
        for line in lines:
            if line.limit is not None and line.request > line.limit:
                return f"the limit of container {line.name}"
            if not self.container.takes(line.request, line.limit):
                return f"the {CONTAINER_RANGE} (container {line.name})"
            if self.level_limits is not None and (line.limit or 0) > self.level_limits:
                return f"the {POD_RESOURCES} (container {line.name})"
        if self.init_refused:
            return f"the {CONTAINER_RANGE} (an init container)"
        requests = sum(line.request for line in lines)
        asked = max(requests + self.requests.sidecars, self.requests.start)
        if self.level_requests is not None and asked > self.level_requests:
            return f"the {POD_RESOURCES}"
        limits = sum(line.limit or 0 for line in lines)
        if not self.pod.takes(self.requests.total(requests), self.limits.total(limits)):
            return f"the {POD_RANGE}"
        return None


def figures(
    resource: str, requests: ResourceList | None, limits: ResourceList | None
) -> tuple[int, int | None]:
    """(request, limit) of a container; a limit without a request is its request."""
    limit = limits.get(resource) if limits else None
    request = (requests.get(resource) if requests else None) or limit
    return (
        0 if request is None else amount(resource, request),
        None if limit is None else amount(resource, limit),
    )


def _has(resource: str, container: Container) -> tuple[int, int | None]:
    has = container.resources
    return (0, None) if has is None else figures(resource, has.requests, has.limits)


def _beside(init: Iterable[tuple[Container, int]], instead: int | None) -> Beside:
    sidecars = start = 0
    for container, value in init:
        start = max(start, sidecars + value)
        if container.restart_policy == "Always":
            sidecars += value
    return Beside(sidecars, start, instead)
