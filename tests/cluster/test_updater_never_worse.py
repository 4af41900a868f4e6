"""What the updater does not do, so that nothing gets worse: each rule on a real cluster."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from tests.cluster import standins
from tests.cluster.definitions import scalable
from tests.cluster.standins import StandIn
from tests.cluster.updating import NEW, OLD, Clock, Running, Scene, requested, sizes
from tests.testbed.api import Json
from tests.testbed.cluster import Cluster
from tests.testbed.metrics import MetricsApi
from tests.testbed.processes import attempts

HIGH = {"cpu": "500m", "memory": "500Mi"}


@pytest.fixture
def scene(cluster: Cluster, namespace: str) -> Scene:
    """A namespace with a fresh admission lease."""
    found = Scene(cluster, namespace)
    found.lease()
    return found


@pytest.fixture
def stand_in(scene: Scene) -> Iterator[StandIn]:
    with standins.serving(scene.cluster, scene.namespace) as found:
        yield found


async def first_pass(scene: Scene, updater: Running, *flags: str) -> dict[str, int]:
    """A first pass, which does what ``vpa plan`` says of the same objects."""
    foretold = await asyncio.to_thread(scene.foretold, *flags)
    decisions = await updater.pass_once()
    assert decisions == Counter(f"{action} {reason}" for action, reason in foretold.values())
    return decisions


def groups(scene: Scene, names: list[str]) -> dict[str, set[str]]:
    """Deployments of four pods that all need a change; their pods' uids."""
    for name in names:
        scene.workload(name, replicas=4, wait=False)
    uids = {name: {pod["metadata"]["uid"] for pod in scene.wait_for_pods(4, name)} for name in names}
    for name in names:
        scene.vpa(name)
    return uids


# 1. The loop breaker


@pytest.mark.parametrize("how", ["switched off", "useless"])
async def test_a_webhook_that_does_nothing_for_an_hour_costs_one_pod_of_each_group_at_most(
    scene: Scene, stand_in: StandIn, how: str
) -> None:
    """Field case: it is not called, or answers without a patch, and its lease is fresh."""
    names = [f"app-{number}" for number in range(5)]
    before = groups(scene, names)
    if how == "switched off":
        stand_in.off()
    stand_in.useless = True
    clock = Clock()
    async with scene.updater(now=clock, proven=False) as updater:
        for _ in range(60):
            await updater.parts.updater.tick()
            clock.advance(minutes=1)
            await asyncio.sleep(0.05)
        gone = {name: len(before[name] - scene.uids(name)) for name in names}
        assert sum(gone.values()) >= 3
        assert max(gone.values()) == 1
        stopped = [name for name in names if gone[name]]
        condition = await updater.condition("LoopBreaker", "LoopBreaker", stopped[0])
        assert "after an eviction the new pod came without its target" in condition["message"]
        events = [event for event in await updater.events("LoopBreaker") if event["type"] == "Warning"]
        assert {event["involvedObject"]["name"] for event in events} == set(stopped)
        assert updater.parts.metrics.own.replacements.value(carries_target="false") == len(stopped)
        assert updater.parts.metrics.own.breakers.value(scope="cluster") == 1
        written = updater.parts.metrics.own.condition_writes.value(result="ok")
        assert written <= 3 * len(names)

        stand_in.useless = False
        stand_in.on()
        clock.advance(hours=25)
        for _ in range(12):
            await updater.passes(1, clock)
        assert updater.decisions() == {"none UpToDate": 20}
        assert scene.condition("LoopBreaker", stopped[0]) is None


async def test_what_a_new_updater_finds_stopped_stays_stopped(scene: Scene) -> None:
    scene.workload(replicas=4)
    scene.vpa()
    async with scene.updater(proven=False) as updater:
        await updater.passes(2)
        await updater.condition("LoopBreaker", "LoopBreaker")
        assert len(scene.pods()) == 4
    before = scene.uids()
    async with scene.updater() as updater:
        await updater.passes(2)
        assert updater.decisions() == {"none LoopBreaker": 4}
    assert scene.uids() == before


