"""The updater among others: a second one, a descheduler, a drain; and its life as a process."""

from __future__ import annotations

import asyncio
import contextlib
import random
import sys
import time
import urllib.request
from collections.abc import Iterator

import pytest

from tests.cluster import roles
from tests.cluster.onlookers import onlooker
from tests.cluster.updating import NEW, OLD, Clock, Scene, sizes
from tests.cluster.webhooks import Webhook
from tests.testbed import ports
from tests.testbed.accounts import ServiceAccount
from tests.testbed.api import ApiError, Json
from tests.testbed.cluster import Cluster
from tests.testbed.processes import Process, attempts


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
    with Webhook(cluster=cluster, account=account, flags=["--feature-gates=AllAlpha=true"]) as webhook:
        yield webhook


def evicted_by_us(scene: Scene) -> set[str]:
    return {event["involvedObject"]["uid"] for event in scene.events("EvictedByVPA")}


# Others who disrupt pods


async def test_two_updaters_never_take_more_of_a_group_than_one_may(scene: Scene) -> None:
    """Both without leader election, both with a budget of three of six."""
    scene.workload(replicas=6)
    scene.vpa()
    async with onlooker(scene) as looking, scene.updater() as one, scene.updater() as two:
        for _ in range(5):
            await one.catch_up()
            await two.catch_up()
            await asyncio.gather(one.parts.updater.tick(), two.parts.updater.tick())
            await asyncio.sleep(1)
        await one.passes(2)
        assert one.decisions() == {"none UpToDate": 6}
        assert min(looking.left.values()) > 3
    assert sizes(scene.pods()) == {"200m": 6}


async def test_beside_a_descheduler_we_never_take_the_one_too_many(scene: Scene) -> None:
    """It evicts one pod after the other; whenever we evict, enough are up, as far as the watch can tell: only
    a PodDisruptionBudget keeps two from taking the last one that may go in the same moment.
    """
    scene.workload(replicas=10)
    scene.vpa()
    stop = asyncio.Event()

    async def deschedule() -> None:
        chance = random.Random(7)
        while not stop.is_set():
            pods = await asyncio.to_thread(scene.pods)
            name = chance.choice(pods)["metadata"]["name"]
            path = scene.api.path("Pod", name, scene.namespace) + "/eviction"
            body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name}}
            with contextlib.suppress(ApiError):
                await asyncio.to_thread(scene.api.request, "POST", path, body)
            await asyncio.sleep(0.15)

    async with onlooker(scene) as looking, scene.updater() as updater:
        other = asyncio.create_task(deschedule())
        for _ in range(12):
            await updater.parts.updater.tick()
            await asyncio.sleep(0.4)
        stop.set()
        await other
        await updater.passes(4)
        assert updater.decisions() == {"none UpToDate": 10}
        await updater.events("EvictedByVPA", 1)
        await asyncio.sleep(1)
        ours = evicted_by_us(scene)
        assert len(ours) >= 2
        # Five of ten may be down; a pod that goes while only five are up is the sixth.
        up = [looking.left.get(uid, 10) for uid in ours]
        assert min(up) >= 5
        assert up.count(5) <= 1


async def test_a_node_that_is_drained_meanwhile_counts_as_down(scene: Scene) -> None:
    scene.workload(replicas=9)
    scene.disruption_budget(maxUnavailable=4)
    scene.vpa()
    before = scene.uids()
    node = scene.pods()[0]["spec"]["nodeName"]
    async with onlooker(scene) as looking, scene.updater() as updater:
        try:
            drain = asyncio.create_task(
                asyncio.to_thread(
                    scene.cluster.kubectl,
                    "drain",
                    node,
                    "--pod-selector=app=app",
                    "--ignore-daemonsets",
                    "--disable-eviction=false",
                    timeout=120,
                )
            )
            for _ in range(6):
                await updater.parts.updater.tick()
                await asyncio.sleep(0.3)
            await drain
            await updater.passes(4)
        finally:
            scene.cluster.kubectl("uncordon", node)
        assert updater.decisions() == {"none UpToDate": 9}
        assert min(looking.left.values()) > 5
    assert not scene.uids() & before


