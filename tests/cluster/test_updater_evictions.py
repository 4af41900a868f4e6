"""Evictions on a real cluster: upstream's own end-to-end cases, and the server's part in them."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from tests.cluster import roles, standins
from tests.cluster.updating import NEW, OLD, Clock, Scene, requested, sizes
from tests.cluster.webhooks import Webhook
from tests.testbed.cluster import Cluster

HIGH = {"cpu": "500m", "memory": "500Mi"}


@pytest.fixture
def scene(cluster: Cluster, namespace: str) -> Scene:
    """A namespace with a fresh admission lease."""
    found = Scene(cluster, namespace)
    found.lease()
    return found


@pytest.fixture(scope="module", autouse=True)
def webhook(cluster: Cluster) -> Iterator[Webhook]:
    """Our admission controller, for all namespaces."""
    account = cluster.service_account("kube-system", "vpa-admission-controller")
    roles.ours("admission-controller").grant_to(account)
    with Webhook(cluster=cluster, account=account) as running:
        yield running


@pytest.mark.parametrize("requests", [OLD, HIGH], ids=["upscaling", "downscaling"])
async def test_pods_are_evicted_and_come_back_with_the_target(scene: Scene, requests: dict[str, str]) -> None:
    scene.workload(requests=requests)
    scene.vpa(mode=None)
    foretold = scene.foretold()
    before = scene.uids()
    async with scene.updater() as updater:
        assert await updater.pass_once() == {"evict OutsideBounds": 1, "none BudgetSpent": 2}
        gone = before - await asyncio.to_thread(scene.uids)
        assert len(gone) == 1
        await updater.passes(3)
        assert await updater.pass_once() == {"none UpToDate": 3}
        for event in await updater.events("EvictedByVPA", 3):
            assert event["message"] == "Pod was evicted by VPA Updater to apply resource recommendation."
            assert event["involvedObject"]["kind"] == "Pod"
            assert foretold[event["involvedObject"]["name"]][0] in ("evict", "none")
        (event, *_) = await updater.events("EvictedPod", 3)
        assert event["involvedObject"]["kind"] == "VerticalPodAutoscaler"
        assert event["source"]["component"] == "vpa-updater"
    assert Counter(foretold.values()) == {("evict", "OutsideBounds"): 1, ("none", "BudgetSpent"): 2}
    assert all(requested(pod) == NEW for pod in scene.pods())


async def test_an_eviction_requirement_prevents_evictions(scene: Scene) -> None:
    scene.workload(requests=HIGH)
    requirement = {"resources": ["cpu"], "changeRequirement": "TargetHigherThanRequests"}
    scene.vpa(policy={"evictionRequirements": [requirement]})
    before, clock = scene.uids(), Clock()
    async with scene.updater(now=clock) as updater:
        await updater.passes(3, clock)
        assert updater.decisions() == {"none EvictionRequirementNotMet": 3}
        found = await updater.condition("UpdatesBlocked", "EvictionRequirementNotMet")
        assert found["message"].startswith("3 of 3 pods: the VPA lets the pod be evicted only when")
    assert scene.uids() == before


@pytest.mark.parametrize("lease", ["missing", "stale"])
async def test_nothing_is_evicted_without_a_fresh_admission_lease(
    cluster: Cluster, namespace: str, lease: str
) -> None:
    scene = Scene(cluster, namespace)
    if lease == "stale":
        scene.lease(renewed="2020-01-01T00:00:00.000000Z")
    scene.workload()
    scene.vpa()
    before, clock = scene.uids(), Clock()
    clock.advance(minutes=2)  # a lease counts as fresh after its creation, too
    async with scene.updater(now=clock) as updater:
        await updater.passes(3, clock)
        assert updater.decisions() == {"none WebhookNotReady": 3}
        assert scene.uids() == before
        clock.advance(minutes=5)
        await updater.pass_once()
        await updater.condition("UpdatesBlocked", "WebhookNotReady")
        scene.lease()
        decisions = await updater.pass_once()
        assert decisions == {
            "evict OutsideBounds": 1,
            "none LoopBreaker": 2,
        }  # the webhook has to prove itself
    assert scene.uids() != before


async def test_the_lease_may_be_left_unasked(cluster: Cluster, namespace: str) -> None:
    scene = Scene(cluster, namespace)
    scene.workload()
    scene.vpa()
    async with scene.updater("--use-admission-controller-status=false") as updater:
        assert (await updater.pass_once())["evict OutsideBounds"] == 1


KINDS = ["Deployment", "ReplicationController", "Job", "CronJob", "ReplicaSet", "StatefulSet"]


@pytest.mark.parametrize("kind", KINDS)
async def test_pods_of_every_kind_are_evicted_from_two_replicas_on_unless_the_vpa_says_one(
    scene: Scene, kind: str
) -> None:
    """Upstream's three cases for each kind at once: several pods, one pod, one pod with minReplicas 1."""
    for name, replicas, policy in (
        ("many", 3, {}),
        ("one", 1, {}),
        ("asked", 1, {"minReplicas": 1}),
    ):
        scene.workload(name, kind=kind, replicas=replicas, wait=kind != "CronJob")
        if kind == "CronJob":  # it would begin at the next full minute
            scene.cluster.kubectl("create", "job", name, f"--from=cronjob/{name}", "-n", scene.namespace)
            scene.wait_for_pods(replicas, name)
        scene.vpa(name, kind=kind, policy=policy)
    before = {name: scene.uids(name) for name in ("many", "one", "asked")}
    async with scene.updater() as updater:
        decisions = await updater.pass_once()
        assert decisions == {"evict OutsideBounds": 2, "none BudgetSpent": 2, "none TooFewReplicas": 1}
        await updater.condition("UpdatesBlocked", "TooFewReplicas", "one")
    after = {name: scene.uids(name) for name in before}
    assert len(before["many"] - after["many"]) == 1
    assert after["one"] == before["one"]
    assert not after["asked"] & before["asked"]


