"""The cluster at one moment, as a plan needs it: what is not known switches off the checks that need it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from typing import Any, Final, TypeVar
from urllib.parse import quote

from updater.features import Features
from updater.mirrors import Mirrors, Replicas
from updater.ownership import PodIndex
from updater.settings import Settings
from updater.troubles import Troubles
from vpa.cluster import heartbeats
from vpa.cluster.connection import Connection
from vpa.cluster.errors import ClusterError, NotFound
from vpa.cluster.reflectors import Named, Reflector
from vpa.disruptions import Plan, Surroundings
from vpa.durations import SECOND
from vpa.metrics.metrics_api import MetricsError, decode_pod_metrics
from vpa.sizes.limit_ranges import ranges_of
from vpa.sizes.nodes_fit import Rooms
from vpa.updates.pdbs import DisruptionBudgets
from vpa.updates.quotas import Quotas
from vpa.updates.resize_patches import current

N = TypeVar("N", bound=Named)

MemoryUse = Mapping[tuple[str, str, str], int]

LEASE: Final = "The admission controller's lease"
USE: Final = "Without present memory use limits may be lowered below it"
TIMEOUT: Final = 10.0
AGAIN: Final = timedelta(minutes=5)
"""After an answer that use cannot be read, it is not asked for again before."""


class World:
    """Reads what the copies do not hold, and joins all of it."""

    def __init__(
        self,
        settings: Settings,
        connection: Connection,
        mirrors: Mirrors,
        index: PodIndex,
        features: Features,
        troubles: Troubles,
        *,
        lease_namespace: str,
    ) -> None:
        self._settings = settings
        self._connection = connection
        self._mirrors = mirrors
        self._index = index
        self._features = features
        self._troubles = troubles
        self._lease_namespace = lease_namespace
        self._ask_for_use_at: datetime | None = None
        self.reads_use = settings.rules.keep_memory_limit_above_use
        """Could present memory use be read when it was last asked for?"""

    async def webhook_ready(self, now: datetime) -> bool:
        """Is the admission controller alive, as far as its lease tells and that is asked for?"""
        loop = self._settings.loop
        if not loop.use_admission_controller_status:
            return True
        try:
            lease = await heartbeats.read(
                self._connection,
                namespace=self._lease_namespace,
                name=loop.admission_controller_status_lease_name,
            )
        except ClusterError as error:
            missing = isinstance(error, NotFound)
            self._troubles.bad(LEASE, "nobody has ever written it" if missing else error)
            return False
        timeout = loop.admission_controller_status_lease_timeout / SECOND
        if heartbeats.is_alive(lease, now=now, timeout=timeout):
            self._troubles.good(LEASE)
            return True
        self._troubles.bad(LEASE, "it is not renewed any more, so nothing is evicted until it is")
        return False

    def now(self, *, webhook_ready: bool, memory_use: MemoryUse | None = None) -> Surroundings:
        """What the copies hold at this moment."""
        mirrors, rules = self._mirrors, self._settings.rules
        looks_at_room = rules.foresee_node_fit or self._settings.sizing.cap_to_node
        ranges = _by_namespace(mirrors.limit_ranges.values()) if self._is_there(mirrors.limit_ranges) else {}
        return Surroundings(
            replicas=Replicas(mirrors),
            ranges={namespace: ranges_of(found, rules=rules) for namespace, found in ranges.items()},
            rooms=Rooms(mirrors.nodes.values(), self._index.of_kinds("DaemonSet", "Node"))
            if looks_at_room and self._is_there(mirrors.nodes)
            else None,
            nodes={node.metadata.name: node.metadata.labels or {} for node in mirrors.nodes.values()},
            disruption_budgets=DisruptionBudgets(mirrors.disruption_budgets.values())
            if self._is_there(mirrors.disruption_budgets)
            else None,
            quotas=Quotas(mirrors.quotas.values()) if self._is_there(mirrors.quotas) else None,
            hpas=_by_namespace(mirrors.hpas.values()) if self._is_there(mirrors.hpas) else None,
            memory_use=memory_use,
            webhook_ready=webhook_ready,
            can_resize=self._features.can_resize,
            can_lower_memory_limits=self._features.can_lower_memory_limits,
        )

    async def memory_use(self, namespaces: Iterable[str], now: datetime) -> MemoryUse | None:
        """Present use of all containers in *namespaces*; None where it cannot be read."""
        if self._ask_for_use_at is not None and now < self._ask_for_use_at:
            return None
        found: dict[tuple[str, str, str], int] = {}
        try:
            for namespace in namespaces:
                path = f"/apis/metrics.k8s.io/v1beta1/namespaces/{quote(namespace)}/pods"
                body = await self._connection.request("GET", path, timeout=TIMEOUT)
                usage = await asyncio.to_thread(decode_pod_metrics, body, self._settings.rules)
                names = zip(usage.namespaces, usage.pods, usage.containers, strict=True)
                found.update(zip(names, usage.memory.tolist(), strict=True))
        except (ClusterError, MetricsError) as error:
            self._troubles.bad(USE, error)
            self._ask_for_use_at, self.reads_use = now + AGAIN, False
            return None
        self._troubles.good(USE)
        self._ask_for_use_at, self.reads_use = None, True
        return found

    def _is_there(self, mirror: Reflector[Any, Any]) -> bool:
        return self._mirrors.available(mirror)


def lowering(plan: Plan) -> set[str]:
    """The namespaces in which the plan lowers a memory limit."""
    found = set()
    for decision in plan.acted:
        if decision.pod.metadata.namespace in found:
            continue
        now = current(decision.pod)
        if any(
            kind == "limits"
            and resource == "memory"
            and nanos < now.get((container, kind, resource), nanos + 1)
            for (container, kind, resource), nanos in decision.target.items()
        ):
            found.add(decision.pod.metadata.namespace)
    return found


def _by_namespace(objects: Iterable[N]) -> dict[str, list[N]]:
    found: dict[str, list[N]] = {}
    for one in objects:
        found.setdefault(one.metadata.namespace, []).append(one)
    return found
