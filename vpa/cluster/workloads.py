"""The controllers that are known in advance, as lean records: who owns them and which pods they select.

Records come from copies that a service keeps (reflectors made by :func:`reflector`), and, where there is none
or it has no such object yet, from one request whose answer is remembered.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple, Protocol

from vpa import matching
from vpa.cluster.connection import Connection
from vpa.cluster.errors import NotFound
from vpa.cluster.pacing import Clock, monotonic
from vpa.cluster.reads import get, pages
from vpa.cluster.reflectors import Key, Reflector
from vpa.cluster.resources import DAEMON_SETS, WELL_KNOWN, Resource
from vpa.objects.meta import LabelSelector, Obj, ObjectMeta
from vpa.objects.workloads import CronJob, ReplicationController, Workload

KRUISE = "apps.kruise.io"
"""OpenKruise: its DaemonSet is accepted wherever the built-in one is."""
KRUISE_DAEMON_SETS = Resource(KRUISE, "v1alpha1", "daemonsets", "DaemonSet")
FRESH = 300.0
"""Seconds for which a record that was asked for is used; owner and selector of a workload next to never
change.
"""
FRESH_ABSENCE = 3.0
REMEMBERED = 10_000
"""How many answers are remembered at most."""


class OwnerKey(NamedTuple):
    """A controller, as owner references and target references name it."""

    namespace: str
    kind: str
    name: str
    api_version: str

    @property
    def group(self) -> str:
        return self.api_version.rpartition("/")[0]

    @property
    def target(self) -> matching.TargetKey:
        """The same without the API version, as VPAs are found by it."""
        return matching.TargetKey(self.namespace, self.kind, self.name)


def controller_of(metadata: ObjectMeta) -> OwnerKey | None:
    """The controller of an object, in the object's own namespace."""
    owner = matching.controller_of(metadata)
    if owner is None:
        return None
    return OwnerKey(metadata.namespace, owner.kind, owner.name, owner.api_version)


class Record(Obj, frozen=True):
    """What is kept of a workload. *selector* None: no pods; *replicas* None: the kind has none."""

    key: OwnerKey
    uid: str
    owner: OwnerKey | None
    selector: LabelSelector | None
    replicas: int | None
    containers: tuple[str, ...]
    """Names in the pod template, init containers included."""
    regular_containers: tuple[str, ...] | None = None
    """The same without init containers; None without a template."""


def record(found: Any, resource: Resource) -> Record:
    """The record of a ``Workload``, ``ReplicationController`` or ``CronJob`` of *resource*."""
    metadata = found.metadata
    if isinstance(found, CronJob):
        template, replicas = found.spec.job_template.spec.template, None
        labels = template.metadata.labels if template else None
        selector = None if labels is None else LabelSelector(match_labels=labels)
    elif isinstance(found, ReplicationController):
        template, replicas = found.spec.template, found.spec.replicas
        selector = None if found.spec.selector is None else LabelSelector(match_labels=found.spec.selector)
    else:
        template, replicas, selector = found.spec.template, found.spec.replicas, found.spec.selector
        if resource.kind == DAEMON_SETS.kind:
            replicas = found.status.desired_number_scheduled
    containers = (
        tuple(c.name for c in [*(template.spec.containers or ()), *(template.spec.init_containers or ())])
        if template
        else ()
    )
    return Record(
        key=OwnerKey(metadata.namespace, resource.kind, metadata.name, resource.api_version),
        uid=metadata.uid,
        owner=controller_of(metadata),
        selector=selector,
        replicas=replicas,
        containers=containers,
        regular_containers=tuple(c.name for c in template.spec.containers or ()) if template else None,
    )


def kind_of(resource: Resource) -> type[Any]:
    """The struct that objects of a well-known kind are read into."""
    kinds: dict[str, type[Any]] = {"CronJob": CronJob, "ReplicationController": ReplicationController}
    return kinds.get(resource.kind, Workload)


def reflector(
    connection: Connection, resource: Resource, *, namespace: str = "", **options: Any
) -> Reflector[Any, Record]:
    """A copy of all workloads of one kind, as records; *options* as for ``Reflector``."""
    return Reflector(
        connection,
        resource,
        kind=kind_of(resource),
        project=lambda found: record(found, resource),
        namespace=namespace,
        **options,
    )


