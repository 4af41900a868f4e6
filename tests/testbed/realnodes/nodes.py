"""Real nodes as a kind of nodes of a cluster, with the real metrics-server beside them."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

from tests.testbed import builds, components, nodes
from tests.testbed.processes import attempts
from tests.testbed.realnodes import images, metrics_server, packets
from tests.testbed.realnodes.boxes import Node, Programs, Size, Surroundings

if TYPE_CHECKING:
    from tests.testbed.cluster import Cluster

READY_SECONDS = 120.0


class RealNodes:
    """Nodes ``node-1`` … of the *sizes*, in the order in which they are given."""

    real = True

    def __init__(self, sizes: Sequence[Size] = (Size(), Size()), *, archives: Sequence[Path] = ()) -> None:
        """*archives* are more images, imported before the nodes are Ready."""
        self._sizes = list(sizes)
        self.archives = list(archives)
        self.nodes: list[Node] = []

    def start(self, cluster: Cluster) -> None:
        """Start the nodes and metrics-server."""
        built = builds.ensure(*(components.COMPONENTS[name] for name in components.REAL_NODES))
        around = Surroundings(
            network=cluster.network,
            authority=cluster.authority,
            server=cluster.inner_server,
            programs=Programs(
                kubelet=built["kubelet"],
                kube_proxy=built["kube-proxy"],
                containerd=built["containerd"],
                runc=built["runc"],
                cni=built["bridge"].parent,
                packets=packets.tools(cluster.folder / "bin"),
            ),
            images=(images.basic(), *self.archives),
            count=len(self._sizes),
        )
        for index, size in enumerate(self._sizes, 1):
            self.nodes.append(Node(f"node-{index}", index, size, around))
        with ThreadPoolExecutor() as pool:
            list(pool.map(Node.start, self.nodes))
        metrics_server.start(cluster, built["metrics-server"])

    def wait(self, cluster: Cluster) -> None:
        """Return when every node is Ready and the scheduler may use it."""
        self.wait_for(cluster, *self.nodes)

    def wait_for(self, cluster: Cluster, *which: Node) -> None:
        """The same for some of them, after they were started again."""
        wanted = {node.name for node in which}
        processes = [node.process for node in which]
        for _ in attempts(READY_SECONDS, f"{', '.join(sorted(wanted))} to be Ready", *processes):
            wanted -= {node["metadata"]["name"] for node in cluster.api.list("Node") if nodes.usable(node)}
            if not wanted:
                return

    def load(self, archive: Path) -> None:
        """Import the images of *archive* on all nodes."""
        with ThreadPoolExecutor() as pool:
            list(pool.map(lambda node: node.load(archive), self.nodes))

    def __getitem__(self, name: str) -> Node:
        return next(node for node in self.nodes if node.name == name)
