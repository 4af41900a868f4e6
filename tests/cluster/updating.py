"""The updater on a real cluster: workloads, VPAs, passes, and what became of the pods."""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

from prometheus_client.registry import CollectorRegistry

from tests.cluster import roles
from tests.testbed.accounts import ServiceAccount
from tests.testbed.api import Api, Json
from tests.testbed.cluster import Cluster
from tests.testbed.processes import attempts
from updater.assembly import Parts, assemble, running
from updater.metrics import AllMetrics
from updater.settings import TABLE, Settings
from vpa.cluster.connection import Connection
from vpa.durations import Duration
from vpa.objects import meta
from vpa.objects.pods import Pod
from vpa.telemetry.health import Health
from vpa.updates.breakers import Breakers

VPA = "VerticalPodAutoscaler"
OLD = {"cpu": "100m", "memory": "100Mi"}
NEW = {"cpu": "200m", "memory": "200Mi"}
FAR = "2100-01-01T00:00:00.000000Z"
SECONDS = 30.0
"""How long tests wait for anything."""


class Clock:
    """A wall clock that tests move."""

    def __init__(self) -> None:
        self.offset = timedelta(0)

    def __call__(self) -> datetime:
        return datetime.now(UTC) + self.offset

    def advance(self, **time: float) -> None:
        self.offset += timedelta(**time)