async def test_pods_of_a_daemon_set_are_evicted_too(scene: Scene) -> None:
    scene.workload(kind="DaemonSet", replicas=3)
    scene.vpa(kind="DaemonSet")
    async with scene.updater() as updater:
        assert await updater.pass_once() == {"evict OutsideBounds": 1, "none BudgetSpent": 2}


async def test_mode_off_never_changes_anything(scene: Scene) -> None:
    scene.workload()
    scene.vpa(mode="Off")
    before = scene.pods()
    async with scene.updater() as updater:
        assert await updater.pass_once() == {"none ModeOff": 3}
        scene.api.delete("Pod", before[0]["metadata"]["name"], scene.namespace)
        await updater.passes(2)
        assert updater.decisions() == {"none ModeOff": 3}
    after = scene.wait_for_pods(3)
    assert sizes(after) == {"100m": 3}
    assert len({pod["metadata"]["uid"] for pod in before} - scene.uids()) == 1


async def test_mode_initial_changes_only_pods_that_are_restarted(scene: Scene) -> None:
    scene.workload()
    scene.vpa(mode="Initial")
    before = scene.pods()
    async with scene.updater() as updater:
        assert await updater.pass_once() == {"none ModeInitial": 3}
        scene.api.delete("Pod", before[0]["metadata"]["name"], scene.namespace)
        await updater.passes(2)
    assert sizes(scene.wait_for_pods(3)) == {"100m": 2, "200m": 1}