async def test_one_replacement_with_its_target_lets_the_pass_go_on_at_once(
    scene: Scene, stand_in: StandIn
) -> None:
    names = [f"app-{number}" for number in range(12)]
    before = groups(scene, names)
    async with scene.updater("--updater-interval=1h", proven=False) as updater:
        loop = asyncio.create_task(updater.parts.updater.run())
        try:
            decisions = await updater.pass_once()
            assert decisions == {"evict OutsideBounds": 10, "none LoopBreaker": 38}

            def gone() -> list[int]:
                return [len(before[name] - scene.uids(name)) for name in names]

            await updater.until(lambda: min(gone()) >= 2, "two pods of each group to go")
        finally:
            loop.cancel()
            await asyncio.gather(loop, return_exceptions=True)


# 2. Node fit


async def test_with_cap_to_node_a_pod_gets_what_the_largest_node_holds(scene: Scene) -> None:
    scene.workload(replicas=1)
    scene.vpa(mode="InPlaceOrRecreate", recommend={"cpu": "99", "memory": "200Mi"})
    async with scene.updater() as updater:
        decisions = await first_pass(scene, updater)
        assert decisions == {"none NoNodeFits": 1}
        found = await updater.condition("UpdatesBlocked", "NoNodeFits")
        assert "the largest that fits the pod has cpu 16" in found["message"]
    async with scene.updater("--cap-to-node") as updater:
        assert await first_pass(scene, updater, "--cap-to-node") == {"resize OutsideBounds": 1}
        await updater.passes(2)
        assert updater.decisions() == {"none UpToDate": 1}
        assert requested(scene.pods()[0]) == {"cpu": "16", "memory": "200Mi"}
        await updater.until(lambda: scene.condition("UpdatesBlocked") is None, "the condition to go")


async def test_no_pod_is_evicted_to_a_size_that_its_own_nodes_cannot_hold_beside_their_daemon_sets(
    scene: Scene,
) -> None:
    """All nodes have 16 cores; only one may run the pods, and a DaemonSet takes ten of its cores."""
    node = {"kubernetes.io/hostname": "fake-0"}
    scene.workload("agent", kind="DaemonSet", replicas=1, requests={"cpu": "10"}, spec={"nodeSelector": node})
    scene.workload(spec={"nodeSelector": node})
    scene.vpa(recommend={"cpu": "8", "memory": "200Mi"})
    before = scene.uids()
    async with scene.updater() as updater:
        assert await updater.pass_once() == {"none NoNodeFits": 3}
        found = await updater.condition("UpdatesBlocked", "NoNodeFits")
        assert "the largest that fits the pod has cpu 6" in found["message"]
        scene.api.delete("DaemonSet", "agent", scene.namespace)
        await updater.until(lambda: not scene.pods("agent", all_of_them=True), "the DaemonSet's pod to go")
        assert (await updater.pass_once())["evict OutsideBounds"] == 1
    assert len(before & scene.uids()) == 2


# 3. Quota


async def test_no_pod_is_evicted_whose_replacement_a_quota_refuses(scene: Scene) -> None:
    scene.create("v1", "ResourceQuota", "all", {"hard": {"requests.cpu": "350m", "requests.memory": "10Gi"}})
    scene.workload()
    scene.vpa()
    before = scene.uids()

    def counted() -> bool:
        found = scene.api.get("ResourceQuota", "all", scene.namespace)
        return bool(found["status"].get("used", {}).get("requests.cpu") == "300m")

    async with scene.updater() as updater:
        await updater.until(counted, "the quota to be counted")
        await updater.catch_up()
        assert await first_pass(scene, updater) == {"none QuotaExceeded": 3}
        found = await updater.condition("UpdatesBlocked", "QuotaExceeded")
        assert "ResourceQuota all would refuse it: requests.cpu needs 100m more" in found["message"]
    assert scene.uids() == before


# 4. May resize and may evict are separate questions