# At once


@pytest.mark.parametrize("threshold", [600, 1], ids=["within the threshold", "beyond it"])
async def test_an_oom_kill_is_acted_on_at_once_if_it_came_soon_after_the_start(
    scene: Scene, threshold: int
) -> None:
    """Upstream's two cases of PerVPAConfig; no pass is made but the one that the kill asks for."""
    scene.workload()
    scene.vpa(recommend=None, policy={"evictAfterOOMSeconds": threshold})
    scene.recommend(target=NEW, lower={"cpu": "10m", "memory": "10Mi"}, upper={"cpu": "4", "memory": "4Gi"})
    before = scene.uids()
    victim = scene.pods()[0]["metadata"]["name"]
    await asyncio.sleep(1.1)
    async with scene.updater("--feature-gates=PerVPAConfig=true", "--updater-interval=1h") as updater:
        kill = {"metadata": {"annotations": {"kubelet.testbed/oom-kill": "main"}}}
        scene.api.patch("Pod", victim, scene.namespace, body=kill)
        if threshold == 600:
            await updater.until(lambda: len(scene.uids() & before) == 2, "the eviction", seconds=10)
            (event,) = await updater.events("EvictedByVPA")
            assert event["involvedObject"]["name"] == victim
        else:
            await asyncio.sleep(3)
            assert scene.uids() == before
            restarted = scene.api.get("Pod", victim, scene.namespace)["status"]["containerStatuses"][0]
            assert restarted["restartCount"] == 1
    assert updater.parts.metrics.loop.execution_latency.count(step="total") == 0


async def test_under_upstreams_rules_a_kill_waits_for_the_next_pass(scene: Scene) -> None:
    scene.workload()
    scene.vpa(recommend=None)
    scene.recommend(target=NEW, lower={"cpu": "10m", "memory": "10Mi"}, upper={"cpu": "4", "memory": "4Gi"})
    before = scene.uids()
    victim = scene.pods()[0]["metadata"]["name"]
    async with scene.updater("--compatibility=upstream", "--updater-interval=1h") as updater:
        kill = {"metadata": {"annotations": {"kubelet.testbed/oom-kill": "main"}}}
        scene.api.patch("Pod", victim, scene.namespace, body=kill)
        await updater.until(lambda: restarted(scene, victim), "the container to run again")
        await asyncio.sleep(1)
        assert scene.uids() == before
        assert (await updater.pass_once())["evict QuickOOM"] == 1
    assert len(scene.uids() & before) == 2


def restarted(scene: Scene, pod: str) -> bool:
    """Does its container run again, after its end?"""
    status = scene.api.get("Pod", pod, scene.namespace)["status"]["containerStatuses"][0]
    return bool(status["restartCount"] and "running" in status["state"])


async def test_a_pod_that_crashes_again_and_again_does_not_wait_for_the_next_pass(scene: Scene) -> None:
    """It gets its new size at once; pods of others wait for the pass."""
    for name in ("crashes", "runs"):
        scene.workload(name, replicas=2, wait=False)
    for name in ("crashes", "runs"):
        scene.wait_for_pods(2, name)
        scene.vpa(name, mode="InPlaceOrRecreate")
    victim = scene.pods("crashes")[0]["metadata"]["name"]
    async with scene.updater("--updater-interval=1h") as updater:
        crash = {"restartCount": 5, "state": {"waiting": {"reason": "CrashLoopBackOff"}}}
        operations = [
            {"op": "replace", "path": f"/status/containerStatuses/0/{key}", "value": value}
            for key, value in crash.items()
        ]
        scene.api.patch("Pod", victim, scene.namespace, body=operations, subresource="status", how="json")
        await updater.until(lambda: sizes(scene.pods("crashes"))["200m"] >= 1, "the resize", seconds=10)
        assert sizes(scene.pods("runs")) == {"100m": 2}