async def test_a_disruption_budget_of_zero_is_kept_and_a_larger_one_used_up(scene: Scene) -> None:
    scene.workload("none", replicas=4)
    scene.vpa("none")
    scene.disruption_budget("none", app="none", maxUnavailable=0)
    scene.workload("some", replicas=10)
    scene.vpa("some")
    scene.disruption_budget("some", app="some", minAvailable=7)
    before = {name: scene.uids(name) for name in ("none", "some")}
    foretold = Counter(scene.foretold().values())
    clock = Clock()
    async with scene.updater(now=clock) as updater:
        decisions = await updater.pass_once()
        assert decisions == {"evict OutsideBounds": 3, "none DisruptionBudgetBlocked": 11}
        assert updater.connection.requests["POST", 429] == 0
        assert len(before["some"] - scene.uids("some")) == 3
        clock.advance(minutes=6)
        await updater.pass_once()
        found = await updater.condition("UpdatesBlocked", "DisruptionBudgetBlocked", "none")
        assert "PodDisruptionBudget none allows no eviction now" in found["message"]
    assert scene.uids("none") == before["none"]
    assert foretold == {("evict", "OutsideBounds"): 3, ("none", "DisruptionBudgetBlocked"): 11}


@pytest.mark.parametrize(
    ("kind", "bound", "limit", "target"),
    [
        ("Container", "max", "300m", "250m"),
        ("Container", "min", "100m", "50m"),
        ("Pod", "max", "300m", "250m"),
        ("Pod", "min", "100m", "50m"),
    ],
    ids=["container max", "container min", "pod max", "pod min"],
)
async def test_a_target_that_a_limit_range_brings_to_the_present_size_evicts_nobody(
    scene: Scene, kind: str, bound: str, limit: str, target: str
) -> None:
    """As upstream's: the limit of a pod is three times its request (300m for 100m), or equal to it."""
    memory = {"max": "1Gi", "min": "10Mi"}
    bounds = {bound: {"cpu": limit, "memory": memory[bound]}}
    limits = {"cpu": "300m", "memory": "300Mi"} if bound == "max" else {"cpu": "100m", "memory": "100Mi"}
    scene.workload(limits=limits)
    scene.vpa(recommend={"cpu": target, "memory": "100Mi"})
    scene.create("v1", "LimitRange", "bounds", {"limits": [{"type": kind, **bounds}]})
    before = scene.uids()
    async with scene.updater() as updater:
        await updater.passes(2)
        assert updater.decisions() == {"none UpToDate": 3}
    assert scene.uids() == before


async def test_injected_sidecars_are_not_acted_on(scene: Scene) -> None:
    """A second webhook adds a container after ours; only what ours saw counts."""
    scene.vpa(recommend=OLD)
    entry = {"containerName": "sidecar", "target": {"cpu": "5"}, "lowerBound": {"cpu": "5"}}
    status = scene.api.get("VerticalPodAutoscaler", "app", scene.namespace)["status"]["recommendation"]
    status["containerRecommendations"].append(entry)
    scene.api.patch(
        "VerticalPodAutoscaler",
        "app",
        scene.namespace,
        body={"status": {"recommendation": status}},
        subresource="status",
    )
    sidecar = {"name": "sidecar", "image": "sidecar:1", "resources": {"requests": {"cpu": "10m"}}}
    with standins.serving(scene.cluster, scene.namespace) as other:
        other.useless = True
        other.change = lambda pod: [{"op": "add", "path": "/spec/containers/-", "value": sidecar}]
        scene.workload()
    pods = scene.pods()
    assert all(len(pod["spec"]["containers"]) == 2 for pod in pods)
    assert {pod["metadata"]["annotations"]["vpaObservedContainers"] for pod in pods} == {"main"}
    async with scene.updater() as updater:
        await updater.passes(2)
        assert updater.decisions() == {"none UpToDate": 3}
    assert scene.uids() == {pod["metadata"]["uid"] for pod in pods}


