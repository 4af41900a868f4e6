"""Copies of what the recommender looks at in the cluster, kept up to date by watches."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Iterator, Mapping
from typing import Any

from recommender.ooms import EventView, Kill, evictions
from recommender.records import PodRecord, PodView, Records
from recommender.troubles import Troubles
from vpa.cluster import nodes, workloads
from vpa.cluster.connection import Connection
from vpa.cluster.errors import CacheNotSyncedError, Forbidden, NotFound
from vpa.cluster.reflectors import Reflector, running, whole
from vpa.cluster.resources import EVENTS, LIMIT_RANGES, PODS, VERTICAL_AUTOSCALERS, WELL_KNOWN
from vpa.objects.autoscalers import VerticalPodAutoscaler
from vpa.objects.limits import LimitRange
from vpa.rules import Rules
from vpa.sizes.limit_ranges import Ranges, ranges_of

log = logging.getLogger(__name__)

SYNC_TIMEOUT = 20.0
"""Seconds after which it is said (again) that a copy has not come yet."""
LOOK = 0.2
"""Seconds after which it is looked whether a copy may be had at all."""


class Mirrors:
    """All copies. VPAs, pods and controllers are needed; the others help where they may be read."""

    def __init__(self, connection: Connection, *, namespace: str, rules: Rules) -> None:
        self.records = Records()
        self.vpas = Reflector[VerticalPodAutoscaler, VerticalPodAutoscaler](
            connection,
            VERTICAL_AUTOSCALERS,
            kind=VerticalPodAutoscaler,
            project=whole,
            namespace=namespace,
        )
        self.pods = Reflector[PodView, PodRecord](
            connection,
            PODS,
            kind=PodView,
            project=self.records.record,
            namespace=namespace,
            field_selector="status.phase!=Pending",
        )
        self.workloads = {
            kind: workloads.reflector(connection, resource, namespace=namespace)
            for kind, resource in WELL_KNOWN.items()
        }
        self.evictions = Reflector[EventView, list[Kill]](
            connection,
            EVENTS,
            kind=EventView,
            project=lambda event: evictions(event, rules) or None,
            namespace=namespace,
            field_selector="reason=Evicted",
        )
        self.limit_ranges = Reflector[LimitRange, LimitRange](
            connection, LIMIT_RANGES, kind=LimitRange, project=whole, namespace=namespace
        )
        self.nodes = nodes.labels(connection)
        self.ranges = _RangesByNamespace(self.limit_ranges, rules)
        self.node_labels = _NodeLabels(self.nodes)
        self._troubles = Troubles()
        self._nodes_task: asyncio.Task[None] | None = None
        self._nodes_known = False

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Keep all copies up to date while the block runs; it starts when the needed ones are complete."""
        needed: list[Reflector[Any, Any]] = [self.vpas, self.pods, *self.workloads.values()]
        async with running(*needed, self.evictions, self.limit_ranges):
            try:
                for mirror in needed:
                    await self._wait(mirror)
                yield
            finally:
                if self._nodes_task is not None:
                    self._nodes_task.cancel()
                    await asyncio.gather(self._nodes_task, return_exceptions=True)

    async def _wait(self, mirror: Reflector[Any, Any]) -> None:
        """Wait for the first complete copy, however long; a kind that may not be read is asked for singly."""
        optional = any(mirror is one for one in self.workloads.values())
        while True:
            try:
                await (_first_list(mirror) if optional else mirror.wait_synced(SYNC_TIMEOUT))
            except CacheNotSyncedError as error:
                if optional and _is_denied(mirror):
                    log.warning("No copy of %s is kept: %s", mirror.resource, mirror.last_error)
                    return
                self._troubles.bad(f"The first list of {mirror.resource}", error)
            else:
                self._troubles.good(f"The first list of {mirror.resource}")
                return

    async def need_nodes(self) -> None:
        """From now on labels of nodes matter; waits for them, but not for ever."""
        if self._nodes_task is None:
            self._nodes_task = asyncio.create_task(self.nodes.run(), name="reflector nodes")
            try:
                await _first_list(self.nodes)
            except CacheNotSyncedError as error:
                why = self.nodes.last_error or error
                log.warning("Labels of nodes are not known, so scopes see no difference: %s", why)
            self._nodes_known = True

    @property
    def nodes_known(self) -> bool:
        """Whether the labels of nodes are complete, or will not come."""
        return self._nodes_known

    def no_controller(self, kind: str, namespace: str, name: str) -> bool:
        """Whether a controller of a well-known kind surely does not exist."""
        mirror = self.workloads.get(kind)
        return mirror is not None and mirror.synced and (namespace, name) not in mirror


async def _first_list(mirror: Reflector[Any, Any]) -> None:
    """Wait for the first complete copy, unless it may not be had; ``CacheNotSyncedError`` without one."""
    end = asyncio.get_running_loop().time() + SYNC_TIMEOUT
    while True:
        try:
            await mirror.wait_synced(LOOK)
        except CacheNotSyncedError:
            if _is_denied(mirror) or asyncio.get_running_loop().time() >= end:
                raise
        else:
            return


def _is_denied(mirror: Reflector[Any, Any]) -> bool:
    return isinstance(mirror.last_error, Forbidden | NotFound)


class _RangesByNamespace(Mapping[str, Ranges]):
    """Namespace → the bounds of its LimitRanges."""

    def __init__(self, mirror: Reflector[LimitRange, LimitRange], rules: Rules) -> None:
        self._mirror = mirror
        self._rules = rules
        self._known: dict[str, Ranges] | None = None
        mirror.subscribe(self._changed)

    def _changed(self, old: LimitRange | None, new: LimitRange | None) -> None:
        self._known = None

    def _all(self) -> dict[str, Ranges]:
        if self._known is None:
            found: dict[str, list[LimitRange]] = {}
            for limit_range in self._mirror.values():
                found.setdefault(limit_range.metadata.namespace, []).append(limit_range)
            self._known = {name: ranges_of(ranges, rules=self._rules) for name, ranges in found.items()}
        return self._known

    def __getitem__(self, namespace: str) -> Ranges:
        return self._all()[namespace]

    def __iter__(self) -> Iterator[str]:
        return iter(self._all())

    def __len__(self) -> int:
        return len(self._all())


class _NodeLabels(Mapping[str, Mapping[str, str]]):
    """Node → its labels."""

    def __init__(self, mirror: Reflector[Any, dict[str, str]]) -> None:
        self._mirror = mirror

    def __getitem__(self, node: str) -> Mapping[str, str]:
        return self._mirror["", node]

    def __iter__(self) -> Iterator[str]:
        return (name for _, name in self._mirror)

    def __len__(self) -> int:
        return len(self._mirror)