async def test_what_forbids_an_eviction_does_not_forbid_a_harmless_resize(scene: Scene) -> None:
    requirement = {"resources": ["memory"], "changeRequirement": "TargetLowerThanRequests"}
    scene.workload("single", replicas=1)
    scene.vpa("single", mode="InPlaceOrRecreate")
    scene.workload("required", replicas=2)
    scene.vpa("required", mode="InPlaceOrRecreate", policy={"evictionRequirements": [requirement]})
    before = scene.uids("single") | scene.uids("required")
    async with scene.updater() as updater:
        assert await first_pass(scene, updater) == {"resize OutsideBounds": 2, "none BudgetSpent": 1}
        await updater.passes(3)
        assert updater.decisions() == {"none UpToDate": 3}
    assert scene.uids("single") | scene.uids("required") == before


# 5. Memory in use


async def test_a_memory_limit_is_not_lowered_below_what_is_in_use(scene: Scene, metrics: MetricsApi) -> None:
    limits = {"cpu": "500m", "memory": "500Mi"}
    scene.workload(replicas=2, requests=HIGH, limits=limits)
    scene.vpa(mode="InPlaceOrRecreate", recommend=NEW)
    metrics.use(cpu=0.1, memory=190 * 2**20, namespace=scene.namespace, workload="app", container="*")
    async with scene.updater() as updater:
        await updater.passes(3)
        assert updater.parts.metrics.own.available.value(rule="keep_memory_limit_above_use") == 1
        for pod in scene.pods():  # the CPU is changed, the memory is not
            assert requested(pod) == {"cpu": "200m", "memory": "500Mi"}
        assert updater.decisions() == {"none LimitBelowUsage": 2}
        metrics.use(cpu=0.1, memory=100 * 2**20, namespace=scene.namespace, workload="app", container="*")
        await updater.passes(3)
    assert all(requested(pod) == NEW for pod in scene.pods())


async def test_a_pod_is_not_evicted_to_a_memory_limit_below_its_use(
    scene: Scene, metrics: MetricsApi
) -> None:
    scene.workload(requests=HIGH, limits=HIGH)
    scene.vpa()
    metrics.use(cpu=0.1, memory=190 * 2**20, namespace=scene.namespace, workload="app", container="*")
    before = scene.uids()
    async with scene.updater() as updater:
        assert await updater.pass_once() == {"none LimitBelowUsage": 3}
        await updater.condition("UpdatesBlocked", "LimitBelowUsage")
    assert scene.uids() == before


# 6. History


async def test_on_less_than_a_day_of_data_nothing_is_evicted_and_nothing_shrinks(scene: Scene) -> None:
    low = {"LowConfidence": "True"}
    scene.workload("evicted", replicas=2)
    scene.vpa("evicted", conditions=low)
    scene.workload("grows", replicas=1)
    scene.vpa("grows", mode="InPlaceOrRecreate", conditions=low)
    scene.workload("shrinks", replicas=1, requests=HIGH)
    scene.vpa("shrinks", mode="InPlaceOrRecreate", conditions={"FetchingHistory": "True"})
    async with scene.updater() as updater:
        assert await first_pass(scene, updater) == {"none HistoryLoading": 3, "resize OutsideBounds": 1}
        found = await updater.condition("UpdatesBlocked", "HistoryLoading", "shrinks")
        assert "history is still being fetched" in found["message"]
        assert scene.condition("FetchingHistory", "shrinks") is not None
        scene.recommend("evicted", conditions={"LowConfidence": "False"})
        decisions = await updater.pass_once()
        assert decisions["evict OutsideBounds"] == 1


# 8. Owners


GADGET = scalable("Gadget", "updater.test")


