"""Resizes in place on a real cluster whose kubelets are played: they do as a pod's annotations say."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from tests.cluster import standins
from tests.cluster.updating import NEW, OLD, Clock, Scene, in_force, requested, sizes
from tests.testbed.cluster import Cluster

GATE = "--feature-gates=InPlace=true"
HIGH = {"cpu": "500m", "memory": "500Mi"}


@pytest.fixture
def scene(cluster: Cluster, namespace: str) -> Scene:
    """A namespace with a fresh admission lease."""
    found = Scene(cluster, namespace)
    found.lease()
    return found


@pytest.mark.parametrize("mode", ["InPlaceOrRecreate", "InPlace"])
@pytest.mark.parametrize("requests", [OLD, HIGH], ids=["upscaling", "downscaling"])
async def test_pods_are_resized_in_place_one_after_the_other(
    scene: Scene, mode: str, requests: dict[str, str]
) -> None:
    scene.workload(requests=requests)
    scene.vpa(mode=mode)
    before = scene.uids()
    foretold = scene.foretold(GATE)
    async with scene.updater(GATE) as updater:
        assert await updater.pass_once() == {"resize OutsideBounds": 1, "none BudgetSpent": 2}
        await updater.passes(4)
        assert updater.decisions() == {"none UpToDate": 3}
        events = await updater.events("InPlaceResizedByVPA", 3)
        assert {event["message"] for event in events} == {"Pod was resized in place by VPA Updater."}
        assert updater.connection.requests["POST", 201] == len(events)
        name = {"vpa_name": "app", "vpa_namespace": scene.namespace}
        assert updater.parts.metrics.loop.updated.value(vpa_size_log2="1", **name) == 3
    pods = scene.wait_for_pods(3, **NEW)
    assert scene.uids() == before
    assert all(pod["metadata"]["annotations"]["vpaInPlaceUpdated"] == "true" for pod in pods)
    assert Counter(foretold.values()) == {("resize", "OutsideBounds"): 1, ("none", "BudgetSpent"): 2}


async def test_all_containers_of_a_pod_are_resized_at_once(scene: Scene) -> None:
    scene.workload(containers=("main", "helper"), replicas=2)
    scene.vpa(mode="InPlaceOrRecreate", containers=("main", "helper"))
    async with scene.updater() as updater:
        await updater.passes(3)
    for pod in scene.wait_for_pods(2, **NEW):
        assert [status["resources"]["requests"] for status in pod["status"]["containerStatuses"]] == [
            NEW,
            NEW,
        ]


async def test_without_the_lease_pods_are_resized_and_not_evicted_and_upstream_does_nothing(
    cluster: Cluster, namespace: str
) -> None:
    scene = Scene(cluster, namespace)
    scene.workload()
    scene.vpa(mode="InPlaceOrRecreate")
    before, clock = scene.uids(), Clock()
    async with scene.updater("--compatibility=upstream", now=clock) as updater:
        await updater.passes(3, clock)
        assert updater.decisions() == {}
    assert sizes(scene.pods()) == {"100m": 3}
    async with scene.updater(now=clock) as updater:
        await updater.passes(4, clock)
        assert updater.decisions() == {"none UpToDate": 3}
    assert sizes(scene.wait_for_pods(3, **NEW)) == {"200m": 3}
    assert scene.uids() == before


async def test_mode_in_place_never_evicts(scene: Scene) -> None:
    """Without its gate it does nothing; with it, a resize that the node cannot make is waited for."""
    scene.workload(annotations={"kubelet.testbed/resize": "infeasible"})
    scene.vpa(mode="InPlace")
    before, clock = scene.uids(), Clock()
    async with scene.updater(now=clock) as updater:
        await updater.passes(2, clock)
        assert updater.decisions() == {"none FeatureGateOff": 3}
    async with scene.updater(GATE, now=clock) as updater:
        for _ in range(4):
            await updater.passes(1, clock)
            await asyncio.sleep(0.5)
        assert updater.decisions() == {"none ResizeInfeasible": 3}
        resizes = updater.connection.requests["PATCH", 200]
        await updater.condition("UpdatesBlocked", "ResizeInfeasible")
        assert len(await updater.events("InPlaceResizeSkipped", 3)) == 3
        told = len(scene.events("InPlaceResizeSkipped"))
        await updater.passes(2, clock)
        assert sum(event["count"] for event in scene.events("InPlaceResizeSkipped")) == told
        # The two patches of each resize, and those of the condition: nothing was sent again.
        assert updater.connection.requests["PATCH", 200] <= resizes + 2
    assert scene.uids() == before


async def test_mode_in_place_says_what_the_node_refuses_and_does_not_ask_again(scene: Scene) -> None:
    """Even where the kubelet's figures already are those of the target: it holds memory requests so."""
    said = "cannot change the memory of a container that swaps"
    annotations = {"kubelet.testbed/resize": "error", "kubelet.testbed/resize-message": said}
    scene.workload(replicas=2, requests=HIGH, limits=HIGH, annotations=annotations)
    scene.vpa(mode="InPlace")
    before, clock = scene.uids(), Clock()
    async with scene.updater(GATE, now=clock) as updater:
        for _ in range(3):
            await updater.passes(1, clock)
            await updater.until(lambda: failed(scene) == sizes(scene.pods())["200m"], "the errors")
        await updater.until(lambda: failed(scene) == 2, "both to fail")
        await updater.passes(1, clock)
        assert updater.decisions() == {"none ResizeRefused": 2}
        found = await updater.condition("UpdatesBlocked", "ResizeRefused")
        assert f"pods: the node refuses the resize ({said})" in found["message"]
        generations = {pod["metadata"]["generation"] for pod in scene.pods()}
        for pod in scene.pods():
            requests = {
                "op": "replace",
                "path": "/status/containerStatuses/0/resources/requests",
                "value": NEW,
            }
            name = pod["metadata"]["name"]
            scene.api.patch("Pod", name, scene.namespace, body=[requests], subresource="status", how="json")
        clock.advance(hours=2)
        await updater.passes(2, clock)
        assert updater.decisions() == {"none ResizeRefused": 2}
        assert {pod["metadata"]["generation"] for pod in scene.pods()} == generations
        for pod in scene.pods():
            body = {"metadata": {"annotations": {"kubelet.testbed/resize": None}}}
            scene.api.patch("Pod", pod["metadata"]["name"], scene.namespace, body=body)
        await updater.until(lambda: not failed(scene), "the node to make the resizes")
        await updater.passes(2, clock)
        assert updater.decisions() == {"none UpToDate": 2}
        await updater.until(lambda: scene.condition("UpdatesBlocked") is None, "the condition to go")
    assert scene.uids() == before


