"""A recommender without a cluster, in virtual time: objects and usage go in, wishes for statuses come out."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec
import numpy as np
from prometheus_client.registry import CollectorRegistry

from recommender.autoscalers import Served
from recommender.engine import Engine
from recommender.lifetimes import Known
from recommender.metrics import AllMetrics
from recommender.ooms import Kill
from recommender.placement import Placement
from recommender.records import PodRecord, PodView, Records
from recommender.settings import TABLE, Settings
from vpa.cluster.owners import OwnerError, Owners, Topmost
from vpa.cluster.targets import Target
from vpa.cluster.workloads import OwnerKey, Record
from vpa.matching import TargetKey
from vpa.metrics.usage import ABSENT, Usage
from vpa.objects import meta
from vpa.objects.autoscalers import VerticalPodAutoscaler
from vpa.quantities import Quantity
from vpa.selectors import from_object
from vpa.sizes.limit_ranges import Ranges
from vpa.statuses import Wanted, compose

SECOND = 10**9
MIB = 2**20
NOON = 1_785_585_600  # 2026-08-01T12:00:00Z

_PODS = msgspec.json.Decoder(PodView)


def settings(*args: str) -> Settings:
    """Settings from command-line flags."""
    return TABLE.parse(args).fill(Settings)


def vpa(
    name: str = "web",
    *,
    namespace: str = "shop",
    target: str = "web",
    kind: str = "Deployment",
    created: str = "2026-07-01T00:00:00Z",
    status: Mapping[str, Any] | None = None,
    annotations: Mapping[str, str] | None = None,
    **spec: Any,
) -> VerticalPodAutoscaler:
    """A VPA; *spec* are further fields of its spec."""
    metadata = {
        "name": name,
        "namespace": namespace,
        "uid": f"{namespace}/{name}",
        "generation": 1,
        "creationTimestamp": created,
        "annotations": annotations,
    }
    ref = {"apiVersion": "apps/v1", "kind": kind, "name": target}
    body: dict[str, Any] = {"metadata": metadata, "spec": {"targetRef": ref, **spec}}
    if status is not None:
        body["status"] = status
    return meta.convert(body, VerticalPodAutoscaler)


def container_status(name: str, **fields: Any) -> dict[str, Any]:
    """A running container; *fields* replace what is given here."""
    return {"name": name, "restartCount": 0, "state": {"running": {}}, "lastState": {}, **fields}


def oom_killed(finished: str) -> dict[str, Any]:
    """The state of a container that was killed then."""
    return {"terminated": {"reason": "OOMKilled", "exitCode": 137, "finishedAt": finished}}


def pod_view(
    name: str,
    *containers: str,
    namespace: str = "shop",
    owner: tuple[str, str] | None = ("ReplicaSet", "web-1"),
    labels: Mapping[str, str] | None = None,
    memory: str | None = None,
    init: Sequence[str] = (),
    phase: str = "Running",
    node: str = "n1",
    statuses: Sequence[Mapping[str, Any]] | None = None,
    annotations: Mapping[str, str] | None = None,
    resources: Mapping[str, Any] | None = None,
) -> PodView:
    """A Pod as it comes from the API server."""
    metadata: dict[str, Any] = {
        "name": name,
        "namespace": namespace,
        "uid": f"uid-{name}",
        "labels": {"app": "web"} if labels is None else labels,
        "annotations": annotations or {},
    }
    if owner is not None:
        kind, owner_name = owner
        reference = {"apiVersion": "apps/v1", "kind": kind, "name": owner_name, "controller": True}
        metadata["ownerReferences"] = [reference]
    sized = resources if resources is not None else {"requests": {"memory": memory}} if memory else {}
    body = {
        "metadata": metadata,
        "spec": {
            "nodeName": node,
            "containers": [{"name": one, "image": "x", "resources": sized} for one in containers],
            "initContainers": [{"name": one, "image": "x"} for one in init] or None,
        },
        "status": {
            "phase": phase,
            "containerStatuses": [container_status(one) for one in containers]
            if statuses is None
            else list(statuses),
        },
    }
    return _PODS.decode(json.dumps(body).encode())


class KnownOwners(Owners):
    """Owners that need no API server: a ReplicaSet NAME-REST belongs to the Deployment NAME."""

    def __init__(self) -> None:
        self.asked: list[OwnerKey] = []
        self.failures: dict[str, OwnerError] = {}

    async def topmost(self, key: OwnerKey) -> Topmost:
        self.asked.append(key)
        if key.name in self.failures:
            raise self.failures[key.name]
        if key.kind == "ReplicaSet":
            return Topmost(OwnerKey(key.namespace, "Deployment", key.name.rpartition("-")[0], "apps/v1"))
        return Topmost(key)


class World:
    """An engine and its pods; time stands still until `pass_time`."""

    def __init__(self, *args: str, start: int = NOON) -> None:
        self.settings = settings(*args)
        self.time = float(start)
        self.owners = KnownOwners()
        self.records = Records()
        self.ranges: dict[str, Ranges] = {}
        self.controllers: dict[TargetKey, Known] = {}
        self.nodes: dict[str, dict[str, str]] = {}
        self.nodes_known = True
        self.metrics = AllMetrics(CollectorRegistry())
        self.engine = Engine(
            self.settings,
            metrics=self.metrics,
            ranges=self.ranges,
            controller=lambda target: self.controllers.get(target, Known(gone=False, template=None)),
        )
        self.placement = Placement(
            self.engine.tracker,
            self.engine.autoscalers,
            self.owners,
            rules=self.settings.rules,
            memory_saver=self.settings.loop.memory_saver,
            node_labels=self.nodes,
            nodes_known=lambda: self.nodes_known,
            now=lambda: self.now,
        )
        self._pods: dict[tuple[str, str], PodRecord] = {}
        self._vpas: dict[tuple[str, str], VerticalPodAutoscaler] = {}

    @property
    def now(self) -> int:
        return int(self.time * SECOND)

    def pass_time(self, seconds: float) -> None:
        self.time += seconds

    # Objects

    def put_vpa(self, new: VerticalPodAutoscaler, target: Target | None = None) -> Served | None:
        """A VPA comes or changes; *target* by default is a Deployment with the label app=<its name>."""
        key = (new.metadata.namespace, new.metadata.name)
        served = self.engine.vpa_changed(self._vpas.get(key), new)
        self._vpas[key] = new
        if served is not None:
            self.resolve(served, target or self.target(new))
        return served

    def drop_vpa(self, name: str, namespace: str = "shop") -> None:
        self.engine.vpa_changed(self._vpas.pop((namespace, name)), None)

    def target(self, of: VerticalPodAutoscaler, *template: str) -> Target:
        ref = of.spec.target_ref
        assert ref is not None
        key = OwnerKey(of.metadata.namespace, ref.kind, ref.name, ref.api_version)
        selector = meta.convert({"matchLabels": {"app": ref.name}}, meta.LabelSelector)
        record = Record(
            key=key,
            uid="",
            owner=None,
            selector=selector,
            replicas=1,
            containers=template,
            regular_containers=template or None,
        )
        return Target(key, from_object(selector), record=record)

    def resolve(self, served: Served, target: Target) -> None:
        self.engine.autoscalers.resolved(served, target)
        self.placement.consider_again()

    def put_pod(self, view: PodView) -> PodRecord:
        record = self.records.record(view)
        self.placement.changed(self._pods.get(record.key), record)
        self._pods[record.key] = record
        self.settle()
        return record

    def drop_pod(self, name: str, namespace: str = "shop") -> None:
        self.placement.changed(self._pods.pop((namespace, name)), None)

    def settle(self) -> None:
        asyncio.run(self.placement.settle())

    # Time

    def read(self, *lines: tuple[str, str, float | None, float | None], namespace: str = "shop") -> None:
        """Usage now: (pod, container, cores, MiB)."""
        count = len(lines)
        self.engine.feed(
            Usage(
                namespaces=[namespace] * count,
                pods=[line[0] for line in lines],
                containers=[line[1] for line in lines],
                times=np.full(count, self.now),
                cpu=np.array([ABSENT if line[2] is None else round(line[2] * 1000) for line in lines]),
                memory=np.array([ABSENT if line[3] is None else round(line[3] * MIB) for line in lines]),
            ),
            self.now,
        )

    def kill(self, pod: str, container: str, memory: float, *, ago: float = 0.0) -> set[tuple[str, str]]:
        """A container was killed; *memory* in MiB."""
        time = self.now - int(ago * SECOND)
        return self.engine.record(Kill("shop", pod, container, time, round(memory * MIB)), self.now)

    def tick(self, keys: Sequence[tuple[str, str]] | None = None) -> dict[tuple[str, str], Wanted]:
        """One tick without reading; what is to be written is taken as written."""
        if keys is None:
            self.engine.tracker.sweep()
        verdict = self.engine.decide(now=self.now, clock=self.time, keys=keys)
        for key, wanted in verdict.writes.items():
            self._write(key, wanted)
        self.engine.decisions.publish_figures(verdict.run)
        return verdict.writes

    def _write(self, key: tuple[str, str], wanted: Wanted) -> None:
        old = self._vpas[key]
        moment = datetime.fromtimestamp(self.time, UTC)
        new = msgspec.structs.replace(old, status=compose(old.status, wanted, moment))
        self._vpas[key] = new
        self.engine.autoscalers.update(new)

    def run(
        self, seconds: float, *lines: tuple[str, str, float | None, float | None], step: float = 60
    ) -> None:
        """Let time pass in ticks of *step* seconds with the same usage."""
        for _ in range(round(seconds / step)):
            self.pass_time(step)
            self.read(*lines)
            self.tick()

    def status(self, name: str = "web", namespace: str = "shop") -> dict[str, Any]:
        """The status as it is in the cluster by now, as plain data."""
        found = self._vpas[namespace, name].status
        result: dict[str, Any] = meta.to_builtins(found) if found is not None else {}
        return result

    def targets(self, name: str = "web") -> dict[str, dict[str, str]]:
        """Container → target."""
        entries = self.status(name).get("recommendation", {}).get("containerRecommendations", [])
        return {entry["containerName"]: entry["target"] for entry in entries}

    def conditions(self, name: str = "web") -> dict[str, dict[str, Any]]:
        """Type → condition."""
        return {one["type"]: one for one in self.status(name).get("conditions", [])}


def of_memory(text: str) -> int:
    """Bytes of a target, margin taken off."""
    return int(Quantity.parse(text).value() / 1.15)


def web_shop(*args: str, containers: tuple[str, ...] = ("web",), pods: int = 1) -> World:
    """A world with pods of the Deployment web and its VPA."""
    made = World(*args)
    for number in range(pods):
        made.put_pod(pod_view(f"web-1-{number}", *containers, memory="500Mi"))
    made.put_vpa(vpa())
    return made
