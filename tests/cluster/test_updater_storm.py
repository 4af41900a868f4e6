"""Thousands of pods that are out of date when the updater starts: no storm."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.cluster import roles
from tests.cluster.onlookers import onlooker
from tests.cluster.updating import Running, Scene
from tests.cluster.webhooks import Webhook
from tests.testbed.cluster import Cluster
from tests.testbed.nodes import FakeNodes
from tests.testbed.processes import attempts

GROUPS, REPLICAS = 300, 10
MAY_BE_DOWN = REPLICAS // 2
HALF = GROUPS * MAY_BE_DOWN
QPS, BURST = 100.0, 100.0
UNDER_WAY = 60
"""Requests that may be under way when a second begins: they are counted when they are answered."""

pytestmark = pytest.mark.cluster


@pytest.fixture(scope="module")
def scene() -> Iterator[Scene]:
    """A cluster with room for 3,000 pods, all of another size than their VPAs want."""
    nodes = FakeNodes(count=10, cpu="256", memory="1Ti", pods=1000)
    with Cluster(nodes=[nodes]) as cluster:
        cluster.create_namespace("storm")
        found = Scene(cluster, "storm")
        found.lease()
        names = [f"app-{number:03}" for number in range(GROUPS)]

        def create(name: str) -> None:
            node = nodes.names[int(name[-3:]) % nodes.count]  # thousands of pods are much to schedule
            spec = {"nodeName": node}
            found.workload(name, kind="ReplicaSet", replicas=REPLICAS, wait=False, spec=spec)
            found.vpa(name, kind="ReplicaSet")

        with ThreadPoolExecutor(8) as threads:
            list(threads.map(create, names))
        for _ in attempts(300, f"{GROUPS * REPLICAS} running pods", pause=2):
            sets = cluster.api.list("ReplicaSet", "storm")
            if sum(one["status"].get("readyReplicas", 0) for one in sets) == GROUPS * REPLICAS:
                break
        account = cluster.service_account("kube-system", "vpa-admission-controller")
        roles.ours("admission-controller").grant_to(account)
        with Webhook(cluster=cluster, account=account, flags=["--v=0"]):
            yield found


async def test_3000_pods_that_are_out_of_date_at_the_start_make_no_storm(scene: Scene) -> None:
    """Ten go until the webhook has proven itself; then half of each group, as fast as the client may ask."""
    async with (
        onlooker(scene) as looking,
        scene.updater("--updater-interval=1h", qps=QPS, burst=BURST, proven=False) as updater,
    ):
        asked: list[tuple[float, int]] = []
        watcher = asyncio.create_task(count(updater, asked))
        loop = asyncio.create_task(updater.parts.updater.run())
        try:
            await updater.parts.updater.tick()
            assert updater.parts.metrics.own.pods.value(action="evict", reason="OutsideBounds") == 10
            await updater.until(lambda: len(looking.left) >= HALF, "half of each group to go", seconds=180)
        finally:
            for task in (loop, watcher):
                task.cancel()
            await asyncio.gather(loop, watcher, return_exceptions=True)
        # Never is one taken while as many as may be are down.
        assert min(looking.left.values()) > REPLICAS - MAY_BE_DOWN
        # A probe's group has room again when its replacement runs, and no other has.
        assert len(looking.left) <= HALF + 2 * 10 * MAY_BE_DOWN
        assert updater.connection.requests["POST", 429] == 0
    assert most_in_a_second(asked) <= QPS + BURST + UNDER_WAY


async def count(updater: Running, asked: list[tuple[float, int]]) -> None:
    """Note how many requests were answered so far, ten times a second."""
    while True:
        asked.append((time.monotonic(), updater.connection.requests.total()))
        await asyncio.sleep(0.1)


def most_in_a_second(asked: list[tuple[float, int]]) -> int:
    return max(until - since for begun, since in asked for moment, until in asked if 0 < moment - begun <= 1)