def failed(scene: Scene) -> int:
    """Pods whose node says that it failed to resize them."""
    return sum(
        any(one["type"] == "PodResizeInProgress" for one in pod["status"]["conditions"])
        for pod in scene.pods()
    )


async def test_mode_in_place_tries_again_when_the_recommendation_changes(scene: Scene) -> None:
    scene.workload(replicas=2)
    scene.vpa(mode="InPlace")
    before = scene.uids()
    async with scene.updater(GATE) as updater:
        await updater.passes(3)
        assert sizes(scene.wait_for_pods(2, **NEW)) == {"200m": 2}
        scene.recommend(target={"cpu": "300m", "memory": "200Mi"})
        await updater.passes(3)
    assert sizes(scene.wait_for_pods(2, cpu="300m")) == {"300m": 2}
    assert scene.uids() == before


async def test_a_deferred_resize_is_waited_for_five_minutes_and_then_the_pod_is_evicted(scene: Scene) -> None:
    scene.workload(replicas=2, annotations={"kubelet.testbed/resize": "deferred"})
    scene.vpa(mode="InPlaceOrRecreate")
    before, clock = scene.uids(), Clock()
    async with scene.updater(now=clock) as updater:
        await updater.passes(1, clock)
        await asyncio.sleep(0.5)
        for _ in range(4):
            await updater.passes(1, clock)
        assert updater.decisions()["none ResizeDeferred"] >= 1
        assert scene.uids() == before
        clock.advance(minutes=2)
        decisions = await updater.pass_once()
        assert decisions["evict ResizeFellBack"] == 1
    assert len(scene.uids() & before) == 1


async def test_the_five_minutes_go_on_through_a_restart_of_the_updater(scene: Scene) -> None:
    """They run from the condition's own transition; upstream's begin anew with each process."""
    scene.workload(replicas=2, annotations={"kubelet.testbed/resize": "deferred"})
    scene.vpa(mode="InPlaceOrRecreate")
    before, clock = scene.uids(), Clock()
    async with scene.updater(now=clock) as updater:
        await updater.passes(2, clock)
        await updater.until(lambda: pending(scene) == 2, "both to be deferred")
    for minutes, decision in ((2, "none ResizeDeferred"), (3, "evict ResizeFellBack")):
        clock.advance(minutes=minutes)
        async with scene.updater(now=clock) as updater:
            assert (await updater.pass_once())[decision] >= 1
    assert len(scene.uids() & before) == 1