class Scene:
    """One namespace with workloads and VPAs, and the updater for it."""

    def __init__(self, cluster: Cluster, namespace: str) -> None:
        self.cluster = cluster
        self.api: Api = cluster.api
        self.namespace = namespace

    # Objects

    def workload(
        self,
        name: str = "app",
        *,
        kind: str = "Deployment",
        replicas: int = 3,
        requests: Mapping[str, str] | None = None,
        limits: Mapping[str, str] | None = None,
        containers: Iterable[str] = ("main",),
        annotations: Mapping[str, str] | None = None,
        wait: bool = True,
        spec: Mapping[str, Any] | None = None,
        **container: Any,
    ) -> None:
        """A controller, by default with running pods, labelled ``app: NAME``."""
        resources: Json = {"requests": dict(OLD if requests is None else requests)}
        if limits:
            resources["limits"] = dict(limits)
        template: Json = {
            "metadata": {"labels": {"app": name}, "annotations": dict(annotations or {})},
            "spec": {
                "terminationGracePeriodSeconds": 0,
                "containers": [
                    {"name": one, "image": "app:1", "resources": resources, **container} for one in containers
                ],
                **(spec or {}),
            },
        }
        self.api.create(_controller(kind, name, replicas, template), self.namespace)
        if wait:
            self.wait_for_pods(replicas, name)

    def vpa(
        self,
        name: str = "app",
        *,
        mode: str | None = "Recreate",
        target: str | None = None,
        kind: str = "Deployment",
        recommend: Mapping[str, str] | None = NEW,
        containers: Iterable[str] = ("main",),
        policy: Mapping[str, Any] | None = None,
        conditions: Mapping[str, str] | None = None,
        **spec: Any,
    ) -> None:
        """A VPA; *recommend* is target and both bounds of every container, None for no recommendation."""
        version = {"ReplicationController": "v1", "Job": "batch/v1", "CronJob": "batch/v1"}.get(
            kind, "apps/v1"
        )
        update = {**({"updateMode": mode} if mode else {}), **(policy or {})}
        self.api.create(
            {
                "apiVersion": "autoscaling.k8s.io/v1",
                "kind": VPA,
                "metadata": {"name": name},
                "spec": {
                    "targetRef": {"apiVersion": version, "kind": kind, "name": target or name},
                    **({"updatePolicy": update} if update else {}),
                    **spec,
                },
            },
            self.namespace,
        )
        if recommend is not None:
            self.recommend(name, recommend, containers=containers, conditions=conditions)

    def recommend(
        self,
        name: str = "app",
        target: Mapping[str, str] = NEW,
        *,
        lower: Mapping[str, str] | None = None,
        upper: Mapping[str, str] | None = None,
        containers: Iterable[str] = ("main",),
        conditions: Mapping[str, str] | None = None,
    ) -> None:
        """Write a recommendation as the recommender would."""
        entries = [
            {
                "containerName": one,
                "target": dict(target),
                "lowerBound": dict(lower or target),
                "upperBound": dict(upper or target),
            }
            for one in containers
        ]
        status: Json = {"recommendation": {"containerRecommendations": entries}}
        if conditions is not None:
            now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
            status["conditions"] = [
                {"type": kind, "status": value, "lastTransitionTime": now}
                for kind, value in conditions.items()
            ]
        self.api.patch(VPA, name, self.namespace, body={"status": status}, subresource="status")

    def create(self, api_version: str, kind: str, name: str, spec: Mapping[str, Any]) -> Json:
        """Any other object."""
        body = {
            "apiVersion": api_version,
            "kind": kind,
            "metadata": {"name": name},
            "spec": dict(spec),
        }
        return self.api.create(body, self.namespace)

    def disruption_budget(self, name: str = "app", *, app: str = "app", **spec: Any) -> None:
        """A PodDisruptionBudget for pods labelled *app*, counted by its controller."""
        self.create(
            "policy/v1", "PodDisruptionBudget", name, {"selector": {"matchLabels": {"app": app}}, **spec}
        )
        for _ in attempts(SECONDS, "the budget to be counted"):
            found = self.api.get("PodDisruptionBudget", name, self.namespace)
            status = found.get("status", {})
            if status.get("observedGeneration") == found["metadata"]["generation"] and status.get(
                "expectedPods"
            ):
                return

    def lease(self, name: str = "admission", *, renewed: str = FAR) -> None:
        """The admission controller's sign of life."""
        self.api.apply(
            {
                "apiVersion": "coordination.k8s.io/v1",
                "kind": "Lease",
                "metadata": {"name": name},
                "spec": {"holderIdentity": "test", "renewTime": renewed, "leaseDurationSeconds": 60},
            },
            self.namespace,
        )

    # What there is

    def pods(self, app: str = "app", *, all_of_them: bool = False) -> list[Json]:
        """Pods that are not leaving, by name."""
        found = self.api.list("Pod", self.namespace, labelSelector=f"app={app}")
        return sorted(
            (pod for pod in found if all_of_them or "deletionTimestamp" not in pod["metadata"]),
            key=lambda pod: str(pod["metadata"]["name"]),
        )

    def uids(self, app: str = "app") -> set[str]:
        return {pod["metadata"]["uid"] for pod in self.pods(app)}

    def wait_for_pods(self, count: int, app: str = "app", **wanted: str) -> list[Json]:
        """Wait until exactly so many pods run, all with the requests *wanted* in force."""
        for _ in attempts(SECONDS, f"{count} running pods of {app} with {wanted}"):
            pods = self.pods(app, all_of_them=True)
            if (
                len(pods) == count
                and all(pod["status"].get("phase") == "Running" for pod in pods)
                and all(in_force(pod).items() >= wanted.items() for pod in pods)
            ):
                return pods
        raise AssertionError("unreachable")

    def events(self, reason: str) -> list[Json]:
        """Events of the updater."""
        return [event for event in self.api.list("Event", self.namespace) if event["reason"] == reason]

    def wait_for_events(self, reason: str, count: int = 1) -> list[Json]:
        """Wait until there are so many, repetitions counted."""
        for _ in attempts(SECONDS, f"{count} events {reason}"):
            found = self.events(reason)
            if sum(event.get("count", 1) for event in found) >= count:
                return found
        raise AssertionError("unreachable")

    def condition(self, kind: str, vpa: str = "app") -> Json | None:
        """A condition of a VPA."""
        status = self.api.get(VPA, vpa, self.namespace).get("status", {})
        return next((one for one in status.get("conditions", ()) if one["type"] == kind), None)

    def wait_for_condition(self, kind: str, reason: str, vpa: str = "app") -> Json:
        for _ in attempts(SECONDS, f"condition {kind} {reason}"):
            found = self.condition(kind, vpa)
            if found is not None and found["reason"] == reason:
                return found
        raise AssertionError("unreachable")

    # The updater

    def account(self) -> ServiceAccount:
        """The updater's account with our roles, the optional ones too."""
        account = self.cluster.service_account("kube-system", "vpa-updater")
        roles.ours("updater").grant_to(account)
        return account

    @contextlib.asynccontextmanager
    async def updater(
        self,
        *args: str,
        now: Callable[[], datetime] | None = None,
        server: str = "",
        account: ServiceAccount | None = None,
        proven: bool = True,
        qps: float = 0.0,
        burst: float = 100.0,
    ) -> AsyncIterator[Running]:
        """An updater of this namespace in this process, whose passes the test makes.

        *proven*: it has just seen that the webhook works. *server*: a fault proxy's url.
        """
        used = account if account is not None else await asyncio.to_thread(self.account)
        kubeconfig = await asyncio.to_thread(used.kubeconfig_to, server or self.cluster.server)
        settings = TABLE.parse(self.arguments(*args, kubeconfig=str(kubeconfig))).fill(Settings)
        clock = now or Clock()
        stopping = asyncio.Event()
        metrics = AllMetrics(CollectorRegistry())
        async with await Connection.open(
            kubeconfig=str(kubeconfig), qps=qps, burst=burst, user_agent="vpa-updater"
        ) as opened:
            parts = assemble(
                settings,
                opened,
                metrics=metrics,
                health=Health(Duration.of(minutes=5)),
                stopping=stopping,
                now=clock,
            )
            if proven:
                parts.updater.memory.breakers.proven = clock()
            async with running(parts):
                yield Running(self, parts, opened, settings)

    def arguments(self, *args: str, kubeconfig: str) -> list[str]:
        """The flags that bind an updater to this namespace; *args* come last and win."""
        return [
            f"--kubeconfig={kubeconfig}",
            f"--vpa-object-namespace={self.namespace}",
            "--admission-controller-status-lease-name=admission",
            f"--admission-controller-status-lease-namespace={self.namespace}",
            "--updater-interval=20s",
            *args,
        ]

    def foretold(self, *args: str, now: datetime | None = None) -> dict[str, tuple[str, str]]:
        """What ``vpa plan`` says of the objects as they are: pod → (action, reason)."""
        kinds = "vpa,pod,deploy,rs,sts,ds,rc,job,cronjob,pdb,quota,limitrange,hpa"
        text = self.cluster.kubectl("get", kinds, "-n", self.namespace, "-o", "json")
        nodes = self.cluster.kubectl("get", "nodes", "-o", "json")
        objects = json.dumps(
            {
                "apiVersion": "v1",
                "kind": "List",
                "items": json.loads(text)["items"] + json.loads(nodes)["items"],
            }
        )
        command = [sys.executable, "-m", "vpa.cli", "plan", "-f", "-", "-o", "json", *args]
        if now is not None:
            command.append(f"--now={now.isoformat()}")
        done = subprocess.run(command, input=objects, capture_output=True, text=True, check=True, timeout=60)
        return {row["name"]: (row["action"], row["reason"]) for row in json.loads(done.stdout)}


