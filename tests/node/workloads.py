"""Workloads for real nodes, and what the kernel, the kubelet and our services say of them."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping, Sequence
from typing import Any

from tests.testbed.api import ApiError, Json
from tests.testbed.cluster import Cluster
from tests.testbed.processes import attempts
from tests.testbed.realnodes.cgroups import Values
from tests.testbed.realnodes.images import WORK
from tests.testbed.realnodes.nodes import RealNodes
from vpa.quantities import Quantity

MI = 2**20
RUNNING_SECONDS = 60.0

Sizes = Mapping[str, str]
"""Resource → quantity."""


def container(
    name: str = "app",
    *,
    mib: int = 8,
    milli: int = 0,
    requests: Sizes | None = None,
    limits: Sizes | None = None,
    **more: Any,
) -> Json:
    """A container that holds *mib* MiB and burns *milli* millicores."""
    resources = {"requests": dict(requests or {}), "limits": dict(limits or {})}
    port = more.pop("port", 8080)
    return {
        "name": name,
        "image": WORK,
        "imagePullPolicy": "Never",
        "args": [f"-mib={mib}", f"-milli={milli}", f"-addr=:{port}"],
        "resources": {kind: sizes for kind, sizes in resources.items() if sizes},
        "readinessProbe": {"httpGet": {"path": "/", "port": port}, "periodSeconds": 1},
        **more,
    }


def pod_spec(*containers: Json, node: str | None = None, **more: Any) -> Json:
    """A pod's spec; *node* is the one it has to be on."""
    where = {"nodeSelector": {"kubernetes.io/hostname": node}} if node else {}
    return {"terminationGracePeriodSeconds": 1, "containers": list(containers), **where, **more}