async def test_a_larger_recommendation_for_a_pod_that_was_killed_is_applied_at_once(scene: Scene) -> None:
    scene.workload(replicas=2)
    scene.vpa(mode="InPlaceOrRecreate", recommend=OLD)
    victim = scene.pods()[0]["metadata"]["name"]
    async with scene.updater("--updater-interval=1h") as updater:
        kill = {"metadata": {"annotations": {"kubelet.testbed/oom-kill": "main"}}}
        scene.api.patch("Pod", victim, scene.namespace, body=kill)
        await asyncio.sleep(1.5)
        assert sizes(scene.pods()) == {"100m": 2}
        scene.recommend(target=NEW)
        await updater.until(lambda: sizes(scene.pods())["200m"] >= 1, "the resize", seconds=10)


# Permissions


@pytest.mark.parametrize("whose", ["upstream", "deckhouse"])
async def test_under_others_roles_rules_without_permission_are_off_and_said_once(
    scene: Scene, whose: str, caplog: pytest.LogCaptureFixture
) -> None:
    account = scene.cluster.service_account("kube-system", f"vpa-updater-of-{whose}")
    (roles.upstream if whose == "upstream" else roles.deckhouse)("updater").grant_to(account)
    scene.workload(replicas=4, requests={"cpu": "500m", "memory": "500Mi"}, limits={"memory": "1Gi"})
    scene.vpa()
    scene.workload("single", replicas=1)
    scene.vpa("single")
    async with scene.updater(account=account) as updater:
        decisions = await updater.pass_once()
        assert decisions == {"evict OutsideBounds": 2, "none BudgetSpent": 2, "none TooFewReplicas": 1}
        await updater.passes(2)
        await updater.events("EvictedByVPA", 2)
        available = updater.parts.metrics.own.available
        assert available.value(rule="foresee_node_fit") == 1
        for rule in ("foresee_quota", "foresee_disruption_budgets", "ignore_hpa"):
            assert available.value(rule=rule) == 0
        assert available.value(rule="keep_memory_limit_above_use") == 0
        await asyncio.sleep(0.5)
    said = [record.message for record in caplog.records if record.name == "updater.troubles"]
    assert sum("Without resourcequotas pods may be evicted" in line for line in said) == 1
    assert sum("Without present memory use" in line for line in said) == 1
    assert sum("Conditions of VPAs cannot be written" in line for line in said) == (whose == "upstream")
    assert (scene.condition("UpdatesBlocked", "single") is None) == (whose == "upstream")
    assert len(said) == len(set(said))


# A process


def start(scene: Scene, name: str, *args: str, kubeconfig: str = "") -> Process:
    command = [
        sys.executable,
        "-m",
        "updater",
        *scene.arguments(
            "--updater-interval=1s", *args, kubeconfig=kubeconfig or str(scene.account().kubeconfig)
        ),
    ]
    return scene.cluster.spawn(f"{name}-{scene.namespace[-6:]}", command, NAMESPACE="kube-system")


@pytest.fixture
def account(scene: Scene) -> ServiceAccount:
    return scene.account()


ELECTION = [
    "--leader-elect",
    "--leader-elect-lease-duration=3s",
    "--leader-elect-renew-deadline=2s",
    "--leader-elect-retry-period=500ms",
]