class Running:
    """An updater under the test's hands."""

    def __init__(self, scene: Scene, parts: Parts, connection: Connection, settings: Settings) -> None:
        self.settings = settings
        self.scene = scene
        self.parts = parts
        self.connection = connection

    @property
    def breakers(self) -> Breakers:
        return self.parts.updater.memory.breakers

    async def pass_once(self) -> dict[str, int]:
        """A pass when the copies are as the server: what it did, as `decisions` says it."""
        await self.catch_up()
        await self.parts.updater.tick()
        return self.decisions()

    def decisions(self) -> dict[str, int]:
        """``ACTION REASON`` → pods, of the last pass; without pods that have no VPA."""
        return {
            f"{sample.labels['action']} {sample.labels['reason']}": int(sample.value)
            for metric in self.parts.metrics.own.pods.collect()
            for sample in metric.samples
            if sample.value and sample.labels["reason"] != "NoVPA"
        }

    async def catch_up(self) -> None:
        """Wait until the copies show what the server has now."""
        mirrors = self.parts.mirrors
        bounds = (mirrors.disruption_budgets, mirrors.quotas, mirrors.hpas)
        for mirror in (mirrors.pods, mirrors.vpas, *filter(mirrors.available, bounds)):
            await self.until(partial(self._is_up_to_date, mirror), f"the copy of {mirror.resource}")
        await self.until(self._knows_replicas, "the copy of ReplicaSets")

    def _is_up_to_date(self, mirror: Any) -> bool:
        """Is each object of the same version in both?"""
        found = self.scene.api.request("GET", mirror.resource.path(self.scene.namespace))["items"]
        wanted = {
            one["metadata"]["name"]: one["metadata"]["resourceVersion"]
            for one in found
            if mirror is not self.parts.mirrors.pods or self._is_seen(one)
        }
        return wanted == {one.metadata.name: one.metadata.resource_version for one in list(mirror.values())}

    def _is_seen(self, pod: Json) -> bool:
        finished = pod["status"].get("phase") in ("Succeeded", "Failed")
        scheduled = bool(pod["spec"].get("nodeName"))
        return not finished and (scheduled or self.settings.rules.see_unscheduled_pods)

    def _knows_replicas(self) -> bool:
        """ReplicaSets that want no pods are not copied."""
        found = self.scene.api.list("ReplicaSet", self.scene.namespace)
        wanted = {
            one["metadata"]["name"]: one["spec"]["replicas"] for one in found if one["spec"]["replicas"]
        }
        known = list(self.parts.mirrors.workloads["ReplicaSet"].values())
        return wanted == {one.key.name: one.replicas for one in known}

    async def condition(self, kind: str, reason: str, vpa: str = "app") -> Json:
        """A condition of a VPA when it is there, while the updater goes on."""
        return await asyncio.to_thread(self.scene.wait_for_condition, kind, reason, vpa)

    async def events(self, reason: str, count: int = 1) -> list[Json]:
        """Events, while the updater goes on."""
        return await asyncio.to_thread(self.scene.wait_for_events, reason, count)

    async def passes(self, count: int = 3, clock: Clock | None = None) -> None:
        """So many passes, a minute of *clock* apart, each when what the last one began is done."""
        for _ in range(count):
            await self.pass_once()
            if clock is not None:
                clock.advance(minutes=1)
            await self.until(self._is_settled, "all pods run and are as their specs say")

    def _is_settled(self) -> bool:
        """Do all pods that have a node run, with their sizes in force unless told otherwise?"""
        found = self.scene.api.list("Pod", self.scene.namespace)
        return all(
            "deletionTimestamp" not in pod["metadata"]
            and (pod["status"].get("phase") != "Pending" or not pod["spec"].get("nodeName"))
            and ("kubelet.testbed/resize" in pod["metadata"].get("annotations", {}) or is_resized(pod))
            for pod in found
        )

    async def until(self, condition: Callable[[], object], what: str, *, seconds: float = SECONDS) -> None:
        """Wait, while the updater goes on."""
        deadline = asyncio.get_running_loop().time() + seconds
        while not await asyncio.to_thread(condition):
            assert asyncio.get_running_loop().time() < deadline, f"not within {seconds:g} s: {what}"
            await asyncio.sleep(0.05)