async def test_in_mode_in_place_a_deferred_resize_is_waited_for_however_long(scene: Scene) -> None:
    scene.workload(replicas=2, annotations={"kubelet.testbed/resize": "deferred"})
    scene.vpa(mode="InPlace")
    before, clock = scene.uids(), Clock()
    async with scene.updater(GATE, now=clock) as updater:
        await updater.passes(2, clock)
        await updater.until(lambda: pending(scene) == 2, "both to be deferred")
        generations = {pod["metadata"]["generation"] for pod in scene.pods()}
        for _ in range(5):
            clock.advance(hours=5)
            assert await updater.pass_once() == {"none ResizeDeferred": 2}
        await updater.condition("UpdatesBlocked", "ResizeDeferred")
        assert {pod["metadata"]["generation"] for pod in scene.pods()} == generations == {2}
    assert scene.uids() == before


def pending(scene: Scene) -> int:
    """Pods whose node has not begun to resize them."""
    return sum(
        any(one["type"] == "PodResizePending" for one in pod["status"]["conditions"]) for pod in scene.pods()
    )


async def test_a_deferred_resize_is_made_when_room_appears(scene: Scene) -> None:
    scene.workload(replicas=2, annotations={"kubelet.testbed/resize": "deferred"})
    scene.vpa(mode="InPlaceOrRecreate")
    before, clock = scene.uids(), Clock()
    async with scene.updater(now=clock) as updater:
        await updater.passes(3, clock)
        for pod in scene.pods():
            body = {"metadata": {"annotations": {"kubelet.testbed/resize": None}}}
            scene.api.patch("Pod", pod["metadata"]["name"], scene.namespace, body=body)
        await asyncio.sleep(1.0)
        await updater.passes(3, clock)
        assert updater.decisions() == {"none UpToDate": 2}
    assert scene.uids() == before


@pytest.mark.parametrize("how", ["infeasible", "error"])
async def test_what_the_node_cannot_make_is_evicted_at_once(scene: Scene, how: str) -> None:
    scene.workload(replicas=2, annotations={"kubelet.testbed/resize": how})
    scene.vpa(mode="InPlaceOrRecreate")
    before, clock = scene.uids(), Clock()
    async with scene.updater(now=clock) as updater:
        for _ in range(3):  # each pod is tried once, and a pass resizes before it evicts
            await updater.passes(1, clock)
            await asyncio.sleep(0.8)
        assert updater.decisions()["evict ResizeFellBack"] == 1
    assert len(scene.uids() & before) == 1


async def test_a_target_that_no_node_has_is_left_alone_and_under_upstream_evicted(scene: Scene) -> None:
    """Upstream's case of 999 cores; the API server itself refuses the resize."""
    scene.workload()
    scene.vpa(mode="InPlaceOrRecreate", recommend={"cpu": "999", "memory": "100Mi"})
    before = scene.uids()
    async with scene.updater() as updater:
        await updater.passes(2)
        assert updater.decisions() == {"none NoNodeFits": 3}
        assert updater.connection.requests["PATCH", 403] == 0
        assert scene.uids() == before
    async with scene.updater("--compatibility=upstream") as updater:
        decisions = await updater.pass_once()
        assert updater.connection.requests["PATCH", 403] == 3  # what fails spends no budget
        assert decisions["evict ResizeFellBack"] == 1
    assert len(before - scene.uids()) == 1


async def test_a_best_effort_pod_is_evicted_once_and_resized_from_then_on(scene: Scene) -> None:
    scene.workload(requests={}, replicas=2)
    scene.vpa(mode="InPlaceOrRecreate")
    with standins.serving(scene.cluster, scene.namespace):
        async with scene.updater() as updater:
            assert (await updater.pass_once())["evict ResizeFellBack"] == 1
            await updater.passes(3)
            assert updater.decisions() == {"none UpToDate": 2}
            first = scene.uids()
            scene.recommend(target=HIGH)
            await updater.passes(3)
            assert updater.decisions() == {"none UpToDate": 2}
        assert scene.uids() == first
        assert sizes(scene.wait_for_pods(2, **HIGH)) == {"500m": 2}


