"""The recommender under fire: it stays up, loses nothing, and says each trouble once."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pytest

from tests.cluster.recommending import Shop
from tests.testbed.cluster import Cluster
from tests.testbed.faults import FaultProxy
from tests.testbed.metrics import MetricsApi
from tests.testbed.processes import attempts

STATUS_PATH = "/apis/autoscaling.k8s.io/v1/namespaces/*/verticalpodautoscalers/*/status"
CHECKPOINTS = "/apis/autoscaling.k8s.io/v1/namespaces/*/verticalpodautoscalercheckpoints*"


@pytest.fixture
def shop(cluster: Cluster, metrics: MetricsApi, namespace: str) -> Shop:
    """A namespace with one workload, its VPA, and its usage."""
    made = Shop(cluster, namespace)
    made.workload("web")
    made.vpa("web")
    made.use("web", cpu=0.5, memory=400)
    return made


@pytest.fixture
def proxy(cluster: Cluster) -> Iterator[FaultProxy]:
    """A way to the API server that can be made faulty."""
    with cluster.fault_proxy() as made:
        yield made


def test_without_a_metrics_api_the_loop_goes_on_and_says_each_trouble_once(shop: Shop) -> None:
    metrics = shop.cluster.metrics
    with shop.recommender() as running:
        shop.wait("usage", lambda: shop.has_cpu("web", "587m"), running.process)
        faults: list[tuple[Callable[[], None], int]] = [
            (lambda: metrics.fail(404), 5),
            (lambda: metrics.fail(503), 3),
            (lambda: metrics.cut(), 2),
        ]
        for number, (fault, ticks) in enumerate(faults, 1):
            fault()
            running.wait_for_ticks(ticks)
            assert shop.cpu("web") == "587m"
            assert running.logged("The Metrics API: ") == 2 * number - 1, "said once, not in each tick"
            metrics.heal()
            running.wait_for_samples(2)
            assert running.logged("The Metrics API: well again") == number
        metrics.delay(1.0)  # longer than the interval
        running.wait_for_samples(2)
        assert running.logged("A tick took") >= 1
        assert running.figures()["vpa_recommender_usage_age_seconds"] < 5


def test_when_the_server_answers_429_to_every_write_all_is_written_afterwards(
    shop: Shop, proxy: FaultProxy
) -> None:
    kubeconfig = shop.account().kubeconfig_to(proxy.url)
    with shop.recommender(kubeconfig=kubeconfig) as running:
        shop.wait("usage", lambda: shop.has_cpu("web", "587m"), running.process)
        proxy.answer(429, path=STATUS_PATH, retry_after=1)
        proxy.answer(429, path=CHECKPOINTS, retry_after=1)
        shop.kill_all("web")
        shop.use("web", cpu=0.9, memory=400)
        running.wait_for_ticks(8)
        assert shop.cpu("web") == "587m"
        assert running.logged("Writing statuses: ") <= 1, "said once, not for each try"
        proxy.heal()
        shop.wait("the newest status", lambda: shop.cpu("web") != "587m", running.process)
        shop.wait("the checkpoint of the kill", lambda: shop.saved("web", "web"), running.process)
        assert running.logged("A tick failed") == 0


def test_a_server_that_cannot_be_reached_for_a_while_costs_nothing(shop: Shop, proxy: FaultProxy) -> None:
    kubeconfig = shop.account().kubeconfig_to(proxy.url)
    with shop.recommender(kubeconfig=kubeconfig) as running:
        shop.wait("usage", lambda: shop.has_cpu("web", "587m"), running.process)
        proxy.refuse()
        proxy.break_connections()
        time.sleep(3)
        shop.use("web", cpu=0.9, memory=400)
        proxy.accept()
        shop.wait("new usage", lambda: shop.cpu("web") != "587m", running.process)
        shop.vpa("late", target="web")
        shop.wait_for_target("late", "web")


def test_checkpoints_that_cannot_be_listed_at_the_start_delay_only_what_depends_on_them(
    shop: Shop, proxy: FaultProxy
) -> None:
    with shop.recommender() as running:
        shop.wait("usage", lambda: shop.has_cpu("web", "587m"), running.process)
        running.wait_for_ticks(4)
        assert running.process.stop() == 0
    before = shop.saved("web", "web")
    assert before is not None
    proxy.answer(500, path=CHECKPOINTS)
    kubeconfig = shop.account().kubeconfig_to(proxy.url)
    shop.cluster.metrics.fail(503)
    with shop.recommender(kubeconfig=kubeconfig, name="again") as running:
        shop.wait("the condition", lambda: shop.has_condition("web", "FetchingHistory"), running.process)
        assert shop.cpu("web") == "587m", "what is there is better than anything made of nothing"
        proxy.heal()
        shop.wait("its end", lambda: not shop.has_condition("web", "FetchingHistory"), running.process)
        assert shop.cpu("web") == "587m"
        shop.cluster.metrics.heal()
        running.wait_for_samples(2)
        assert running.process.stop() == 0
    after = shop.saved("web", "web")
    assert after is not None
    assert after["status"]["totalSamplesCount"] > before["status"]["totalSamplesCount"]


def test_history_survives_a_restart_while_its_target_cannot_be_read(shop: Shop, proxy: FaultProxy) -> None:
    """Field case 29: a custom resource whose scale is unreadable just then."""
    rollouts(shop)
    shop.vpa("roll", targetRef={"apiVersion": "testbed.example.com/v1", "kind": "Rollout", "name": "roll"})
    shop.use("roll", cpu=0.5, memory=400)
    kubeconfig = shop.account().kubeconfig_to(proxy.url)
    with shop.recommender(kubeconfig=kubeconfig) as running:
        shop.wait("usage", lambda: shop.has_cpu("roll", "587m"), running.process)
        running.wait_for_ticks(3)
        assert running.process.stop() == 0
        before = shop.samples("roll", "roll")
        proxy.answer(503, path="*/scale")
        proxy.answer(503, path="/apis/testbed.example.com*")
        running.process.start()
        shop.wait("the condition", lambda: shop.has_condition("roll", "ConfigUnsupported"), running.process)
        running.wait_for_ticks(1)
        assert shop.cpu("roll") == "587m"
        assert shop.conditions("roll")["RecommendationProvided"]["status"] == "True"
        proxy.heal()
        shop.wait("its end", lambda: not shop.has_condition("roll", "ConfigUnsupported"), running.process)
        assert shop.cpu("roll") == "587m"
        running.wait_for_samples(1)
        assert running.process.stop() == 0
        assert shop.samples("roll", "roll") > before > 0


def rollouts(shop: Shop) -> None:
    """A custom resource with a scale, and a pod of it."""
    group, version = "testbed.example.com", "v1"
    scale = {
        "specReplicasPath": ".spec.replicas",
        "statusReplicasPath": ".status.replicas",
        "labelSelectorPath": ".status.selector",
    }
    open_schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    definition = {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"rollouts.{group}"},
        "spec": {
            "group": group,
            "scope": "Namespaced",
            "names": {"plural": "rollouts", "singular": "rollout", "kind": "Rollout"},
            "versions": [
                {
                    "name": version,
                    "served": True,
                    "storage": True,
                    "schema": {"openAPIV3Schema": open_schema},
                    "subresources": {"scale": scale},
                }
            ],
        },
    }
    shop.api.apply(definition)
    body = {
        "apiVersion": f"{group}/{version}",
        "kind": "Rollout",
        "metadata": {"name": "roll"},
        "spec": {"replicas": 1},
        "status": {"replicas": 1, "selector": "app=roll"},
    }
    created = None
    for _ in attempts(30, "the kind Rollout"):
        try:
            created = shop.api.create(body, shop.namespace)
            break
        except LookupError:
            continue
    assert created is not None
    owner = {
        "apiVersion": f"{group}/{version}",
        "kind": "Rollout",
        "name": "roll",
        "uid": created["metadata"]["uid"],
        "controller": True,
    }
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "roll", "labels": {"app": "roll"}, "ownerReferences": [owner]},
        "spec": {"containers": [{"name": "roll", "image": "roll:1"}]},
    }
    shop.api.create(pod, shop.namespace)
    shop.wait_for_pods(1, {"app": "roll"})


def test_clocks_that_jump_lose_no_samples(shop: Shop) -> None:
    """Usage stamped in the future must not lock out what comes after it."""
    with shop.recommender() as running:
        shop.wait("usage", lambda: shop.has_cpu("web", "587m"), running.process)
        shop.cluster.metrics.clock(start=time.time() - 7200, speed=1)  # back
        running.wait_for_ticks(3)
        shop.cluster.metrics.clock()  # and forth
        running.wait_for_samples(3)
        assert running.process.running


def test_a_restart_of_the_api_server_and_a_pause_of_ours_lose_nothing(own_cluster: Cluster) -> None:
    own_cluster.create_namespace("shop")
    shop = Shop(own_cluster, "shop")
    shop.workload("web")
    shop.vpa("web")
    shop.use("web", cpu=0.5, memory=400)
    with shop.recommender() as running:
        shop.wait("usage", lambda: shop.has_cpu("web", "587m"), running.process)
        own_cluster.process("kube-apiserver").stop()
        time.sleep(2)
        assert running.process.running
        own_cluster.process("kube-apiserver").start()
        own_cluster.wait_until_ready()
        shop.api.close()  # the test's own connection is broken too
        running.wait_for_samples(2)
        running.process.pause()
        time.sleep(2)
        running.process.resume()
        running.wait_for_samples(2)
        shop.vpa("late", target="web")
        shop.wait_for_target("late", "web")
        assert running.logged("A tick failed") == 0
        assert running.process.stop() == 0
        found = shop.saved("web", "web")
        assert found is not None
        assert found["status"]["totalSamplesCount"] >= 5
