"""Recommenders on a real cluster, ours and upstream's: workloads, VPAs, and what becomes of them."""

from __future__ import annotations

import contextlib
import json
import sys
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from tests.cluster import roles
from tests.testbed import builds, ports
from tests.testbed.accounts import ServiceAccount
from tests.testbed.api import ApiNotFoundError, Json
from tests.testbed.cluster import Cluster
from tests.testbed.processes import Process, attempts

MIB = 2**20
VPA = "VerticalPodAutoscaler"
CHECKPOINT = "VerticalPodAutoscalerCheckpoint"
SECONDS = 60.0
"""How long tests wait for anything."""


@dataclass
class Running:
    """A recommender process."""

    process: Process
    port: int

    def figures(self) -> dict[str, float]:
        """The metrics: series as it is written → value."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/metrics", timeout=10) as answer:
            lines = answer.read().decode().splitlines()
        return {
            series: float(value)
            for line in lines
            if not line.startswith("#")
            for series, _, value in [line.rpartition(" ")]
        }

    def ticks(self) -> float:
        """How many ticks were made."""
        return self.figures().get('vpa_recommender_execution_latency_seconds_count{step="total"}', 0.0)

    def samples(self) -> float:
        """How many CPU samples of containers with a VPA in mode Off have been accepted."""
        return self.figures().get('vpa_quality_cpu_recommendations_cores_count{update_mode="Off"}', 0.0)

    def logged(self, text: str) -> int:
        """How many lines of the log contain *text*."""
        return sum(text in line for line in self.process.logs().splitlines())

    def answers(self) -> bool:
        """Whether its endpoint is there."""
        with contextlib.suppress(OSError):
            return bool(self.figures())
        return False

    def wait_for_ticks(self, more: int = 2) -> None:
        """Wait until so many whole ticks have passed from now on."""
        wanted = None
        for _ in attempts(SECONDS, f"{more} ticks", self.process):
            with contextlib.suppress(OSError):
                ticks = self.ticks()
                wanted = ticks + more if wanted is None else wanted
                if ticks >= wanted:
                    return

    def wait_for_samples(self, more: int) -> None:
        """Wait until so many more samples have been accepted from now on."""
        wanted = None
        for _ in attempts(SECONDS, f"{more} samples", self.process):
            with contextlib.suppress(OSError):
                samples = self.samples()
                wanted = samples + more if wanted is None else wanted
                if samples >= wanted:
                    return


class Shop:
    """One namespace of a cluster, with workloads, VPAs and recommenders for it."""

    def __init__(self, cluster: Cluster, namespace: str) -> None:
        self.cluster = cluster
        self.api = cluster.api
        self.namespace = namespace

    # Objects

    def workload(
        self,
        name: str,
        *containers: str,
        kind: str = "Deployment",
        replicas: int = 1,
        labels: Mapping[str, str] | None = None,
        memory: str = "200Mi",
        limits: Mapping[str, str] | None = None,
    ) -> None:
        """A controller with running pods."""
        labels = dict(labels or {"app": name})
        resources: Json = {"requests": {"cpu": "100m", "memory": memory}}
        if limits:
            resources["limits"] = dict(limits)
        template = {
            "metadata": {"labels": labels},
            "spec": {
                "terminationGracePeriodSeconds": 0,
                "containers": [
                    {"name": one, "image": f"{one}:1", "resources": resources}
                    for one in containers or (name,)
                ],
            },
        }
        spec: Json = {"selector": {"matchLabels": labels}, "template": template}
        if kind != "DaemonSet":
            spec["replicas"] = replicas
        if kind == "StatefulSet":
            spec["serviceName"] = name
        body = {"apiVersion": "apps/v1", "kind": kind, "metadata": {"name": name}, "spec": spec}
        self.api.apply(body, self.namespace)
        if kind != "DaemonSet":
            self.wait_for_pods(replicas, labels)

    def wait_for_pods(self, count: int, labels: Mapping[str, str]) -> list[Json]:
        """Wait until exactly so many pods run, and no others are there."""
        selector = ",".join(f"{key}={value}" for key, value in labels.items())
        for _ in attempts(SECONDS, f"{count} running pods of {selector}"):
            pods = self.api.list("Pod", self.namespace, labelSelector=selector)
            if len(pods) == count and all(pod["status"].get("phase") == "Running" for pod in pods):
                return pods
        raise AssertionError("unreachable")

    def vpa(self, name: str, *, target: str = "", kind: str = "Deployment", **spec: Any) -> Json:
        """A VPA in mode Off, unless *spec* says otherwise."""
        ref = {"apiVersion": "apps/v1", "kind": kind, "name": target or name}
        body = {
            "apiVersion": "autoscaling.k8s.io/v1",
            "kind": VPA,
            "metadata": {"name": name},
            "spec": {"targetRef": ref, "updatePolicy": {"updateMode": "Off"}, **spec},
        }
        return self.api.create(body, self.namespace)

    def use(self, workload: str, container: str = "*", *, cpu: float, memory: float, pod: str = "*") -> None:
        """What containers use from now on: cores and MiB."""
        self.cluster.metrics.use(
            cpu=cpu,
            memory=memory * MIB,
            namespace=self.namespace,
            workload=workload,
            container=container,
            pod=pod,
        )

    def kill(self, pod: str, container: str = "*") -> None:
        """Let a container be OOM-killed."""
        body = {"metadata": {"annotations": {"kubelet.testbed/oom-kill": container}}}
        self.api.patch("Pod", pod, self.namespace, body=body)

    def kill_all(self, workload: str) -> None:
        """Let the containers of all pods with the label app=*workload* be OOM-killed."""
        for pod in self.api.list("Pod", self.namespace, labelSelector=f"app={workload}"):
            self.kill(pod["metadata"]["name"])

    def wipe(self, vpa: str) -> None:
        """Take a VPA's status away."""
        body = [{"op": "remove", "path": "/status"}]
        self.api.patch(VPA, vpa, self.namespace, body=body, subresource="status", how="json")

    def remember(
        self, vpa: str, container: str, *, days: tuple[float, float], buckets: tuple[int, int], weight: float
    ) -> None:
        """What an earlier recommender saved, enough of it to be trusted.

        *days*: how long ago the first and the last sample were; *buckets*: of CPU and memory.
        """
        first, last = (
            (datetime.now(UTC) - timedelta(days=each)).strftime("%Y-%m-%dT%H:%M:%SZ") for each in days
        )
        cpu, memory = (
            {"referenceTimestamp": first, "bucketWeights": {str(bucket): 10000}, "totalWeight": weight}
            for bucket in buckets
        )
        body = {
            "apiVersion": "autoscaling.k8s.io/v1",
            "kind": CHECKPOINT,
            "metadata": {"name": f"{vpa}-{container}"},
            "spec": {"vpaObjectName": vpa, "containerName": container},
            "status": {
                "version": "v3",
                "lastUpdateTime": last,
                "firstSampleStart": first,
                "lastSampleStart": last,
                "totalSamplesCount": 20_000,
                "cpuHistogram": cpu,
                "memoryHistogram": memory,
            },
        }
        self.api.create(body, self.namespace)

    # What became of them

    def status(self, vpa: str) -> Json:
        """A VPA's status."""
        found: Json = self.api.get(VPA, vpa, self.namespace).get("status", {})
        return found

    def targets(self, vpa: str) -> dict[str, dict[str, str]]:
        """Container → target."""
        entries = self.status(vpa).get("recommendation", {}).get("containerRecommendations", [])
        return {entry["containerName"]: entry["target"] for entry in entries}

    def conditions(self, vpa: str) -> dict[str, Json]:
        """Type → condition."""
        return {one["type"]: one for one in self.status(vpa).get("conditions", [])}

    def cpu(self, vpa: str) -> str:
        """The CPU target of the first container, "" without one."""
        return next(iter(self.targets(vpa).values()), {}).get("cpu", "")

    def has_cpu(self, vpa: str, cpu: str) -> bool:
        """Whether that is the CPU target of the first container."""
        return self.cpu(vpa) == cpu

    def has_condition(self, vpa: str, kind: str) -> bool:
        """Whether the VPA has a condition of that type."""
        return kind in self.conditions(vpa)

    def saved(self, vpa: str, container: str) -> Json | None:
        """A checkpoint object, None if there is none."""
        with contextlib.suppress(ApiNotFoundError):
            return self.api.get(CHECKPOINT, f"{vpa}-{container}", self.namespace)
        return None

    def checkpoint(self, vpa: str, container: str) -> Json:
        """A checkpoint's status."""
        found: Json = self.api.get(CHECKPOINT, f"{vpa}-{container}", self.namespace)["status"]
        return found

    def samples(self, vpa: str, container: str) -> int:
        """The samples that a checkpoint counts; 0 without one."""
        found = self.saved(vpa, container)
        return 0 if found is None else int(found["status"].get("totalSamplesCount", 0))

    def events(self, vpa: str) -> list[tuple[str, str]]:
        """(reason, message) of the events about a VPA, found as kubectl describe finds them."""
        uid = self.api.get(VPA, vpa, self.namespace)["metadata"]["uid"]
        found = self.api.list("Event", self.namespace, fieldSelector=f"involvedObject.uid={uid}")
        return [(event["reason"], event["message"]) for event in found]

    def wait(self, what: str, holds: Callable[[], Any], *processes: Process, seconds: float = SECONDS) -> Any:
        """Wait until *holds* gives something true, and return that."""
        for _ in attempts(seconds, what, *processes, pause=0.1):
            found = holds()
            if found:
                return found
        raise AssertionError("unreachable")

    def wait_for_target(
        self, vpa: str, *containers: str, seconds: float = SECONDS
    ) -> dict[str, dict[str, str]]:
        """Wait until exactly these containers are recommended; their targets."""
        found: dict[str, dict[str, str]] = self.wait(
            f"a recommendation for {containers} in VPA {vpa}",
            lambda: self.targets(vpa) if set(self.targets(vpa)) == set(containers) else None,
            seconds=seconds,
        )
        return found

    # Recommenders

    def account(self) -> ServiceAccount:
        """The recommender's service account with our roles."""
        account = self.cluster.service_account("kube-system", "vpa-recommender")
        roles.ours("recommender").grant_to(account)
        return account

    @contextlib.contextmanager
    def recommender(
        self,
        *args: str,
        kubeconfig: Path | None = None,
        name: str = "recommender",
        interval: str = "500ms",
        everywhere: bool = False,
    ) -> Iterator[Running]:
        """Our recommender for this namespace (or *everywhere*), killed at the end of the block."""
        port = ports.free()
        command = [
            *(sys.executable, "-m", "recommender"),
            f"--kubeconfig={kubeconfig or self.account().kubeconfig}",
            f"--address=127.0.0.1:{port}",
            f"--recommender-interval={interval}",
            "--v=2",
            *([] if everywhere else [f"--vpa-object-namespace={self.namespace}"]),
            *args,
        ]
        process = self.cluster.spawn(f"{name}-{self.namespace}", command)
        with process:
            yield Running(process, port)

    @contextlib.contextmanager
    def upstream(self, *args: str, interval: str = "1s", everywhere: bool = False) -> Iterator[Running]:
        """Upstream's recommender 1.8.1 with its own roles, killed at the end of the block."""
        account = self.cluster.service_account("kube-system", "upstream-recommender")
        roles.upstream("recommender").grant_to(account)
        port = ports.free()
        command: list[str | Path] = [
            builds.binary("upstream-recommender"),
            f"--kubeconfig={account.kubeconfig}",
            f"--address=127.0.0.1:{port}",
            f"--recommender-interval={interval}",
            "--leader-elect=false",
            *([] if everywhere else [f"--vpa-object-namespace={self.namespace}"]),
            *args,
        ]
        process = self.cluster.spawn(f"upstream-recommender-{self.namespace}", command)
        with process:
            yield Running(process, port)


def dumped(shop: Shop, folder: Path, *kinds: str) -> Path:
    """What kubectl prints of these kinds, in a file."""
    path = folder / "objects.json"
    path.write_text(shop.cluster.kubectl("get", ",".join(kinds), "-n", shop.namespace, "-o", "json"))
    assert json.loads(path.read_text())["items"]
    return path
