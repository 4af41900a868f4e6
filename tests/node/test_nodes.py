"""The nodes themselves: nothing is left of them, whatever happens, and nothing outside is touched."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.node.figures import Figures
from tests.node.workloads import Namespace, container, is_ready, pod_spec, restarts
from tests.testbed import watchdog
from tests.testbed.cluster import Cluster
from tests.testbed.processes import attempts
from tests.testbed.realnodes import project_image
from tests.testbed.realnodes.nodes import RealNodes
from tests.testbed.runs import REPOSITORY

ANOTHER = """
import sys, time
from tests.testbed.cluster import Cluster
from tests.testbed.realnodes.boxes import Size
from tests.testbed.realnodes.nodes import RealNodes

with Cluster(nodes=[RealNodes([Size(memory=1024)])]) as cluster:
    print(cluster.folder, flush=True)
    time.sleep(600)
"""


def outside() -> dict[str, object]:
    """What this machine has that a node might change."""
    settings = ("vm/overcommit_memory", "kernel/panic", "kernel/panic_on_oops", "net/ipv4/ip_forward")
    addresses = subprocess.run(["ip", "-json", "address"], capture_output=True, text=True, check=True)
    return {
        "links": {one["ifname"]: one.get("addr_info") for one in json.loads(addresses.stdout)},
        "mounts": sorted(line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()),
        "settings": [Path(f"/proc/sys/{name}").read_text() for name in settings],
        "routes": Path("/proc/net/route").read_text(),
    }


@pytest.mark.brief
def test_a_second_cluster_runs_beside_this_one_and_leaves_nothing_when_its_test_is_killed(
    real: Cluster, nodes: RealNodes
) -> None:
    before = outside()
    command = [sys.executable, "-c", ANOTHER]
    with subprocess.Popen(command, cwd=REPOSITORY, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        folder = Path(other.stdout.readline().strip())
        assert outside() == before, "while it runs"
        groups = [Path(line) for line in (folder / watchdog.CGROUPS).read_text().splitlines()]
        assert groups
        assert all(group.exists() for group in groups)
        os.kill(other.pid, signal.SIGKILL)
    for _ in attempts(30, "its watchdog to remove everything", pause=0.1):
        if not folder.exists() and not watchdog.marked(folder):
            break
    assert not [group for group in groups if group.exists()]
    assert outside() == before
    assert all(node.running for node in nodes.nodes)
    assert len(real.api.list("Node")) == 2


def test_a_node_that_loses_its_power_comes_back_with_its_pods(
    real: Cluster, nodes: RealNodes, namespace: Namespace, figures: Figures
) -> None:
    namespace.deployment("steady", pod_spec(container(requests={"cpu": "10m"}), node="node-2"))
    before = namespace.pod("steady")
    node = nodes["node-2"]
    start = time.monotonic()
    node.kill()
    assert not kubelets(real, node.name)
    node.start()
    for _ in attempts(300, "the pod to be ready again", pause=0.5):
        after = namespace.pod("steady")
        if restarts(after) > 0 and is_ready(after):
            break
    figures("seconds until its pod is ready", round(time.monotonic() - start))
    assert after["metadata"]["uid"] == before["metadata"]["uid"]
    nodes.wait_for(real, node)


def kubelets(cluster: Cluster, node: str) -> list[int]:
    """The processes that are kubelets of that node."""
    return [
        process.pid
        for process in watchdog.marked(cluster.folder)
        if f"--hostname-override={node}" in process.cmdline() and process.name() == "kubelet"
    ]


@pytest.mark.brief
def test_the_images_are_small() -> None:
    assert project_image.size() < project_image.LIMIT
