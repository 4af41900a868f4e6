"""From upstream 1.8.1 to ours and back again: the same flags, roles, names and numbers.

All three programs are changed the way a rolling update does it: the new one runs and waits before the old
one ends. Both have exactly upstream's roles, so nothing but the programs is exchanged.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Self

import pytest

from tests.cluster import roles
from tests.cluster.balancer import Balancer
from tests.cluster.recommending import VPA, Shop
from tests.cluster.rendering import COMPONENTS
from tests.cluster.replicas import HOOK, HOOKS, LEASES, Replica, clean_up, is_sized
from tests.testbed.api import Json
from tests.testbed.certificates import Authority
from tests.testbed.cluster import Cluster
from tests.testbed.metrics import MetricsApi
from vpa.quantities import Quantity

pytestmark = pytest.mark.builds("upstream-vpa")

FLAGS = {"recommender": ["--pod-recommendation-min-memory-mb=100"], "updater": ["--eviction-tolerance=0.7"]}
"""Of both origins, beside those that make them quick."""
WORKLOADS = {"web": "Recreate", "worker": "InPlaceOrRecreate", "idle": "Off"}
CONTAINERS = [("web", "web"), ("web", "log"), ("worker", "worker"), ("idle", "idle")]
"""(VPA, container)."""
DAY = 86400


@dataclass(frozen=True)
class Snapshot:
    """All that must not suffer."""

    recommendations: dict[str, Json]
    provided: dict[str, Json]
    """The condition that upstream has too."""
    counts: dict[tuple[str, str], int]
    beginnings: dict[tuple[str, str], str]
    pods: set[str]
    evictions: int
    terms: dict[str, int]
    holders: dict[str, str]
    hook: Json

    def bounds(self) -> dict[tuple[str, str, str, str], float]:
        """(VPA, container, which bound, resource) → amount."""
        return {
            (vpa, entry["containerName"], bound, resource): float(Quantity.parse(amount).nanos)
            for vpa, recommendation in self.recommendations.items()
            for entry in recommendation["containerRecommendations"]
            for bound in ("lowerBound", "upperBound")
            for resource, amount in entry[bound].items()
        }


def targets(recommendations: dict[str, Json]) -> dict[str, list[Json]]:
    """They without bounds."""
    return {
        vpa: [
            {name: value for name, value in entry.items() if not name.endswith("Bound")}
            for entry in recommendation["containerRecommendations"]
        ]
        for vpa, recommendation in recommendations.items()
    }


def snapshot(shop: Shop) -> Snapshot:
    """How everything is now."""
    statuses = {name: shop.status(name) for name in WORKLOADS}
    saved = {key: shop.checkpoint(*key) for key in CONTAINERS}
    leases = {name: shop.api.get("Lease", lease, "kube-system")["spec"] for name, lease in LEASES.items()}
    events = shop.api.list("Event", shop.namespace)
    return Snapshot(
        recommendations={name: status["recommendation"] for name, status in statuses.items()},
        provided={
            name: next(one for one in status["conditions"] if one["type"] == "RecommendationProvided")
            for name, status in statuses.items()
        },
        counts={key: status["totalSamplesCount"] for key, status in saved.items()},
        beginnings={key: status["firstSampleStart"] for key, status in saved.items()},
        pods={pod["metadata"]["uid"] for pod in shop.api.list("Pod", shop.namespace)},
        evictions=sum(one.get("count", 1) for one in events if one["reason"] == "EvictedByVPA"),
        terms={name: int(spec["leaseTransitions"]) for name, spec in leases.items()},
        holders={name: spec["holderIdentity"] for name, spec in leases.items()},
        hook=shop.api.get(HOOKS, HOOK),
    )


@dataclass
class Scene:
    """The shop, and whoever serves it."""

    shop: Shop
    balancer: Balancer
    authority: Authority
    replicas: list[Replica] = field(default_factory=list)

    @classmethod
    @contextlib.contextmanager
    def opened(cls, shop: Shop) -> Iterator[Self]:
        with Balancer() as balancer:
            scene = cls(shop, balancer, Authority(shop.cluster.folder / "migration"))
            try:
                yield scene
            finally:
                for one in scene.replicas:
                    one.process.kill()
                clean_up(shop)

    def start(self, origin: str) -> dict[str, Replica]:
        """All three; if others lead, they wait."""
        for component in COMPONENTS:
            account = self.shop.cluster.service_account("kube-system", f"vpa-{component}")
            roles.upstream(component).grant_to(account)
            made = Replica(
                component,
                shop=self.shop,
                account=account,
                balancer=self.balancer,
                authority=self.authority,
                name=f"{origin}-{component}-{len(self.replicas)}",
                origin=origin,
                flags=FLAGS.get(component, ()),
            )
            self.replicas.append(made)
        return {each.component: each for each in self.replicas[-3:]}

    def change_over(self, old: dict[str, Replica], origin: str) -> dict[str, Replica]:
        """A rolling update of all three: the new ones run before the old ones end."""
        new = self.start(origin)
        for component in LEASES:
            old[component].wait_for_rounds(1)
            assert new[component].rounds() == 0, "while the other leads"
        codes = {component: one.stop() for component, one in old.items()}
        if origin == "upstream":
            assert set(codes.values()) == {0}, "ours end in order"
        for component in LEASES:
            new[component].wait_for_rounds(3)
        return new

    def freeze(self, services: Mapping[str, Replica]) -> None:
        """From here on nothing new is learned, and all that was learned is written."""
        self.shop.cluster.metrics.fail(503)
        services["recommender"].wait_for_rounds(2)

    def replace_a_pod(self, app: str) -> None:
        """One is deleted; the next one comes with the target."""
        pod = self.shop.wait_for_pods(3, {"app": app})[0]
        self.shop.api.delete("Pod", pod["metadata"]["name"], self.shop.namespace)
        self.shop.wait(f"a pod in place of {pod['metadata']['name']}", lambda: is_sized(self.shop, app))

    def samples(self) -> int:
        """Those of the container with the fewest, as saved."""
        saved = [self.shop.saved(*key) for key in CONTAINERS]
        return min(one["status"].get("totalSamplesCount", 0) if one else 0 for one in saved)


@pytest.fixture
def scene(cluster: Cluster, metrics: MetricsApi, namespace: str) -> Iterator[Scene]:
    """Workloads in three modes, with a week behind them; three more days pass in a minute."""
    shop = Shop(cluster, namespace)
    shop.workload("web", "web", "log", replicas=3)
    shop.workload("worker", replicas=3)
    shop.workload("idle", replicas=3)
    for name, mode in WORKLOADS.items():
        shop.vpa(name, updatePolicy={"updateMode": mode})
        shop.use(name, cpu=0.5, memory=400)
    shop.use("web", "log", cpu=0.03, memory=70)
    for vpa, container in CONTAINERS:  # without this nobody would evict anything in the minutes of a test
        shop.remember(vpa, container, days=(9, 4), buckets=(20, 18), weight=1.0)
    metrics.clock(start=time.time() - 3 * DAY, speed=3600)
    with Scene.opened(shop) as opened:
        yield opened


def test_ours_go_on_where_upstreams_ended_and_upstreams_where_ours_did(scene: Scene) -> None:
    shop = scene.shop
    upstreams = scene.start("upstream")
    recommender = upstreams["recommender"].process
    shop.wait("a day of usage", lambda: scene.samples() >= 20_075, recommender)
    for app in ("web", "worker"):
        shop.wait(f"{app} to be sized", lambda app=app: is_sized(shop, app), recommender)  # type: ignore[misc]
    scene.freeze(upstreams)
    foreign = {"type": "Elsewhere", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}
    for name in WORKLOADS:
        body = [{"op": "add", "path": "/status/conditions/-", "value": foreign}]
        shop.api.patch(VPA, name, shop.namespace, body=body, subresource="status", how="json")
    theirs = snapshot(shop)
    assert theirs.evictions >= 3

    ours = scene.change_over(upstreams, "ours")
    after = snapshot(shop)
    assert after.recommendations == theirs.recommendations
    assert after.provided == theirs.provided
    assert after.counts == theirs.counts
    assert (after.pods, after.evictions) == (theirs.pods, theirs.evictions)
    for lease in LEASES:
        assert after.holders[lease] != theirs.holders[lease]
        assert after.terms[lease] == theirs.terms[lease] + 1
    assert after.hook["metadata"]["uid"] == theirs.hook["metadata"]["uid"], "it was never away"
    assert after.hook["metadata"]["labels"] == theirs.hook["metadata"]["labels"]
    assert after.hook["webhooks"][0]["clientConfig"] == theirs.hook["webhooks"][0]["clientConfig"]

    # They do not just keep still: they learn, size new pods and update old ones.
    scene.replace_a_pod("web")
    applied = 'vpa_admission_controller_admission_pods_total{applied="true"}'
    assert ours["admission-controller"].figure(applied) >= 1
    shop.api.patch(VPA, "idle", shop.namespace, body={"spec": {"updatePolicy": {"updateMode": "Recreate"}}})
    shop.wait("idle to be sized", lambda: is_sized(shop, "idle"), ours["updater"].process)
    shop.cluster.metrics.heal()
    ours["recommender"].wait_for_rounds(6)
    scene.freeze(ours)
    before = snapshot(shop)

    upstreams = scene.change_over(ours, "upstream")
    hook = theirs.hook["webhooks"]
    shop.wait(
        "upstream's webhook, which comes ten seconds after the start",
        lambda: shop.api.get(HOOKS, HOOK)["metadata"]["uid"] != before.hook["metadata"]["uid"],
        upstreams["admission-controller"].process,
    )
    after = snapshot(shop)
    assert targets(after.recommendations) == targets(before.recommendations)
    assert after.bounds() == pytest.approx(before.bounds(), rel=0.01), (
        "ours write a bound when it moved by 1 %"
    )
    assert after.provided == before.provided == theirs.provided
    assert all(after.counts[key] > theirs.counts[key] for key in CONTAINERS), "what ours learned"
    assert after.beginnings == theirs.beginnings
    assert (after.pods, after.evictions) == (before.pods, before.evictions)
    for lease in LEASES:
        assert after.holders[lease] not in {before.holders[lease], theirs.holders[lease]}
        assert after.terms[lease] > before.terms[lease]
    assert after.hook["webhooks"] == hook
    for name in WORKLOADS:
        assert shop.conditions(name)["Elsewhere"] == foreign, "a condition that neither knows"
    scene.replace_a_pod("idle")
    shop.cluster.metrics.heal()
    shop.wait(
        "upstream to count on",
        lambda: all(shop.checkpoint(*key)["totalSamplesCount"] > after.counts[key] for key in CONTAINERS),
        upstreams["recommender"].process,
    )