class Copy(Protocol):
    """What is needed of a reflector of records."""

    @property
    def synced(self) -> bool: ...

    def get(self, key: Key, /) -> Record | None: ...

    def values(self) -> Iterable[Record]: ...


class Workloads:
    """Finds records: in *copies* (by kind), else by one GET through *connection* if there is one.

    Answers are remembered for FRESH seconds, absences for FRESH_ABSENCE, at most REMEMBERED of them.
    """

    def __init__(
        self,
        copies: Mapping[str, Copy] | None = None,
        *,
        connection: Connection | None = None,
        by_group: bool = True,
        clock: Clock = monotonic,
    ) -> None:
        """*by_group*: a kind that is only named like a built-in one is not taken for it."""
        self._copies = copies or {}
        self._connection = connection
        self._by_group = by_group
        self._clock = clock
        self._asked: OrderedDict[OwnerKey, tuple[float, Record | None]] = OrderedDict()
        self._asking: dict[OwnerKey, asyncio.Task[Record | None]] = {}

    def resource(self, key: OwnerKey) -> Resource | None:
        """Where *key* lives if it is of a well-known kind; None for all other kinds."""
        resource = WELL_KNOWN.get(key.kind)
        if resource is None:
            return None
        if key.group == KRUISE and resource is DAEMON_SETS:
            version = key.api_version.rpartition("/")[2]
            return Resource(KRUISE, version, KRUISE_DAEMON_SETS.plural, KRUISE_DAEMON_SETS.kind)
        same = not self._by_group or key.group in (resource.group, "extensions")
        return resource if same else None

    async def find(self, key: OwnerKey) -> Record | None:
        """The record of a well-known workload, None if there is no such object; a ``ClusterError`` if
        unknown.
        """
        resource = self.resource(key)
        if resource is None:
            raise ValueError(f"{key.kind} of {key.api_version} is no well-known kind")
        copy = self._copies.get(key.kind) if resource.group != KRUISE else None
        if copy is not None:
            found = copy.get((key.namespace, key.name))
            if found is not None or (self._connection is None and copy.synced):
                return found
        if self._connection is None:
            return None
        until, known = self._asked.get(key, (float("-inf"), None))
        if self._clock() < until:
            self._asked.move_to_end(key)
            return known
        return await self._ask_once(self._connection, resource, key)

    async def _ask_once(self, connection: Connection, resource: Resource, key: OwnerKey) -> Record | None:
        """Many pods of one new ReplicaSet come at once: they share one request."""
        task = self._asking.get(key)
        if task is None:
            task = self._asking[key] = asyncio.create_task(self._ask(connection, resource, key))
            task.add_done_callback(lambda _: self._asking.pop(key, None))
        return await asyncio.shield(task)

    async def _ask(self, connection: Connection, resource: Resource, key: OwnerKey) -> Record | None:
        found: Record | None
        try:
            answer = await get(
                connection, resource, key.name, kind=kind_of(resource), namespace=key.namespace
            )
            found = record(answer, resource)
        except NotFound:
            found = None
        self._asked[key] = self._clock() + (FRESH_ABSENCE if found is None else FRESH), found
        self._asked.move_to_end(key)
        while len(self._asked) > REMEMBERED:
            self._asked.popitem(last=False)
        return found

    async def controlled_by(self, owner: OwnerKey) -> list[Record]:
        """The well-known workloads of which *owner* is the controller, by kind and name."""
        found = [item for kind in sorted(WELL_KNOWN) for item in await self._all(kind, owner.namespace)]
        return [item for item in found if item.owner is not None and _same(item.owner, owner)]

    async def _all(self, kind: str, namespace: str) -> list[Record]:
        copy = self._copies.get(kind)
        if copy is not None and copy.synced:
            return sorted(_in_namespace(copy.values(), namespace), key=lambda item: item.key)
        if self._connection is None:
            return []
        resource = WELL_KNOWN[kind]
        found: list[Record] = []
        async for page in pages(self._connection, resource, kind=kind_of(resource), namespace=namespace):
            found += [record(item, resource) for item in page.items]
        return found


def _in_namespace(records: Iterable[Record], namespace: str) -> Iterator[Record]:
    return (item for item in records if item.key.namespace == namespace)


def _same(first: OwnerKey, second: OwnerKey) -> bool:
    return first.target == second.target and first.group == second.group
