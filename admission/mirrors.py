"""Copies of what the webhook looks at in the cluster, kept up to date by watches and started when needed."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Coroutine
from typing import Any, Final

import msgspec

from admission import controllers
from admission.index import Index
from admission.latecomers import Latecomers
from admission.lineage import Lineage
from admission.nodes import Nodes
from admission.scopes import NodesByName
from vpa.cluster.connection import Connection
from vpa.cluster.errors import CacheNotSyncedError
from vpa.cluster.reflectors import Reflector
from vpa.cluster.resources import LIMIT_RANGES, VERTICAL_AUTOSCALERS, WELL_KNOWN
from vpa.cluster.workloads import Record
from vpa.objects.autoscalers import GroupRecommendation, Recommendation, Status, VerticalPodAutoscaler
from vpa.objects.limits import LimitRange
from vpa.rules import Rules
from vpa.scopes import NodeLabels
from vpa.settings import Selection
from vpa.sizes.limit_ranges import NO_RANGES, Ranges, ranges_of
from vpa.sizes.nodes_fit import Rooms

log = logging.getLogger(__name__)

OWNERS_TIMEOUT: Final = 4.0
"""Seconds that the start waits for owners: there may be very many, and single ones can be asked for."""
REPEAT: Final = 20.0
"""Seconds after which it is said again that a needed copy has not come yet."""


class Mirrors:
    """VPAs and LimitRanges are needed; owners are kept of those kinds that VPAs lead to."""

    def __init__(
        self,
        connection: Connection,
        *,
        selection: Selection,
        rules: Rules,
        cap_to_node: bool = False,
    ) -> None:
        self._connection = connection
        self._selection = selection
        self._rules = rules
        self._namespace = selection.vpa_object_namespace
        self.index = Index()
        self.lineage = Lineage(self.index.covers)
        self.latecomers = Latecomers(connection, self.lineage)
        self.controllers: dict[str, Reflector[Any, Record]] = {}
        """Kind → the records of what VPAs target."""
        self.between: dict[str, Reflector[Any, Any]] = {}
        """Kind → what feeds the lineage."""
        self.nodes_by_name: NodesByName | None = None
        """Present once a VPA splits its target by a label of nodes."""
        self.nodes = Nodes(connection) if cap_to_node else None
        self.vpas = Reflector[VerticalPodAutoscaler, VerticalPodAutoscaler](
            connection,
            VERTICAL_AUTOSCALERS,
            kind=VerticalPodAutoscaler,
            project=self._lean,
            namespace=self._namespace,
        )
        self.ranges = RangesByNamespace(connection, namespace=self._namespace, rules=rules)
        self.vpas.subscribe(self._vpa_changed)
        self._group: asyncio.TaskGroup | None = None
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def synced(self) -> bool:
        """Is all there that no pod can be judged without?"""
        nodes = self.nodes is None or self.nodes.ready.is_set()
        return nodes and self.vpas.synced and self.ranges.mirror.synced

    @property
    def rooms(self) -> Rooms | None:
        """What nodes can hold, if pods are capped to them."""
        return None if self.nodes is None else self.nodes.rooms

    def ranges_of(self, namespace: str) -> Ranges:
        """The bounds of all LimitRanges of *namespace*."""
        return self.ranges.of(namespace)

    def known_labels(self, node: str) -> NodeLabels | None:
        """The labels of *node* under its name; None if the API server has to be asked."""
        nodes = self.nodes_by_name
        return None if nodes is None else nodes.known(node)

    async def labels_of(self, node: str, *, patience: float) -> NodeLabels:
        """The labels of *node* under its name, if a VPA splits by one and they can be had in time."""
        nodes = self.nodes_by_name
        return {} if nodes is None else await nodes.labels_of(node, patience=patience)

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Keep the copies up to date while the block runs; nothing is waited for."""
        try:
            async with asyncio.TaskGroup() as group:
                self._group = group
                self._start(self.vpas.run(), "reflector verticalpodautoscalers")
                self._start(self.ranges.mirror.run(), "reflector limitranges")
                if self.nodes is not None:
                    self._start(self.nodes.run(), "nodes")
                self._start(self._follow_owners(), "first list of verticalpodautoscalers")
                yield
                self._group = None
                for task in self._tasks:
                    task.cancel()
        finally:
            self._group = None

    async def wait(self) -> None:
        """Wait for what is needed, however long, and for owners within reason."""
        await self._wait_for(self.vpas)
        await self._wait_for(self.ranges.mirror)
        if self.nodes is not None:
            await self.nodes.ready.wait()
        self._start_needed()
        mirrors: list[Reflector[Any, Any]] = [*self.controllers.values(), *self.between.values()]
        if self.nodes_by_name is not None:
            mirrors.append(self.nodes_by_name.mirror)
        try:
            async with asyncio.timeout(OWNERS_TIMEOUT):
                for mirror in mirrors:
                    await mirror.wait_synced(OWNERS_TIMEOUT)
        except (TimeoutError, CacheNotSyncedError):
            log.info("Not all owners are known yet; until they are, those of new pods are asked for")

    async def _wait_for(self, mirror: Reflector[Any, Any]) -> None:
        while not mirror.synced:
            try:
                await mirror.wait_synced(REPEAT)
            except CacheNotSyncedError as error:
                log.warning("Pods are let in unchanged for now: %s", error)

    async def _follow_owners(self) -> None:
        """What is kept of owners is decided by the VPAs, so all of these come first."""
        await self._wait_for(self.vpas)
        self._start_needed()

    def _start(self, work: Coroutine[Any, Any, None], name: str) -> None:
        if self._group is None:
            work.close()
            return
        self._tasks.append(self._group.create_task(work, name=name))

    def _lean(self, vpa: VerticalPodAutoscaler) -> VerticalPodAutoscaler | None:
        """What of a VPA decides about new pods."""
        if vpa.metadata.namespace in self._selection.ignored:
            return None
        metadata = msgspec.structs.replace(vpa.metadata, annotations=None, labels=None)
        status = vpa.status
        if status is not None:
            if self._rules.spare_unmanaged_containers:
                status = _targets_alone(status)
            status = msgspec.structs.replace(status, conditions=None)
        return msgspec.structs.replace(vpa, metadata=metadata, status=status)

    def _vpa_changed(self, old: VerticalPodAutoscaler | None, new: VerticalPodAutoscaler | None) -> None:
        vpa = new or old
        if vpa is None:
            return
        namespace = vpa.metadata.namespace
        was_covered = self.index.covers(namespace)
        self.index.changed(old, new)
        if self.index.covers(namespace) and not was_covered:
            self.latecomers.add(namespace, self.between)
        self._start_needed()

    def _start_needed(self) -> None:
        """Start copies of what is needed now; those that are not needed any more cost little."""
        if self._group is None or not self.vpas.synced:
            return
        if self.index.needs_nodes and self.nodes_by_name is None:
            self.nodes_by_name = NodesByName(self._connection)
            self._start(self.nodes_by_name.mirror.run(), "reflector nodes (labels)")
        targeted, between = self.index.kinds()
        for kind in sorted(targeted - self.controllers.keys()):
            self.controllers[kind] = controllers.reflector(
                self._connection,
                WELL_KNOWN[kind],
                self.index,
                namespace=self._namespace,
            )
            self._start(self.controllers[kind].run(), f"reflector {kind}")
        for kind in sorted(between - self.between.keys()):
            self.between[kind] = self.lineage.reflector(
                self._connection, WELL_KNOWN[kind], namespace=self._namespace
            )
            self._start(self.between[kind].run(), f"reflector {kind} (owners)")