class Namespace:
    """A namespace of one test."""

    def __init__(self, name: str, cluster: Cluster, nodes: RealNodes) -> None:
        self.name = name
        self.cluster = cluster
        self.api = cluster.api
        self._nodes = nodes
        cluster.create_namespace(name)

    def remove(self) -> None:
        """Delete it; its pods leave their nodes in their own time."""
        self.api.delete("Namespace", self.name)

    # ---- making

    def controller(
        self, kind: str, name: str, spec: Json, *, replicas: int | None = 1, wait: bool = True, **more: Any
    ) -> None:
        """Create a Deployment, StatefulSet, DaemonSet or Job whose pods are labelled ``app: NAME``."""
        template = {"metadata": {"labels": {"app": name}}, "spec": spec}
        body: Json = {"template": template, **more}
        if kind == "Job":
            version = "batch/v1"
        else:
            version = "apps/v1"
            body["selector"] = {"matchLabels": {"app": name}}
            if kind != "DaemonSet":
                body["replicas"] = replicas
        self.api.create(
            {"apiVersion": version, "kind": kind, "metadata": {"name": name}, "spec": body}, self.name
        )
        if wait:
            self.running(name, count=replicas or 1)

    def deployment(self, name: str, spec: Json, *, replicas: int = 1, wait: bool = True) -> None:
        """Create a Deployment, and wait until its pods are ready."""
        self.controller("Deployment", name, spec, replicas=replicas, wait=wait)

    def vpa(
        self,
        name: str,
        *,
        kind: str = "Deployment",
        mode: str = "InPlaceOrRecreate",
        recommender: str | None = "the-test",
        minimum: int = 1,
        **more: Any,
    ) -> None:
        """Create a VPA for the controller of the same name.

        *recommender* None: ours recommends; otherwise `recommend` does. *minimum* is its minReplicas.
        """
        version = {"Job": "batch/v1", "CronJob": "batch/v1"}.get(kind, "apps/v1")
        spec: Json = {
            "targetRef": {"apiVersion": version, "kind": kind, "name": name},
            "updatePolicy": {"updateMode": mode, "minReplicas": minimum},
            **more,
        }
        if recommender is not None:
            spec["recommenders"] = [{"name": recommender}]
        group = "autoscaling.k8s.io/v1"
        self.api.create(
            {"apiVersion": group, "kind": "VerticalPodAutoscaler", "metadata": {"name": name}, "spec": spec},
            self.name,
        )

    def recommend(self, vpa: str, sizes: Mapping[str, Sizes]) -> float:
        """Write a recommendation (container → sizes), bounds and target alike; the time of it, monotonic."""
        recommended = [
            {"containerName": name, **{key: dict(target) for key in ("target", "lowerBound", "upperBound")}}
            for name, target in sizes.items()
        ]
        condition = {
            "type": "RecommendationProvided",
            "status": "True",
            "lastTransitionTime": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        }
        self.api.patch(
            "VerticalPodAutoscaler",
            vpa,
            self.name,
            body={
                "status": {
                    "recommendation": {"containerRecommendations": recommended},
                    "conditions": [condition],
                }
            },
            subresource="status",
        )
        return time.monotonic()

    # ---- looking

    def pods(self, app: str) -> list[Json]:
        """The pods labelled ``app: APP`` that are not being deleted, the oldest first."""
        found = self.api.list("Pod", self.name, labelSelector=f"app={app}")
        found = [pod for pod in found if "deletionTimestamp" not in pod["metadata"]]
        return sorted(found, key=lambda pod: str(pod["metadata"]["creationTimestamp"]))

    def pod(self, app: str) -> Json:
        """The only one of them."""
        (only,) = self.pods(app)
        return only

    def running(self, app: str, *, count: int = 1, seconds: float = RUNNING_SECONDS) -> list[Json]:
        """Wait until *count* of them are there and all are ready."""
        for _ in attempts(seconds, f"{count} ready pods of {app}", pause=0.1):
            found = self.pods(app)
            if len(found) == count and all(map(is_ready, found)):
                return found
        raise AssertionError

    def in_force(self, app: str, sizes: Mapping[str, Json], *, seconds: float) -> Json:
        """Wait until the kubelet says that the only pod has *sizes* (container → resources); the pod."""
        for _ in attempts(seconds, f"{app} to have {dict(sizes)}", pause=0.1):
            found = self.pods(app)
            if len(found) == 1:
                now = {one["name"]: one.get("resources") for one in statuses(found[0])}
                if all(now.get(name) == wanted for name, wanted in sizes.items()):
                    return found[0]
        raise AssertionError

    def cgroup(self, pod: Json, name: str | None = None) -> Values:
        """What the kernel holds for the pod's container *name* (the first one)."""
        status = next(one for one in statuses(pod) if name in (None, one["name"]))
        node = self._nodes[pod["spec"]["nodeName"]]
        return node.groups.pod(pod["metadata"]["uid"], status["containerID"].removeprefix("containerd://"))

    def pod_cgroup(self, pod: Json) -> Values:
        """What the kernel holds for the pod as a whole."""
        return self._nodes[pod["spec"]["nodeName"]].groups.pod(pod["metadata"]["uid"])

    def conditions(self, vpa: str) -> dict[str, Json]:
        """The VPA's conditions by type."""
        found = self.api.get("VerticalPodAutoscaler", vpa, self.name)
        return {one["type"]: one for one in found.get("status", {}).get("conditions", ())}

    def blocked(self, vpa: str, reason: str, *, seconds: float = 60) -> str:
        """Wait until the VPA says that its pods are left alone for *reason*; the message."""
        last: Json = {}
        with contextlib.suppress(TimeoutError):
            for _ in attempts(seconds, reason, pause=0.2):
                last = self.conditions(vpa).get("UpdatesBlocked", {})
                if last.get("status") == "True" and last.get("reason") == reason:
                    return str(last["message"])
        raise AssertionError(f"not {reason} after {seconds:g} s, but {last or 'no condition'}")

    def events(self, name: str) -> list[Json]:
        """The events about an object of that name."""
        return self.api.list("Event", self.name, fieldSelector=f"involvedObject.name={name}")

    def free_cpu(self, node: str) -> int:
        """Millicores of *node* that no pod requests, once those of earlier tests are gone."""
        for _ in attempts(120, "the namespaces of earlier tests to be gone", pause=0.2):
            if all(each["status"]["phase"] == "Active" for each in self.api.list("Namespace")):
                break
        allocatable = self.api.get("Node", node)["status"]["allocatable"]["cpu"]
        requested = (
            each.get("resources", {}).get("requests", {}).get("cpu", "0")
            for pod in self.api.list("Pod", fieldSelector=f"spec.nodeName={node}")
            if pod["status"]["phase"] in ("Pending", "Running")
            for each in pod["spec"]["containers"]
        )
        return millicores(allocatable) - sum(map(millicores, requested))

    # ---- doing

    def work(self, pod: Json, *, port: int = 8080, **change: int) -> None:
        """Let the workload in *pod* use ``mib`` or ``milli`` from now on."""
        query = "&".join(f"{name}={value}" for name, value in change.items())
        path = self.api.path("Pod", f"{pod['metadata']['name']}:{port}", self.name)
        self.api.raw("GET", f"{path}/proxy/?{query}", headers={})

    def evict(self, pod: Json) -> None:
        """Delete a pod, as anybody might."""
        with contextlib.suppress(ApiError):
            self.api.delete("Pod", pod["metadata"]["name"], self.name)


def millicores(quantity: str) -> int:
    """Of a quantity of CPU."""
    return int(Quantity.parse(quantity).milli())


def statuses(pod: Json) -> Sequence[Json]:
    """The statuses of all containers of a pod, sidecars included."""
    status = pod.get("status", {})
    return [*status.get("containerStatuses", ()), *status.get("initContainerStatuses", ())]


def restarts(pod: Json) -> int:
    """How often its containers were started again."""
    return sum(one["restartCount"] for one in statuses(pod))


def is_ready(pod: Json) -> bool:
    """Whether the pod is ready."""
    return condition(pod, "Ready").get("status") == "True"


def condition(pod: Json, kind: str) -> Json:
    """A condition of a pod; empty when it has none of that type."""
    found: Sequence[Json] = pod.get("status", {}).get("conditions", ())
    return next((one for one in found if one["type"] == kind), {})
