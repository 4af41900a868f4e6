"""Copies of what the updater looks at in the cluster, kept up to date by watches."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from updater.troubles import Troubles
from vpa.cluster import workloads
from vpa.cluster.connection import Connection
from vpa.cluster.errors import CacheNotSyncedError, Forbidden, NotFound
from vpa.cluster.reflectors import Reflector, running, whole
from vpa.cluster.resources import (
    DISRUPTION_BUDGETS,
    HORIZONTAL_AUTOSCALERS,
    LIMIT_RANGES,
    NODES,
    PODS,
    RESOURCE_QUOTAS,
    VERTICAL_AUTOSCALERS,
    WELL_KNOWN,
    Resource,
)
from vpa.cluster.workloads import Record
from vpa.objects.autoscalers import VerticalPodAutoscaler
from vpa.objects.limits import HorizontalPodAutoscaler, LimitRange, PodDisruptionBudget, ResourceQuota
from vpa.objects.nodes import Node
from vpa.objects.pods import Pod
from vpa.rules import Rules
from vpa.settings import Updating
from vpa.updates.budgets import GroupKey, configured_replicas

SYNC_TIMEOUT: Final = 20.0
"""Seconds after which it is said (again) that a copy has not come yet."""
STALE: Final = 150.0
"""Age in seconds from which a copy is too old to act on; a live one stays below 70."""
NOT_FINISHED: Final = "status.phase!=Succeeded,status.phase!=Failed"
SCHEDULED: Final = f"spec.nodeName!=,{NOT_FINISHED}"


class Sized(Record, frozen=True):
    """A workload, and how many pods it wants (None: its kind does not say)."""

    wanted: int | None = None


@dataclass(frozen=True, slots=True)
class Watched:
    """A kind that only switches a check on."""

    mirror: Reflector[Any, Any]
    check: str
    """What is off without it, as a sentence without its end."""
    rule: str
    """The rule's name, for the metric."""


