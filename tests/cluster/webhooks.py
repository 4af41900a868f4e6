"""A webhook (ours, or upstream's) as a process beside the testbed's API server, and what its tests create."""

from __future__ import annotations

import contextlib
import sys
import time
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.error import HTTPError, URLError

from tests.testbed import ports
from tests.testbed.accounts import ServiceAccount
from tests.testbed.api import ApiNotFoundError, Json
from tests.testbed.certificates import ADDRESS, Authority, Certificate
from tests.testbed.cluster import Cluster
from tests.testbed.processes import Process, attempts

NAME = "vpa-webhook-config"
NAMESPACE = "kube-system"
OBSERVED = "vpaObservedContainers"
OURS = (sys.executable, "-m", "admission")


@dataclass(kw_only=True)
class Webhook:
    """One admission controller. As a context manager it is ended with its registration at the end."""

    cluster: Cluster
    account: ServiceAccount
    server: str = ""
    """A fault proxy's url, in place of the API server itself."""
    program: Sequence[str | Path] = OURS
    flags: Sequence[str] = ()
    name: str = "admission"
    register: bool = True
    configuration: str = NAME
    authority: Authority | None = None
    port: int = field(default_factory=ports.free)
    metrics_port: int = field(default_factory=ports.free)
    certificate: Certificate | None = None
    process: Process = field(init=False)

    def __post_init__(self) -> None:
        folder = self.cluster.folder / self.name
        self.authority = self.authority or Authority(folder)
        self.certificate = self.certificate or self.authority.issue("webhook")

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.process.kill()
        if self.register:
            self.cluster.api.delete("MutatingWebhookConfiguration", self.configuration)

    def command(self) -> list[str | Path]:
        """How it is started."""
        assert self.certificate is not None
        assert self.authority is not None
        return [
            *self.program,
            f"--kubeconfig={self._kubeconfig()}",
            f"--port={self.port}",
            f"--address={ADDRESS}:{self.metrics_port}",
            f"--tls-cert-file={self.certificate.chain}",
            f"--tls-private-key={self.certificate.key}",
            f"--client-ca-file={self.authority.certificate}",
            f"--register-webhook={str(self.register).lower()}",
            "--register-by-url",
            f"--webhook-address=https://{ADDRESS}",
            f"--webhook-port={self.port}",
            *([f"--webhook-configuration={self.configuration}"] if self.configuration != NAME else []),
            *self.flags,
        ]

    def _kubeconfig(self) -> Path:
        return self.account.kubeconfig_to(self.server) if self.server else self.account.kubeconfig

    def spawn(self) -> None:
        """Start it, and wait for nothing."""
        self.process = self.cluster.spawn(self.name, self.command(), NAMESPACE=NAMESPACE)

    def start(self) -> Self:
        """Start it; returns when it is ready and, if it registers, registered."""
        self.spawn()
        self.wait()
        return self

    def wait(self, seconds: float = 60.0) -> None:
        """Wait until it is ready and registered."""
        for _ in attempts(seconds, f"{self.name} to be ready", self.process, pause=0.02):
            if self.health() == "OK":
                break
        if not self.register:
            return
        for _ in attempts(seconds, f"{self.name} to register", self.process, pause=0.02):
            with contextlib.suppress(ApiNotFoundError):
                hook = self.configured()["webhooks"][0]
                if hook["clientConfig"].get("url", "").endswith(f":{self.port}"):
                    break
        self._wait_to_be_called()

    def _wait_to_be_called(self) -> None:
        """An API server calls a webhook only some time after it is registered; a busy one takes its time."""
        if any("namespace" in flag for flag in self.flags):
            return  # perhaps it is not called for ours
        target = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "none"}
        body = {
            "apiVersion": "autoscaling.k8s.io/v1",
            "kind": "VerticalPodAutoscaler",
            "metadata": {"name": "anybody-there"},
            "spec": {"targetRef": target},
        }
        path = self.cluster.api.path("VerticalPodAutoscaler", None, "default") + "?dryRun=All"
        for _ in range(100):
            self.cluster.api.request("POST", path, body)
            if self.figure("vpa_admission_controller_admission_latency_seconds_count"):
                return
            time.sleep(0.05)

    def configured(self) -> Json:
        """The MutatingWebhookConfiguration."""
        return self.cluster.api.get("MutatingWebhookConfiguration", self.configuration)

    def health(self) -> str:
        """What ``/health-check`` says; "" while nobody answers."""
        try:
            return self._get("/health-check")
        except HTTPError as error:
            return error.read().decode()
        except (URLError, OSError):
            return ""

    def figure(self, name: str, **labels: str) -> float:
        """A metric of the process, 0 if it is not there; of several series their sum."""
        total = 0.0
        for line in self._get("/metrics").splitlines():
            head, _, value = line.rpartition(" ")
            series, _, text = head.partition("{")
            if series == name and all(f'{label}="{one}"' in text for label, one in labels.items()):
                total += float(value)
        return total

    def _get(self, path: str) -> str:
        with urllib.request.urlopen(f"http://{ADDRESS}:{self.metrics_port}{path}", timeout=10) as answer:
            text: str = answer.read().decode()
            return text