async def test_eviction_stops_when_replacements_stay_pending(scene: Scene) -> None:
    """Upstream evicts one pod to a size that no node has; we evict none."""
    scene.workload()
    scene.vpa(recommend={"cpu": "9999", "memory": "100Mi"})
    before, clock = scene.uids(), Clock()
    async with scene.updater(now=clock) as updater:
        await updater.passes(2, clock)
        assert updater.decisions() == {"none NoNodeFits": 3}
        await updater.condition("UpdatesBlocked", "NoNodeFits")
    assert scene.uids() == before
    async with scene.updater("--compatibility=upstream", now=clock) as updater:
        await updater.passes(3, clock)
        assert updater.decisions() == {"none BudgetSpent": 2}
    pending = [pod for pod in scene.pods() if pod["status"]["phase"] == "Pending"]
    assert len(pending) == 1
    assert len(before & scene.uids()) == 2


async def test_a_replacement_that_no_node_takes_is_looked_at_and_counts_as_down(scene: Scene) -> None:
    scene.workload(replicas=4)
    scene.vpa(recommend={"cpu": "9999", "memory": "100Mi"})
    async with scene.updater("--foresee-node-fit=false") as updater:
        await updater.passes(3)
        assert updater.decisions() == {"none UpToDate": 2, "none BudgetSpent": 2}
        assert all(one.failures == 0 for one in updater.breakers.watched.values())


async def test_the_rate_limit_of_evictions_is_kept(scene: Scene) -> None:
    """One a second, two at once: in a pass of three seconds there is time for five of ten."""
    scene.workload(replicas=20)
    scene.vpa()
    loop = asyncio.get_running_loop()
    arguments = ["--eviction-rate-limit=1", "--eviction-rate-burst=2", "--updater-interval=3s"]
    async with scene.updater(*arguments) as updater:
        started = loop.time()
        decisions = await updater.pass_once()
        assert loop.time() - started < 4.5
        assert 3 <= decisions["evict OutsideBounds"] <= 5
        assert decisions["none NextPass"] == 10 - decisions["evict OutsideBounds"]


async def test_two_vpas_of_one_target_the_oldest_decides_and_is_said_to(scene: Scene) -> None:
    scene.workload()
    scene.vpa("older", mode="Initial", target="app", recommend=HIGH)
    await asyncio.sleep(1.1)  # ages are whole seconds
    scene.vpa("newer", mode="Recreate", target="app")
    before = scene.uids()
    async with scene.updater() as updater:
        assert await updater.pass_once() == {"none Conflict": 3}
        found = await updater.condition("UpdatesBlocked", "Conflict", "older")
        assert "older is the oldest and decides" in found["message"]
        assert "newer" in found["message"]
        assert scene.uids() == before
        # The webhook follows the same one, so the two do not take turns undoing each other.
        scene.api.delete("Pod", scene.pods()[0]["metadata"]["name"], scene.namespace)
        await updater.passes(2)
        assert updater.decisions() == {"none Conflict": 3}
    assert sizes(scene.wait_for_pods(3)) == {"100m": 2, "500m": 1}


def values(metrics: Any) -> dict[str, float]:
    """Series as text → value."""
    return {
        f"{sample.name}{sorted(sample.labels.values())}": sample.value
        for metric in metrics.collect()
        for sample in metric.samples
    }


async def test_upstreams_metrics_count_what_was_done(scene: Scene) -> None:
    scene.workload(replicas=5)
    scene.vpa()
    async with scene.updater() as updater:
        await updater.pass_once()
        loop = updater.parts.metrics.loop
        name = {"vpa_name": "app", "vpa_namespace": scene.namespace}
        size = {"vpa_size_log2": "2"}
        mode = {"update_mode": "Recreate"}
        assert loop.controlled.value(**size, **mode) == 5
        assert loop.evictable.value(**size, **mode) == 5
        assert loop.evicted.value(**size, **mode, **name) == 2
        assert loop.with_evictable.value(**size, **mode) == 1
        assert loop.with_evicted.value(**size, **mode) == 1
        assert loop.updatable.value(**size) == 0
        assert loop.execution_latency.count(step="total") == 1
        scene.api.delete("VerticalPodAutoscaler", "app", scene.namespace)
        await updater.pass_once()
        assert not any("app" in series for series in values(loop.evicted))