def in_force(pod: Json) -> dict[str, str]:
    """Requests of the first container as the kubelet has them in force."""
    statuses = pod["status"].get("containerStatuses") or [{}]
    requests: dict[str, str] = statuses[0].get("resources", {}).get("requests", {})
    return requests


def is_resized(pod: Json) -> bool:
    """Is no resize of it under way?"""
    conditions = {one["type"] for one in pod["status"].get("conditions", ())}
    finished = pod["status"].get("phase") != "Running"
    return finished or (in_force(pod) == requested(pod) and "PodResizeInProgress" not in conditions)


def requested(pod: Json) -> dict[str, str]:
    """Requests of the first container as the pod's spec has them."""
    requests: dict[str, str] = pod["spec"]["containers"][0]["resources"].get("requests", {})
    return requests


def sizes(pods: Iterable[Json]) -> Counter[str]:
    """CPU request in the spec → pods."""
    return Counter(requested(pod).get("cpu", "") for pod in pods)


def parsed(pods: Iterable[Json]) -> list[Pod]:
    return [meta.convert(pod, Pod) for pod in pods]


def _controller(kind: str, name: str, replicas: int, template: Json) -> Json:
    labels = {"app": name}
    version = {"ReplicationController": "v1", "Job": "batch/v1", "CronJob": "batch/v1"}.get(kind, "apps/v1")
    spec: Json
    if kind == "Job" or kind == "CronJob":
        template["spec"]["restartPolicy"] = "OnFailure"
        template["metadata"]["annotations"]["kubelet.testbed/complete-after"] = "1h"
        spec = {"parallelism": replicas, "completions": replicas, "template": template}
        if kind == "CronJob":
            spec = {"schedule": "* * * * *", "concurrencyPolicy": "Forbid", "jobTemplate": {"spec": spec}}
    elif kind == "ReplicationController":
        spec = {"replicas": replicas, "selector": labels, "template": template}
    else:
        spec = {"selector": {"matchLabels": labels}, "template": template}
        if kind != "DaemonSet":
            spec["replicas"] = replicas
        if kind == "StatefulSet":
            spec |= {"serviceName": name, "podManagementPolicy": "Parallel"}
    return {"apiVersion": version, "kind": kind, "metadata": {"name": name}, "spec": spec}