class Mirrors:
    """All copies. VPAs, pods and controllers are needed; others switch checks on where they can be read."""

    def __init__(
        self,
        connection: Connection,
        *,
        namespace: str,
        rules: Rules,
        updating: Updating,
        troubles: Troubles,
    ) -> None:
        options: dict[str, Any] = {"namespace": namespace}
        self.vpas = _copy(connection, VERTICAL_AUTOSCALERS, VerticalPodAutoscaler, **options)
        self.pods = _copy(
            connection,
            PODS,
            Pod,
            field_selector=NOT_FINISHED if rules.see_unscheduled_pods else SCHEDULED,
            **options,
        )
        self.workloads: dict[str, Reflector[Any, Record]] = {
            kind: _workloads(connection, resource, rules, **options) for kind, resource in WELL_KNOWN.items()
        }
        self.limit_ranges = _copy(connection, LIMIT_RANGES, LimitRange, **options)
        self.nodes = _copy(connection, NODES, Node)
        self.quotas = _copy(connection, RESOURCE_QUOTAS, ResourceQuota, **options)
        self.disruption_budgets = _copy(connection, DISRUPTION_BUDGETS, PodDisruptionBudget, **options)
        self.hpas = _copy(connection, HORIZONTAL_AUTOSCALERS, HorizontalPodAutoscaler, **options)
        self.optional = [
            Watched(self.limit_ranges, "sizes are not fitted to LimitRanges", "limit_ranges"),
            Watched(
                self.nodes,
                "pods may get a size that no node holds, and no scope shows its groups"
                if rules.foresee_node_fit
                else "no scope shows its groups",
                "foresee_node_fit" if rules.foresee_node_fit else "scopes",
            ),
            *_if(
                rules.foresee_quota,
                self.quotas,
                "pods may be evicted whose replacement a quota refuses",
                "foresee_quota",
            ),
            *_if(
                rules.foresee_disruption_budgets,
                self.disruption_budgets,
                "only the server's answer tells of PodDisruptionBudgets, and a restart in place breaks them",
                "foresee_disruption_budgets",
            ),
            *_if(
                not updating.ignore_hpa,
                self.hpas,
                "resources by which a HorizontalPodAutoscaler scales are changed too",
                "ignore_hpa",
            ),
        ]
        self._troubles = troubles

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Keep all copies up to date while the block runs; it starts when each is complete or denied."""
        needed = [self.vpas, self.pods, *self.workloads.values()]
        async with running(*needed, *(one.mirror for one in self.optional)):
            for mirror in needed:
                await self._wait(mirror)
            for one in self.optional:
                await self._wait(one.mirror)
            yield

    async def _wait(self, mirror: Reflector[Any, Any]) -> None:
        """Wait for the first complete copy, however long; what may not be read is done without."""
        optional = mirror is not self.vpas and mirror is not self.pods
        while not mirror.synced:
            if optional and _denied(mirror):
                return
            with contextlib.suppress(CacheNotSyncedError):
                await mirror.wait_synced(0.2 if optional else SYNC_TIMEOUT)
            if not mirror.synced and mirror.last_error is not None and not optional:
                self._troubles.bad(f"The first list of {mirror.resource}", mirror.last_error)
            await asyncio.sleep(0)
        self._troubles.good(f"The first list of {mirror.resource}")

    def stale(self) -> str | None:
        """Which copy is too old to act on, as a sentence; None if all are fresh enough."""
        for mirror in (self.vpas, self.pods):
            if mirror.age > STALE:
                why = f": {mirror.last_error}" if mirror.last_error else ""
                return f"the copy of {mirror.resource} is {mirror.age:.0f} s old{why}"
        return None

    def available(self, mirror: Reflector[Any, Any]) -> bool:
        """Is an optional copy there and, as far as we may tell, still true?"""
        return any(one.mirror is mirror for one in self.optional) and _usable(mirror)

    def check(self) -> dict[str, bool]:
        """Rule → can it be kept? What is off is said when it begins and when it is over."""
        found: dict[str, bool] = {}
        for one in self.optional:
            found[one.rule] = _usable(one.mirror)
            subject = f"Without {one.mirror.resource} {one.check}"
            if found[one.rule]:
                self._troubles.good(subject)
            else:
                self._troubles.bad(subject, one.mirror.last_error or "no list has come yet")
        return found


class Replicas(Mapping[GroupKey, int]):
    """How many pods each direct owner wants, read from the copies when it is asked for."""

    def __init__(self, mirrors: Mirrors) -> None:
        self._workloads = mirrors.workloads

    def __getitem__(self, key: GroupKey) -> int:
        mirror = self._workloads.get(key.kind)
        found = mirror.get((key.namespace, key.name)) if mirror is not None else None
        if not isinstance(found, Sized) or found.wanted is None:
            raise KeyError(key)
        return found.wanted

    def __iter__(self) -> Iterator[GroupKey]:
        for kind, mirror in self._workloads.items():
            for namespace, name in mirror:
                yield GroupKey(namespace, kind, name)

    def __len__(self) -> int:
        return sum(map(len, self._workloads.values()))


def _usable(mirror: Reflector[Any, Any]) -> bool:
    return mirror.synced and (not _denied(mirror) or mirror.age < STALE)


def _denied(mirror: Reflector[Any, Any]) -> bool:
    return isinstance(mirror.last_error, Forbidden | NotFound)


def _if(wanted: bool, mirror: Reflector[Any, Any], check: str, rule: str) -> list[Watched]:
    return [Watched(mirror, check, rule)] if wanted else []


def _copy(connection: Connection, resource: Resource, kind: Any, **options: Any) -> Reflector[Any, Any]:
    return Reflector(connection, resource, kind=kind, project=whole, **options)


def _workloads(
    connection: Connection, resource: Resource, rules: Rules, **options: Any
) -> Reflector[Any, Record]:
    """Records of one kind, without the ReplicaSets of the past, ten a Deployment, which want no pods."""

    def project(found: Any) -> Record | None:
        record = workloads.record(found, resource)
        wanted = configured_replicas(resource.kind, found, rules=rules)
        if resource.kind == "ReplicaSet" and wanted == 0:
            return None
        return Sized(**{name: getattr(record, name) for name in _RECORD_FIELDS}, wanted=wanted)

    return Reflector(connection, resource, kind=workloads.kind_of(resource), project=project, **options)


_RECORD_FIELDS: Final = tuple(field.name for field in msgspec.structs.fields(Record))