async def test_pods_of_an_unknown_kind_of_owner_have_a_budget_and_pods_without_one_are_left_alone(
    scene: Scene,
) -> None:
    scene.api.apply(GADGET)
    for _ in attempts(30, "the kind Gadget to be served"):
        with contextlib.suppress(LookupError):
            scene.api.path("Gadget.updater.test")
            break
    status = {"replicas": 4, "selector": "app=app"}
    gadget: Json = {
        "apiVersion": "updater.test/v1",
        "kind": "Gadget",
        "metadata": {"name": "app"},
        "spec": {"replicas": 4},
        "status": status,
    }
    owner = scene.api.create(gadget, scene.namespace)
    reference = {
        "apiVersion": "updater.test/v1",
        "kind": "Gadget",
        "name": "app",
        "uid": owner["metadata"]["uid"],
        "controller": True,
    }
    container = {"name": "main", "image": "app:1", "resources": {"requests": OLD}}
    for number in range(5):
        owners = [reference] if number < 4 else []
        scene.api.create(
            {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {
                    "name": f"app-{number}",
                    "labels": {"app": "app"},
                    "ownerReferences": owners,
                },
                "spec": {"containers": [container], "terminationGracePeriodSeconds": 0},
            },
            scene.namespace,
        )
    scene.wait_for_pods(5)
    scene.api.create(
        {
            "apiVersion": "autoscaling.k8s.io/v1",
            "kind": "VerticalPodAutoscaler",
            "metadata": {"name": "app"},
            "spec": {"targetRef": {"apiVersion": "updater.test/v1", "kind": "Gadget", "name": "app"}},
        },
        scene.namespace,
    )
    scene.recommend()
    try:
        async with scene.updater() as updater:
            assert await updater.pass_once() == {"evict OutsideBounds": 2, "none BudgetSpent": 2}
            left = {pod["metadata"]["name"] for pod in scene.pods()}
            assert "app-4" in left
            assert len(left) == 3
    finally:
        scene.api.delete("CustomResourceDefinition", "gadgets.updater.test")


# 9. HorizontalPodAutoscalers


def hpa(scene: Scene, resource: str) -> None:
    utilisation = {"type": "Utilization", "averageUtilization": 80}
    scene.create(
        "autoscaling/v2",
        "HorizontalPodAutoscaler",
        "app",
        {
            "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "app"},
            "minReplicas": 2,
            "maxReplicas": 5,
            "metrics": [{"type": "Resource", "resource": {"name": resource, "target": utilisation}}],
        },
    )


async def test_a_resource_by_which_an_hpa_scales_is_left_alone_and_the_vpa_says_so(scene: Scene) -> None:
    scene.workload(replicas=2)
    scene.vpa(mode="InPlaceOrRecreate")
    hpa(scene, "cpu")
    async with scene.updater() as updater:
        await first_pass(scene, updater)
        await updater.passes(3)
        assert all(requested(pod) == {"cpu": "100m", "memory": "200Mi"} for pod in scene.pods())
        assert updater.decisions() == {"none HPAConflict": 2}
        found = await updater.condition("HPAConflict", "HPAConflict")
        assert "HorizontalPodAutoscaler app scales this target by cpu utilisation" in found["message"]
        assert "Exclude it from controlledResources" in found["message"]
        assert len(await updater.events("HPAConflict")) == 1
        assert scene.condition("UpdatesBlocked") is None
    async with scene.updater("--ignore-hpa") as updater:
        await updater.passes(3)
        assert sizes(scene.pods()) == {"200m": 2}
        await updater.until(lambda: scene.condition("HPAConflict") is None, "the condition to go")


# Others' conditions


async def test_conditions_of_other_writers_stay_as_they_are(scene: Scene) -> None:
    scene.workload(replicas=1)
    scene.vpa(conditions={"RecommendationProvided": "True", "SomebodyElse": "Unknown"})

    def conditions() -> dict[str, Any]:
        status = scene.api.get("VerticalPodAutoscaler", "app", scene.namespace)["status"]
        return {one["type"]: one for one in status["conditions"]}

    before = conditions()
    async with scene.updater() as updater:
        await updater.pass_once()
        await updater.condition("UpdatesBlocked", "TooFewReplicas")
        assert json.dumps(before) == json.dumps({k: v for k, v in conditions().items() if k in before})
        writes = updater.parts.metrics.own.condition_writes.value(result="ok")
        await updater.passes(2)
        assert updater.parts.metrics.own.condition_writes.value(result="ok") == writes == 1
        scene.api.patch(
            "VerticalPodAutoscaler",
            "app",
            scene.namespace,
            body={"spec": {"updatePolicy": {"updateMode": "Recreate", "minReplicas": 1}}},
        )
        await updater.passes(1)
        await updater.until(lambda: "UpdatesBlocked" not in conditions(), "the condition to go")
        assert before.keys() <= conditions().keys()
