"""The recommender's trial."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from functools import partial

from tests.rbac import workloads
from tests.rbac.trials import POOL, Check, Trial
from tests.testbed.api import Json
from vpa.quantities import Quantity

CHECKPOINT = "VerticalPodAutoscalerCheckpoint"
GIB = 2**30


class Recommending(Trial):
    """Pods of all kinds with usage, checkpoints of the past, an eviction, a LimitRange, a split DaemonSet."""

    service = "recommender"
    program = "recommender"
    seconds = 60.0

    def prepare(self) -> None:
        self.cluster.metrics.use(cpu=0.5, memory=400 * 2**20, namespace=self.namespace)
        for kind in workloads.KINDS:
            workloads.create(self.api, self.namespace, kind)
        workloads.create(self.api, self.namespace, "DaemonSet", "split")
        workloads.create(self.api, self.namespace, "Deployment", "past", replicas=0)
        self.wait_for_pods([*map(str.lower, workloads.KINDS), "split"])
        limits = {"limits": [{"type": "Container", "max": {"cpu": "400m"}}]}
        self.api.create(
            {"apiVersion": "v1", "kind": "LimitRange", "metadata": {"name": "limits"}, "spec": limits},
            self.namespace,
        )
        for vpa, container, version in (
            ("past", "main", "v3"),
            ("nobody", "main", "v3"),
            ("job", "main", "v999"),
        ):
            self.api.create(checkpoint(vpa, container, version), self.namespace)
        for kind in workloads.KINDS:
            workloads.autoscaler(self.api, self.namespace, kind)
        workloads.autoscaler(self.api, self.namespace, "Deployment", "past")
        workloads.autoscaler(self.api, self.namespace, "DaemonSet", "split", scope=POOL)

    def arguments(self) -> list[str]:
        return [
            "--recommender-interval=1s",
            "--checkpoints-gc-interval=2s",
            "--spread-checkpoints=false",  # ten minutes are too long here
            "--leader-elect",
            "--leader-elect-resource-name=vpa-recommender",
            f"--leader-elect-resource-namespace={self.namespace}",
            "--authenticate-metrics",
        ]

    def is_ready(self) -> bool:
        return self.target("statefulset").get("cpu") == "587m"

    def happen(self) -> None:
        (pod,) = self.pods("statefulset")
        involved = {"kind": "Pod", "namespace": self.namespace, "name": pod["metadata"]["name"]}
        self.api.create(
            {
                "apiVersion": "v1",
                "kind": "Event",
                "metadata": {
                    "name": "evicted",
                    "annotations": {
                        "offending_containers": "main",
                        "offending_containers_usage": "3Gi",
                        "starved_resource": "memory",
                    },
                },
                "involvedObject": involved,
                "reason": "Evicted",
                "type": "Warning",
            },
            self.namespace,
        )
        workloads.autoscaler(self.api, self.namespace, "Deployment", "late")
        workloads.create(self.api, self.namespace, "Deployment", "late")

    def checks(self) -> dict[str, Check]:
        used: dict[str, Check] = {
            f"pods of a {kind} are recommended what they use": partial(self.has_target, kind.lower())
            for kind in workloads.KINDS
        }
        return used | {
            "a VPA and pods that come later are recommended for": partial(self.has_target, "late"),
            "an eviction for lack of memory raises the target": lambda: (
                Quantity.parse(self.target("statefulset")["memory"]).value() > 3 * GIB
            ),
            "history of a checkpoint is recommended after a restart": lambda: (
                self.target("past")["cpu"] not in ("", "25m")
            ),
            "history is saved in a checkpoint": lambda: self.api.get(
                CHECKPOINT, "deployment-main", self.namespace
            ),
            "a checkpoint whose VPA is gone is deleted": lambda: all(
                one["spec"]["vpaObjectName"] != "nobody" for one in self.api.list(CHECKPOINT, self.namespace)
            ),
            "an event names a checkpoint that cannot be read": lambda: self.events("CheckpointUnreadable"),
            "the condition Capped tells of a LimitRange": lambda: (
                (self.condition("deployment", "Capped") or {})["reason"] == "LimitRange"
            ),
            "a DaemonSet split by node has a recommendation for each node": lambda: (
                {one["scopeValue"] for one in self.vpa("split")["status"]["groups"]}
                == {one["metadata"]["name"] for one in self.api.list("Node")}
            ),
            "the lease of the leader is renewed": lambda: (
                (lease := self.api.get("Lease", "vpa-recommender", self.namespace)["spec"])["renewTime"]
                != lease["acquireTime"]
            ),
            "metrics are served to those who may read them": self.figures,
        }

    def clean(self) -> None:
        """Everything is in the namespace."""

    def target(self, vpa: str) -> Json:
        """The target of the only container, empty without one."""
        entries = self.vpa(vpa).get("status", {}).get("recommendation", {})
        found: list[Json] = entries.get("containerRecommendations", [])
        return found[0]["target"] if found else {}

    def has_target(self, vpa: str) -> bool:
        return bool(self.target(vpa)["cpu"] == "587m")


def checkpoint(vpa: str, container: str, version: str) -> Json:
    """A checkpoint as a recommender before us has left it."""
    now = datetime.fromtimestamp(time.time(), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    histogram = {"referenceTimestamp": now, "bucketWeights": {"30": 10000}, "totalWeight": 3.0}
    return {
        "apiVersion": "autoscaling.k8s.io/v1",
        "kind": CHECKPOINT,
        "metadata": {"name": f"{vpa}-{container}"},
        "spec": {"vpaObjectName": vpa, "containerName": container},
        "status": {
            "version": version,
            "lastUpdateTime": now,
            "firstSampleStart": now,
            "lastSampleStart": now,
            "totalSamplesCount": 10,
            "cpuHistogram": histogram,
            "memoryHistogram": histogram,
        },
    }
