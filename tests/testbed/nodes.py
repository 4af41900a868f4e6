"""Kinds of nodes that a cluster can have."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import yaml

from tests.testbed import builds, folders
from tests.testbed.api import Json
from tests.testbed.processes import attempts

if TYPE_CHECKING:
    from tests.testbed.cluster import Cluster

STAGES = folders.HERE / "stages"


class Nodes(Protocol):
    """Some nodes of one kind. All are started before any is waited for."""

    @property
    def real(self) -> bool:
        """Whether they are machines, which need a network of the cluster's own."""

    def start(self, cluster: Cluster) -> None:
        """Start what plays or is the nodes, on a control plane that answers."""

    def wait(self, cluster: Cluster) -> None:
        """Return when every node is Ready."""


@dataclass(frozen=True, kw_only=True)
class FakeNodes:
    """Nodes without machines: kwok plays their kubelets, after `stages/`; pods there never really run.

    What README.md says of annotations makes such a kubelet misbehave.
    """

    count: int = 3
    cpu: str = "16"
    memory: str = "64Gi"
    pods: int = 500
    prefix: str = "fake"
    real: bool = False

    @property
    def names(self) -> list[str]:
        """The nodes' names."""
        return [f"{self.prefix}-{number}" for number in range(self.count)]

    def start(self, cluster: Cluster) -> None:
        """Start kwok and create the nodes."""
        stages = cluster.folder / "stages.yaml"
        stages.write_text("---\n".join(json.dumps(stage) + "\n" for stage in load_stages()))
        command: list[str | Path] = [
            builds.binary("kwok"),
            f"--kubeconfig={cluster.kubeconfig}",
            "--manage-nodes-with-annotation-selector=kwok.x-k8s.io/node=fake",
            f"--config={stages}",
            "--node-ip=127.0.0.1",
            "--cidr=10.1.0.0/16",
            # Without heartbeats every node is given up after 50 s, and its pods stay unready for good.
            "--node-lease-duration-seconds=40",
        ]
        cluster.add("kwok", command).start()
        for name in self.names:
            cluster.api.create(self._node(name))

    def wait(self, cluster: Cluster) -> None:
        """Return when kwok has made the nodes Ready and the scheduler may use them."""
        wanted = set(self.names)
        for _ in attempts(60, f"nodes {self.prefix}-* to be Ready", cluster.process("kwok")):
            wanted -= {node["metadata"]["name"] for node in cluster.api.list("Node") if usable(node)}
            if not wanted:
                return

    def _node(self, name: str) -> Json:
        room = {"cpu": self.cpu, "memory": self.memory, "pods": str(self.pods), "ephemeral-storage": "1Ti"}
        return {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {
                "name": name,
                "annotations": {"kwok.x-k8s.io/node": "fake"},
                "labels": {
                    "kubernetes.io/arch": "amd64",
                    "kubernetes.io/hostname": name,
                    "kubernetes.io/os": "linux",
                },
            },
            "status": {"allocatable": room, "capacity": room},
        }


def load_stages() -> list[Json]:
    """The stages of all files in `stages/` as kwok wants them; the YAML anchors in them are ours."""
    return [
        {"apiVersion": "kwok.x-k8s.io/v1alpha1", "kind": "Stage", "metadata": {"name": name}, "spec": spec}
        for path in sorted(STAGES.glob("*.yaml"))
        for name, spec in yaml.safe_load(path.read_text())["stages"].items()
    ]


def usable(node: Json) -> bool:
    """Whether it is Ready and the scheduler may use it."""
    ready = any(
        condition["type"] == "Ready" and condition["status"] == "True"
        for condition in node["status"].get("conditions", ())
    )
    return ready and not node["spec"].get("taints")


def release_leases(cluster: Cluster) -> None:
    """Forget who held the nodes: kwok, started again, would wait 40 s for its predecessor's leases."""
    cluster.api.delete("Lease", None, "kube-node-lease")