async def test_a_guaranteed_pod_stays_guaranteed(scene: Scene) -> None:
    scene.workload(requests=OLD, limits=OLD, replicas=2)
    scene.vpa(mode="InPlaceOrRecreate")
    before = scene.uids()
    async with scene.updater() as updater:
        await updater.passes(3)
    for pod in scene.wait_for_pods(2, **NEW):
        assert pod["spec"]["containers"][0]["resources"]["limits"] == NEW
        assert pod["status"]["qosClass"] == "Guaranteed"
    assert scene.uids() == before


async def test_startup_boosts_end_when_pods_are_ready(scene: Scene) -> None:
    original = '{"requests":{"cpu":"100m","memory":"100Mi"}}'
    scene.workload(
        replicas=3,
        requests={"cpu": "200m", "memory": "100Mi"},
        annotations={"vpaCpuStartupBoost/main": original},
    )
    boost = {"cpu": {"type": "Factor", "factor": 2, "durationSeconds": 1}}
    scene.vpa(mode="Recreate", recommend=OLD, startupBoost=boost)
    before, clock = scene.uids(), Clock()
    async with scene.updater("--feature-gates=CPUStartupBoost=true", now=clock) as updater:
        clock.advance(seconds=30)
        assert (await updater.pass_once())["resize BoostExpired"] == 1
        await updater.passes(4, clock)
        assert updater.decisions() == {"none UpToDate": 3}
    pods = scene.wait_for_pods(3, cpu="100m")
    assert scene.uids() == before
    assert not any("vpaCpuStartupBoost/main" in pod["metadata"]["annotations"] for pod in pods)


async def test_a_killed_pod_comes_back_with_its_target_and_the_others_are_resized(scene: Scene) -> None:
    with standins.serving(scene.cluster, scene.namespace):
        scene.workload()
        scene.vpa(mode="InPlaceOrRecreate")
        first = scene.pods()[0]
        scene.api.delete("Pod", first["metadata"]["name"], scene.namespace)
        before = scene.uids()
        async with scene.updater() as updater:
            await updater.passes(4)
            assert updater.decisions() == {"none UpToDate": 3}
            assert scene.events("EvictedByVPA") == []
        assert sizes(scene.wait_for_pods(3, **NEW)) == {"200m": 3}
        assert len(before & scene.uids()) >= 2


async def test_a_container_that_a_resize_restarts_obeys_the_disruption_budget(scene: Scene) -> None:
    restart = [{"resourceName": "cpu", "restartPolicy": "RestartContainer"}]
    scene.workload(replicas=3, resizePolicy=restart)
    scene.disruption_budget(maxUnavailable=0)
    scene.vpa(mode="InPlaceOrRecreate")
    async with scene.updater("--in-place-skip-disruption-budget") as updater:
        await updater.passes(2)
        assert updater.decisions() == {"none DisruptionBudgetBlocked": 3}
    assert sizes(scene.pods()) == {"100m": 3}


async def test_harmless_resizes_may_skip_the_disruption_budget_by_flag(scene: Scene) -> None:
    scene.workload(replicas=3)
    scene.disruption_budget(maxUnavailable=0)
    scene.vpa(mode="InPlaceOrRecreate")
    async with scene.updater("--in-place-skip-disruption-budget") as updater:
        assert await updater.pass_once() == {"resize OutsideBounds": 3}
    assert all(requested(pod) == NEW for pod in scene.wait_for_pods(3, **NEW))


async def test_a_pod_of_the_same_name_that_came_meanwhile_is_not_resized(scene: Scene) -> None:
    """A StatefulSet's pods keep their names: the resize names the pod by its uid, too."""
    scene.workload(kind="StatefulSet", replicas=1)
    scene.vpa(kind="StatefulSet", mode="InPlaceOrRecreate")
    async with scene.updater() as updater:
        pods = updater.parts.mirrors.pods
        (key, known), *_ = list(pods.items())
        await asyncio.to_thread(scene.api.delete, "Pod", "app-0", scene.namespace)
        await updater.until(
            lambda: any(
                pod.metadata.uid != known.metadata.uid and pod.status.phase == "Running"
                for pod in list(pods.values())
            ),
            "the new pod",
        )
        pods._tell(pods[key], known)  # as if the news of the new pod had not come yet
        pods._entries[key].record = known
        await updater.parts.updater.tick()
        assert updater.connection.requests["PATCH", 422] == 1
        assert updater.decisions() == {"none PodChanged": 1}
    assert [in_force(pod) for pod in scene.pods()] == [OLD]