class RangesByNamespace:
    """The joint bounds of all LimitRanges of a namespace, made when they are first asked for."""

    def __init__(self, connection: Connection, *, namespace: str, rules: Rules) -> None:
        self.mirror = Reflector[LimitRange, LimitRange](
            connection,
            LIMIT_RANGES,
            kind=LimitRange,
            project=lambda found: found,
            namespace=namespace,
        )
        self._rules = rules
        self._objects: dict[str, dict[str, LimitRange]] = {}
        self._joint: dict[str, Ranges] = {}
        self.mirror.subscribe(self._changed)

    def _changed(self, old: LimitRange | None, new: LimitRange | None) -> None:
        if old is not None:
            objects = self._objects[old.metadata.namespace]
            del objects[old.metadata.name]
            if not objects:
                del self._objects[old.metadata.namespace]
            self._joint.pop(old.metadata.namespace, None)
        if new is not None:
            self._objects.setdefault(new.metadata.namespace, {})[new.metadata.name] = new
            self._joint.pop(new.metadata.namespace, None)

    def of(self, namespace: str) -> Ranges:
        """The bounds in *namespace*."""
        objects = self._objects.get(namespace)
        if objects is None:
            return NO_RANGES
        found = self._joint.get(namespace)
        if found is None:
            found = self._joint[namespace] = ranges_of(objects.values(), rules=self._rules)
        return found


def _targets_alone(status: Status) -> Status:
    """Without the bounds, which say nothing about new pods."""
    groups, recommendation = status.groups, status.recommendation
    if recommendation is not None:
        recommendation = msgspec.structs.replace(recommendation, **_lean_entries(recommendation))
    if groups is not None:
        groups = [msgspec.structs.replace(group, **_lean_entries(group)) for group in groups]
    return msgspec.structs.replace(status, recommendation=recommendation, groups=groups)


def _lean_entries(found: Recommendation | GroupRecommendation) -> dict[str, Any]:
    entries = found.container_recommendations
    if entries is None:
        return {}
    bare: dict[str, Any] = {"lower_bound": None, "upper_bound": None, "uncapped_target": None}
    return {"container_recommendations": [msgspec.structs.replace(entry, **bare) for entry in entries]}
