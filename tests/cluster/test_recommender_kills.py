"""Kills for lack of memory on a real cluster: the target rises at once, and it is not forgotten."""

from __future__ import annotations

import time

import pytest

from tests.cluster.recommending import SECONDS, Shop
from tests.testbed.cluster import Cluster
from tests.testbed.metrics import MetricsApi
from tests.testbed.processes import attempts
from vpa.quantities import Quantity


@pytest.fixture
def shop(cluster: Cluster, metrics: MetricsApi, namespace: str) -> Shop:
    """A namespace of its own in the cluster of this run; `metrics` forgets usage afterwards."""
    return Shop(cluster, namespace)


def mib(quantity: str) -> float:
    return Quantity.parse(quantity).value() / 2**20


@pytest.mark.parametrize("replicas", [1, 5])
def test_when_every_replica_is_killed_the_target_rises_within_seconds(shop: Shop, replicas: int) -> None:
    shop.workload("web", replicas=replicas, memory="500Mi")
    shop.vpa("web")
    shop.use("web", cpu=0.1, memory=300)
    with shop.recommender(interval="60s") as running:
        shop.wait_for_target("web", "web")
        shop.wait("the first usage", lambda: mib(shop.targets("web")["web"]["memory"]) > 300, running.process)
        killed = time.monotonic()
        shop.kill_all("web")
        shop.wait(
            "the target to rise", lambda: mib(shop.targets("web")["web"]["memory"]) > 600, running.process
        )
        assert time.monotonic() - killed < 10, "long before the next tick"
        assert running.ticks() == 1
        checkpoint = shop.wait("its checkpoint", lambda: shop.saved("web", "web"), running.process)
        assert checkpoint["metadata"]["annotations"]["vpaRunningMemoryPeaks"]
        running.process.kill()
        raised = shop.targets("web")
        shop.cluster.metrics.fail(503)
        running.process.start()
        running.wait_for_ticks(1)
        assert shop.targets("web") == raised, "the kill survives a restart without an orderly end"
        assert shop.samples("web", "web") >= checkpoint["status"]["totalSamplesCount"] > 0


def test_a_kill_while_no_recommender_runs_is_learned_afterwards(shop: Shop) -> None:
    shop.workload("web", memory="500Mi")
    shop.vpa("web")
    shop.kill_all("web")
    for _ in attempts(SECONDS, "the restart"):
        (pod,) = shop.api.list("Pod", shop.namespace)
        if pod["status"]["containerStatuses"][0]["restartCount"]:
            break
    with shop.recommender() as running:
        shop.wait_for_target("web", "web")
        shop.wait("the kill", lambda: mib(shop.targets("web")["web"]["memory"]) > 600, running.process)


def test_an_eviction_for_lack_of_memory_raises_the_target(shop: Shop) -> None:
    shop.workload("web", memory="100Mi")
    shop.vpa("web")
    (pod,) = shop.api.list("Pod", shop.namespace)
    with shop.recommender(interval="60s") as running:
        shop.wait_for_target("web", "web")
        event = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {
                "name": "evicted",
                "annotations": {
                    "offending_containers": "web",
                    "offending_containers_usage": "900Mi",
                    "starved_resource": "memory",
                },
            },
            "involvedObject": {
                "kind": "Pod",
                "namespace": shop.namespace,
                "name": pod["metadata"]["name"],
                "uid": pod["metadata"]["uid"],
            },
            "reason": "Evicted",
            "message": "The node was low on resource: memory.",
            "type": "Warning",
        }
        shop.api.create(event, shop.namespace)
        shop.wait(
            "the target to rise", lambda: mib(shop.targets("web")["web"]["memory"]) > 1080, running.process
        )