def resources(cpu: str | None = None, memory: str | None = None) -> dict[str, str]:
    """A resource list."""
    return {name: value for name, value in (("cpu", cpu), ("memory", memory)) if value is not None}


def container(
    name: str, requests: dict[str, str] | None = None, limits: dict[str, str] | None = None
) -> Json:
    """A container of a pod template."""
    found: dict[str, Any] = {}
    if requests is not None:
        found["requests"] = requests
    if limits is not None:
        found["limits"] = limits
    return {"name": name, "image": "pause", "resources": found}


def template(containers: Sequence[Json], labels: dict[str, str]) -> Json:
    """A pod template."""
    return {
        "metadata": {"labels": labels},
        "spec": {"containers": list(containers), "terminationGracePeriodSeconds": 0},
    }


def workload(kind: str, name: str, containers: Sequence[Json], *, replicas: int = 1) -> Json:
    """A controller of pods, of any built-in kind; its pods have the label ``app=NAME``."""
    labels = {"app": name}
    pods = template(containers, labels)
    spec: Json = {"selector": {"matchLabels": labels}, "template": pods, "replicas": replicas}
    group = "apps/v1"
    if kind == "StatefulSet":
        spec |= {"serviceName": name, "podManagementPolicy": "Parallel"}
    elif kind == "DaemonSet":
        del spec["replicas"]
    elif kind == "ReplicationController":
        group, spec["selector"] = "v1", labels
    elif kind in ("Job", "CronJob"):
        group = "batch/v1"
        pods["spec"]["restartPolicy"] = "Never"
        spec = {"template": pods, "parallelism": replicas, "completions": replicas}
        if kind == "CronJob":
            spec = {"schedule": "0 0 1 1 *", "jobTemplate": {"spec": spec}}
    return {"apiVersion": group, "kind": kind, "metadata": {"name": name}, "spec": spec}


def recommendation(container: str, cpu: str | None = None, memory: str | None = None) -> Json:
    """What the recommender would write for one container."""
    target = resources(cpu, memory)
    return {"containerName": container, "target": target, "lowerBound": target, "upperBound": target}


@dataclass(frozen=True)
class Scene:
    """A namespace, and the short way to put things into it."""

    cluster: Cluster
    namespace: str
    peer: bool = False
    """Is it upstream's webhook? That misses pods which come right after their ReplicaSet: we delete those."""

    def vpa(
        self,
        name: str,
        *recommendations: Json,
        target: str = "Deployment",
        target_name: str | None = None,
        api_version: str = "apps/v1",
        mode: str | None = "Recreate",
        **spec: Any,
    ) -> Json:
        """Create a VPA with a status of *recommendations*, of a target of the same name."""
        body = {
            "apiVersion": "autoscaling.k8s.io/v1",
            "kind": "VerticalPodAutoscaler",
            "metadata": {"name": name},
            "spec": {
                "targetRef": {"apiVersion": api_version, "kind": target, "name": target_name or name},
                **({} if mode is None else {"updatePolicy": {"updateMode": mode}}),
                **spec,
            },
        }
        made = self.cluster.api.create(body, self.namespace)
        return self.recommend(name, *recommendations) if recommendations else made

    def recommend(self, name: str, *recommendations: Json) -> Json:
        """Write the status of a VPA."""
        status = {"recommendation": {"containerRecommendations": list(recommendations)}}
        return self.cluster.api.patch(
            "VerticalPodAutoscaler", name, self.namespace, body={"status": status}, subresource="status"
        )

    def limit_range(self, *items: Json, name: str = "limits") -> Json:
        """Create a LimitRange."""
        body = {
            "apiVersion": "v1",
            "kind": "LimitRange",
            "metadata": {"name": name},
            "spec": {"limits": items},
        }
        return self.cluster.api.create(body, self.namespace)

    def create(self, body: Json) -> Json:
        return self.cluster.api.create(body, self.namespace)

    def run(self, kind: str, name: str, *containers: Json, replicas: int = 1) -> list[Json]:
        """Create a controller and wait for its pods."""
        self.create(workload(kind, name, containers, replicas=replicas))
        count = 3 if kind == "DaemonSet" else replicas
        return self.pods(name, count)

    def pods(self, app: str, count: int = 1) -> list[Json]:
        """The pods with the label ``app=APP``, as soon as there are *count*."""
        found: list[Json] = []
        for _ in attempts(60, f"{count} pods of {app}", pause=0.03):
            found = self.cluster.api.list("Pod", self.namespace, labelSelector=f"app={app}")
            missed = [pod for pod in found if self.peer and OBSERVED not in annotations_of(pod)]
            for pod in missed:
                self.cluster.api.delete("Pod", pod["metadata"]["name"], self.namespace)
            if len(found) >= count and not missed:
                break
        return found


def requests(pod: Json, container: int = 0) -> dict[str, str]:
    """What a container of a pod requests."""
    found: dict[str, str] = pod["spec"]["containers"][container]["resources"].get("requests", {})
    return found


def limits(pod: Json, container: int = 0) -> dict[str, str]:
    """What a container of a pod may use."""
    found: dict[str, str] = pod["spec"]["containers"][container]["resources"].get("limits", {})
    return found


def annotations_of(pod: Json) -> dict[str, str]:
    found: dict[str, str] = pod["metadata"].get("annotations", {})
    return found