def test_of_two_processes_one_leads_and_the_other_takes_over(scene: Scene) -> None:
    scene.workload(replicas=2)
    scene.vpa(mode="InPlaceOrRecreate")
    addresses = [f"127.0.0.1:{ports.free()}" for _ in range(2)]
    with (
        start(scene, "first", *ELECTION, f"--address={addresses[0]}") as first,
        contextlib.ExitStack() as stack,
    ):
        scene.wait_for_pods(2, **NEW)
        second = stack.enter_context(start(scene, "second", *ELECTION, f"--address={addresses[1]}"))
        for _ in attempts(20, "the second to wait", second):
            if "waiting for lease" in second.logs():
                break
        assert health(addresses[1]) == "OK"
        scene.recommend(target={"cpu": "300m", "memory": "200Mi"})
        scene.wait_for_pods(2, cpu="300m")
        assert "Resized a pod" not in second.logs()
        assert first.stop() == 0
        ended = time.monotonic()
        scene.recommend(target={"cpu": "400m", "memory": "200Mi"})
        scene.wait_for_pods(2, cpu="400m")
        assert time.monotonic() - ended < 10
        assert "Resized a pod" in second.logs()
        assert second.stop() == 0


def health(address: str) -> str:
    with urllib.request.urlopen(f"http://{address}/health-check", timeout=10) as answer:
        text: str = answer.read().decode()
        return text


def test_when_asked_to_end_it_finishes_what_it_has_sent(scene: Scene) -> None:
    """An eviction that takes three seconds is under way when the signal comes; no other is begun."""
    scene.workload(replicas=8)
    scene.vpa()
    before = scene.uids()
    address = f"127.0.0.1:{ports.free()}"
    arguments = [
        "--leader-elect",
        f"--address={address}",
        "--eviction-rate-limit=1",
        "--updater-interval=5s",
    ]
    with scene.cluster.fault_proxy() as proxy:
        proxy.delay(3, path="*/eviction")
        kubeconfig = str(scene.account().kubeconfig_to(proxy.url))
        with start(scene, "ending", *arguments, kubeconfig=kubeconfig) as process:
            for _ in attempts(60, "an eviction to be under way", process):
                if proxy.count(path="*/eviction"):
                    break
            metrics = urllib.request.urlopen(f"http://{address}/metrics", timeout=10).read().decode()
            assert "vpa_updater_controlled_pods_total" in metrics
            asked = time.monotonic()
            assert process.stop() == 0
            assert time.monotonic() - asked < 9
    gone = before - scene.uids()
    assert len(gone) == 1
    assert len(scene.wait_for_events("EvictedByVPA", 1)) == 1
    lease: Json = scene.api.get("Lease", "vpa-updater", "kube-system")
    assert not lease["spec"].get("holderIdentity")


def test_it_ends_at_once_while_it_waits_for_the_lease(scene: Scene, account: ServiceAccount) -> None:
    scene.api.apply(
        {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {"name": "vpa-updater", "namespace": "kube-system"},
            "spec": {"holderIdentity": "somebody", "leaseDurationSeconds": 3600},
        }
    )
    try:
        with start(scene, "standby", "--leader-elect", f"--address=127.0.0.1:{ports.free()}") as process:
            for _ in attempts(30, "it to wait", process):
                if "waiting for lease" in process.logs():
                    break
            asked = time.monotonic()
            assert process.stop() == 0
            assert time.monotonic() - asked < 3
    finally:
        scene.api.delete("Lease", "vpa-updater", "kube-system")


def test_arguments_that_cannot_be_are_refused_in_one_sentence(scene: Scene) -> None:
    with start(scene, "wrong", "--updater-interval=0s", kubeconfig="/none") as process:
        assert process.wait(30) == 2
        assert "--updater-interval must be longer than 0" in process.logs()


async def test_an_old_copy_of_the_cluster_is_not_acted_on(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    """Minutes without a word from the server: what we know may be long untrue."""
    scene.workload(replicas=2)
    scene.vpa()
    before = scene.uids()
    async with scene.updater(now=Clock()) as updater:
        mirror = updater.parts.mirrors.pods
        confirmed = mirror._confirmed
        assert confirmed is not None
        mirror._confirmed = confirmed - 300
        await updater.parts.updater.tick()
        assert updater.decisions() == {}
        mirror._confirmed = confirmed
        assert (await updater.pass_once())["evict OutsideBounds"] == 1
    assert sum("Nothing is done: the copy of pods is" in line for line in caplog.messages) == 1
    assert len(before & scene.uids()) == 1
