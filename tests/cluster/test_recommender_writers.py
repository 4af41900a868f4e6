"""Several who write: two VPAs over the same pods, conditions of others, others with our name."""

from __future__ import annotations

import time
from functools import partial

import pytest

from tests.cluster.recommending import VPA, Shop
from tests.testbed.cluster import Cluster
from tests.testbed.metrics import MetricsApi


@pytest.fixture
def shop(cluster: Cluster, metrics: MetricsApi, namespace: str) -> Shop:
    """A namespace of its own in the cluster of this run; `metrics` forgets usage afterwards."""
    return Shop(cluster, namespace)


def test_two_vpas_on_the_same_pods_are_told_of_each_other_and_the_oldest_wins(shop: Shop) -> None:
    shop.workload("web")
    shop.use("web", cpu=0.5, memory=400)
    shop.vpa("older")
    shop.api.delete(VPA, "older", shop.namespace)
    shop.vpa("older", target="web")
    time.sleep(1.1)  # creation times have whole seconds
    shop.vpa("newer", target="web")
    with shop.recommender() as running:
        for name in ("older", "newer"):
            shop.wait_for_target(name, "web")
            shop.wait("the condition", partial(shop.has_condition, name, "Conflict"), running.process)
        assert "this one is the oldest" in shop.conditions("older")["Conflict"]["message"]
        assert "older is the oldest" in shop.conditions("newer")["Conflict"]["message"]
        shop.api.delete(VPA, "older", shop.namespace)
        shop.wait("its end", lambda: "Conflict" not in shop.conditions("newer"), running.process)


def test_conditions_of_others_survive_every_write(shop: Shop) -> None:
    shop.workload("web")
    shop.vpa("web")
    theirs = {"type": "UpdateBlocked", "status": "True", "reason": "BudgetSpent", "message": "wait"}
    moment = {"lastTransitionTime": "2026-01-01T00:00:00Z"}
    body = {"status": {"conditions": [theirs | moment]}}
    shop.api.patch(VPA, "web", shop.namespace, body=body, subresource="status")
    shop.use("web", cpu=0.5, memory=400)
    with shop.recommender():
        shop.wait("usage", lambda: shop.cpu("web") == "587m")
        assert shop.conditions("web")["UpdateBlocked"] == theirs | moment


def test_who_else_writes_recommendations_is_named_and_not_fought(shop: Shop) -> None:
    shop.workload("web")
    shop.vpa("web")
    shop.use("web", cpu=0.5, memory=400)
    with shop.recommender() as running:
        shop.wait("usage", lambda: shop.cpu("web") == "587m", running.process)
        foreign = {"containerName": "web", "target": {"cpu": "1", "memory": "1Gi"}}
        for _ in range(3):
            body = {"status": {"recommendation": {"containerRecommendations": [foreign]}}}
            shop.api.patch(VPA, "web", shop.namespace, body=body, subresource="status")
            running.wait_for_ticks(2)
        found = shop.wait("an event", lambda: shop.events("web"), running.process)
        assert found[0][0] == "OtherWriter"
        assert "--leader-elect" in found[0][1]
        series = 'vpa_recommender_status_writes_total{result="foreign"}'
        assert 1 <= running.figures()[series] <= 3
        assert shop.cpu("web") == "1", "no second write within the minute"


def test_a_second_instance_waits_for_the_lease_and_takes_over(shop: Shop) -> None:
    shop.workload("web")
    shop.vpa("web")
    shop.use("web", cpu=0.5, memory=400)
    lease = (
        "--leader-elect",
        f"--leader-elect-resource-namespace={shop.namespace}",
        "--leader-elect-lease-duration=3s",
        "--leader-elect-renew-deadline=2s",
        "--leader-elect-retry-period=500ms",
    )
    rights = {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": ["*"]}
    shop.account().grant([rights], namespace=shop.namespace)
    with shop.recommender(*lease) as first:
        shop.wait("usage", lambda: shop.cpu("web") == "587m", first.process)
        with shop.recommender(*lease, name="second") as second:
            shop.wait("the second's endpoint", lambda: second.answers(), second.process)
            assert second.ticks() == 0
            assert first.process.stop() == 0
            shop.wait("the second to lead", lambda: second.ticks() > 0, second.process)
