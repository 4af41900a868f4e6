"""The recommender on a real cluster: from usage through the real Metrics API to ``kubectl describe vpa``."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest

from tests.cluster.recommending import CHECKPOINT, MIB, SECONDS, VPA, Shop, dumped
from tests.testbed.api import ApiError, ApiNotFoundError, Json
from tests.testbed.cluster import Cluster
from tests.testbed.metrics import MetricsApi
from tests.testbed.processes import attempts

DAY = 86400


@pytest.fixture
def shop(cluster: Cluster, metrics: MetricsApi, namespace: str) -> Shop:
    """A namespace of its own in the cluster of this run; `metrics` forgets usage afterwards."""
    return Shop(cluster, namespace)


# Recommendations


def test_recommendations_appear_for_every_kind_of_workload(shop: Shop) -> None:
    shop.workload("web", "web", "log", replicas=2)
    shop.workload("db", kind="StatefulSet")
    shop.workload("agent", kind="DaemonSet")
    cron = {
        "apiVersion": "batch/v1",
        "kind": "CronJob",
        "metadata": {"name": "report"},
        "spec": {
            "schedule": "* * * * *",
            "jobTemplate": {
                "spec": {
                    "template": {
                        "metadata": {"labels": {"app": "report"}},
                        "spec": {
                            "restartPolicy": "Never",
                            "containers": [{"name": "report", "image": "report:1"}],
                        },
                    }
                }
            },
        },
    }
    shop.api.create(cron, shop.namespace)
    shop.cluster.kubectl("create", "job", "report-now", "--from=cronjob/report", "-n", shop.namespace)
    for name, kind in (("web", "Deployment"), ("db", "StatefulSet"), ("agent", "DaemonSet")):
        shop.vpa(name, kind=kind)
        shop.use(name, cpu=0.5, memory=400)
    ref = {"apiVersion": "batch/v1", "kind": "CronJob", "name": "report"}
    shop.vpa("report", kind="CronJob", targetRef=ref)
    shop.use("report*", cpu=0.1, memory=100)
    shop.use("web", "log", cpu=0.02, memory=50)
    with shop.recommender() as running:
        web = shop.wait_for_target("web", "web", "log")
        shop.wait("usage to be seen", lambda: shop.targets("web")["web"]["cpu"] == "587m", running.process)
        assert web.keys() == {"web", "log"}
        for name in ("db", "agent"):
            shop.wait_for_target(name, name)
        shop.wait_for_target("report", "report")
        described = shop.cluster.kubectl("describe", "vpa", "web", "-n", shop.namespace)
        assert "Container Name:  log" in described
        assert "Less than a day of usage is known" in described
        listed = shop.cluster.kubectl("get", "vpa", "web", "-n", shop.namespace, "--no-headers").split()
        assert listed[:2] == ["web", "Off"]
        assert listed[2] == "23m", "of the first container"
        figures = running.figures()
        labels = 'update_mode="Off",has_recommendation="true",api="v1"'
        labels += ',matches_pods="true",unsupported_config="false"'
        assert figures[f"vpa_recommender_vpa_objects_count{{{labels}}}"] >= 3
        assert figures["vpa_recommender_aggregate_container_states_count"] >= 5
        assert running.process.stop() == 0


def test_the_status_equals_what_vpa_recommend_says_for_the_same_objects_and_samples(
    shop: Shop, tmp_path: Path
) -> None:
    shop.workload("web", "web", "log")
    policy = {"containerPolicies": [{"containerName": "log", "minAllowed": {"cpu": "33m"}}]}
    shop.vpa("web", resourcePolicy=policy)
    start = int(time.time() - 3 * DAY)
    moments = [start + 4 * 3600 * step for step in range(6)]
    for name, size in (("web", 1.0), ("log", 0.3)):
        points = [(m, size * 0.1 * (n + 1), size * (100 + 37 * n) * MIB) for n, m in enumerate(moments)]
        shop.cluster.metrics.replay(points, namespace=shop.namespace, workload="web", container=name)
    lines = []
    with shop.recommender("--status-write-threshold=0", "--v=4") as running:
        for moment in moments:
            shop.cluster.metrics.clock(start=moment, speed=0)
            running.wait_for_ticks(2)
            lines += usage_now(shop)
        running.wait_for_ticks(2)
    objects = dumped(shop, tmp_path, "vpa", "deployments", "replicasets", "pods")
    usage = tmp_path / "usage.jsonl"
    usage.write_text("".join(json.dumps(line) + "\n" for line in lines))
    command = [sys.executable, "-m", "vpa.cli", "recommend", "-o", "json"]
    command += ["-f", str(objects), "--usage", str(usage)]
    printed = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout
    (offline,) = json.loads(printed)["items"]
    assert offline["status"] == shop.status("web")
    assert shop.targets("web")["log"]["cpu"] == "224m"


def usage_now(shop: Shop) -> list[Json]:
    """What the Metrics API says now, as lines of a usage file."""
    answer = shop.api.request("GET", f"/apis/metrics.k8s.io/v1beta1/namespaces/{shop.namespace}/pods")
    return [
        {
            "time": item["timestamp"],
            "namespace": item["metadata"]["namespace"],
            "pod": item["metadata"]["name"],
            "container": container["name"],
            **container["usage"],
        }
        for item in answer["items"]
        for container in item["containers"]
    ]


# Restarts


def test_a_restart_keeps_numbers_and_counts(shop: Shop) -> None:
    """Field case 28: eight VPAs, and their pods."""
    names = [f"w{number}" for number in range(8)]
    for name in names:
        shop.workload(name, replicas=2)
        shop.vpa(name)
    shop.use("*", cpu=0.5, memory=400)
    with shop.recommender("--status-write-threshold=0") as running:
        for name in names:
            shop.wait_for_target(name, name)
        running.wait_for_ticks(3)
        shop.cluster.metrics.fail(503)  # from here on nothing new is learned
        running.wait_for_ticks(3)
        assert running.process.stop() == 0
        before = {name: (shop.status(name), shop.samples(name, name)) for name in names}
        assert all(count >= 6 for _, count in before.values())
        running.process.start()
        running.wait_for_ticks(2)
        assert {name: shop.status(name) for name in names} == {name: before[name][0] for name in names}
        shop.cluster.metrics.heal()
        running.wait_for_ticks(3)
        assert running.process.stop() == 0
        assert all(shop.samples(name, name) > before[name][1] for name in names)


@pytest.mark.builds("upstream-vpa")
def test_upstreams_checkpoints_are_taken_over_with_equal_numbers_and_ours_by_upstream(shop: Shop) -> None:
    shop.workload("web", "web", "log", replicas=3)
    shop.vpa("web")
    shop.use("web", cpu=0.5, memory=400)
    shop.use("web", "log", cpu=0.03, memory=70)
    start = time.time() - 3 * DAY
    shop.cluster.metrics.clock(start=start, speed=3600)  # windows end, so that nothing is left out
    with shop.upstream() as running:
        shop.wait_for_target("web", "web", "log")
        shop.wait("a day of usage", lambda: shop.samples("web", "web") >= 60, running.process, seconds=60)
        shop.cluster.metrics.fail(503)
        running.wait_for_ticks(2)
        theirs = shop.status("web")["recommendation"]
        saved = {name: shop.checkpoint("web", name) for name in ("web", "log")}
        running.process.stop()
    shop.wipe("web")
    with shop.recommender() as running:
        shop.wait_for_target("web", "web", "log")
        assert shop.status("web")["recommendation"] == theirs
        shop.cluster.metrics.heal()
        shop.wait("more usage", lambda: running.ticks() > 6, running.process)
        shop.cluster.metrics.fail(503)
        running.wait_for_ticks(2)
        assert running.process.stop() == 0
    ours = shop.status("web")["recommendation"]
    assert shop.samples("web", "web") > saved["web"]["totalSamplesCount"]
    shop.wipe("web")
    with shop.upstream() as running:
        shop.wait_for_target("web", "web", "log")
        assert shop.status("web")["recommendation"] == ours


# Broken things beside good ones


def test_broken_things_are_named_and_the_good_ones_beside_them_are_served(shop: Shop) -> None:
    for name in ("good", "odd", "idle"):
        shop.workload(name)
        shop.vpa(name)
    shop.workload("silent", "main", "mute")
    shop.vpa("silent")
    shop.vpa("lost", target="nowhere")
    loosely(
        shop,
        "VerticalPodAutoscaler",
        {
            "apiVersion": "autoscaling.k8s.io/v1",
            "kind": VPA,
            "metadata": {"name": "loose"},
            "spec": {
                "targetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "good"},
                "updatePolicy": {"minReplicas": "two"},
            },
        },
    )
    damaged = {
        "apiVersion": "autoscaling.k8s.io/v1",
        "kind": CHECKPOINT,
        "metadata": {"name": "odd-odd"},
        "spec": {"vpaObjectName": "odd", "containerName": "odd"},
        "status": {"version": "v3", "cpuHistogram": {"bucketWeights": {"1": 1.5}, "totalWeight": 3}},
    }
    shop.api.create(damaged, shop.namespace)
    shop.use("*", cpu=0.5, memory=400)
    shop.workload("stranger")  # a pod that nobody tracks, since no VPA is about it
    shop.use("silent", "mute", cpu=0, memory=0)
    with shop.recommender("--memory-saver") as running:
        for name in ("good", "odd", "idle"):
            shop.wait_for_target(name, name)
        targets = shop.wait_for_target("silent", "main", "mute")
        assert targets["mute"] == {"cpu": "12m", "memory": "125Mi"}
        shop.wait("the lost target", lambda: "ConfigUnsupported" in shop.conditions("lost"), running.process)
        message = shop.conditions("lost")["ConfigUnsupported"]["message"]
        assert message == f"Cannot read targetRef. Reason: Deployment {shop.namespace}/nowhere does not exist"
        for name, reason, part in (
            ("loose", "Unreadable", "minReplicas"),
            ("odd", "CheckpointUnreadable", "bucketWeights[1] is not a whole number"),
        ):
            found = shop.wait(f"an event on {name}", partial(shop.events, name), running.process)
            assert [one for one, _ in found] == [reason]
            assert part in found[0][1]
        unknown = 'vpa_recommender_dropped_samples_total{reason="unknown"}'
        assert running.figures()[unknown] >= running.ticks() - 2, "one container in each reading"
        assert running.process.stop() == 0
        assert shop.samples("odd", "odd") > 0, "a broken checkpoint is replaced by a good one"


def loosely(shop: Shop, kind: str, body: Json) -> None:
    """Store an object as it was possible under a looser definition of its kind."""
    name = "verticalpodautoscalers.autoscaling.k8s.io"
    strict = shop.api.get("CustomResourceDefinition", name)
    loose = json.loads(json.dumps(strict))
    for version in loose["spec"]["versions"]:
        version["schema"]["openAPIV3Schema"] = {
            "type": "object",
            "x-kubernetes-preserve-unknown-fields": True,
        }
    path = shop.api.path("CustomResourceDefinition", name)
    shop.api.request("PATCH", path, {"spec": loose["spec"]}, content_type="application/merge-patch+json")
    try:
        for _ in attempts(SECONDS, "the looser definition to hold"):
            try:
                shop.api.create(body, shop.namespace)
                break
            except ApiError as error:
                if error.status != 422:
                    raise
    finally:
        shop.api.request("PATCH", path, {"spec": strict["spec"]}, content_type="application/merge-patch+json")
        unpruned = {"spec": strict["spec"]}
        assert unpruned["spec"]["group"] == "autoscaling.k8s.io"


# Identity


def test_two_stateful_sets_with_one_label_are_not_mixed(shop: Shop) -> None:
    """Field case 50."""
    for name, container in (("s0", "db"), ("s1", "cache")):
        shop.workload(name, container, kind="StatefulSet", labels={"app": "s", "only": name})
        shop.vpa(name, kind="StatefulSet")
    shop.use("s0", cpu=0.5, memory=400)
    shop.use("s1", cpu=0.1, memory=100)
    with shop.recommender() as running:
        shop.wait_for_target("s0", "db")
        shop.wait_for_target("s1", "cache")
        shop.wait("usage", lambda: shop.cpu("s0") == "587m" and shop.cpu("s1") == "126m", running.process)
        running.wait_for_ticks(3)
        assert (shop.cpu("s0"), shop.cpu("s1")) == ("587m", "126m"), "as without the other"


def test_a_wildcard_policy_with_memory_alone_recommends_no_cpu(shop: Shop) -> None:
    """Field case 34, first half."""
    shop.workload("web")
    shop.vpa(
        "web",
        resourcePolicy={"containerPolicies": [{"containerName": "*", "controlledResources": ["memory"]}]},
    )
    shop.use("web", cpu=0.5, memory=400)
    with shop.recommender():
        assert set(shop.wait_for_target("web", "web")["web"]) == {"memory"}


def test_a_renamed_container_takes_the_whole_minimum_and_its_deleted_checkpoint_stays_deleted(
    shop: Shop,
) -> None:
    """Field case 19."""
    shop.workload("web", "a")
    shop.vpa("web")
    shop.use("web", cpu=0.001, memory=10)
    with shop.recommender() as running:
        assert shop.wait_for_target("web", "a") == {"a": {"cpu": "25m", "memory": "250Mi"}}
        running.process.stop()
        assert shop.samples("web", "a") > 0
        running.process.start()
        shop.workload("web", "b")
        assert shop.wait_for_target("web", "b") == {"b": {"cpu": "25m", "memory": "250Mi"}}
        shop.api.delete(CHECKPOINT, "web-a", shop.namespace)
        running.wait_for_ticks(2)
        assert running.process.stop() == 0
        assert shop.samples("web", "b") > 0
        with pytest.raises(ApiNotFoundError):
            shop.checkpoint("web", "a")


def test_the_checkpoint_of_a_vpa_that_appears_later_or_changes_its_recommender_is_loaded_then(
    shop: Shop,
) -> None:
    for name in ("late", "moved"):
        shop.workload(name)
        shop.use(name, cpu=0.5, memory=400)
        shop.vpa(name)
    with shop.recommender("--memory-saver") as running:
        for name in ("late", "moved"):
            shop.wait_for_target(name, name)
        running.wait_for_ticks(5)
        running.process.stop()
    counts = {name: shop.samples(name, name) for name in ("late", "moved")}
    vpa = shop.api.get(VPA, "late", shop.namespace)
    shop.api.delete(VPA, "late", shop.namespace)
    elsewhere = {"spec": {"recommenders": [{"name": "other"}]}}
    shop.api.patch(VPA, "moved", shop.namespace, body=elsewhere)
    shop.cluster.metrics.fail(503)
    with shop.recommender("--memory-saver") as running:
        running.wait_for_ticks(2)
        shop.vpa("late", targetRef=vpa["spec"]["targetRef"])
        shop.api.patch(VPA, "moved", shop.namespace, body={"spec": {"recommenders": None}})
        for name in ("late", "moved"):
            shop.wait(f"{name}'s history", partial(shop.has_cpu, name, "587m"), running.process)
        shop.cluster.metrics.heal()
        running.wait_for_ticks(2)
        running.process.stop()
    for name, count in counts.items():
        assert shop.samples(name, name) > count


# Deckhouse


def test_with_deckhouses_arguments_a_daemon_set_is_recommended_by_node_label(shop: Shop) -> None:
    nodes = [node["metadata"]["name"] for node in shop.api.list("Node")]
    key = f"pool-{shop.namespace}"[:60].rstrip("-")
    for number, node in enumerate(nodes[:2]):
        label = {"metadata": {"labels": {key: f"p{number}"}}}
        shop.api.patch("Node", node, body=label)
    shop.workload("agent", kind="DaemonSet")
    pods = shop.wait_for_pods(len(nodes), {"app": "agent"})
    for pod in pods:
        size = nodes.index(pod["spec"]["nodeName"]) + 1
        shop.use("agent", pod=pod["metadata"]["name"], cpu=0.1 * size, memory=300)
    shop.vpa("agent", kind="DaemonSet", scope=key)
    with shop.recommender(
        "--memory-saver=true",
        "--pod-recommendation-min-cpu-millicores=25",
        "--pod-recommendation-min-memory-mb=50",
        "--memory-aggregation-interval=1h",
        "--memory-aggregation-interval-count=12",
        "--cpu-histogram-decay-half-life=8h",
        "--memory-histogram-decay-half-life=8h",
        "--stderrthreshold=0",
    ) as running:
        expected = {"p0": "126m", "p1": "247m"} | ({"__absent__": "350m"} if len(nodes) == 3 else {})
        shop.wait("a recommendation for each pool", lambda: _by_pool(shop) == expected, running.process)
        assert shop.status("agent")["recommendation"] == {}


def _by_pool(shop: Shop) -> dict[str, str]:
    return {
        group["scopeValue"]: group["containerRecommendations"][0]["target"]["cpu"]
        for group in shop.status("agent").get("groups", [])
    }


def test_a_vpa_without_matching_pods_says_so(shop: Shop) -> None:
    shop.workload("web", replicas=0)
    shop.vpa("web")
    with shop.recommender() as running:
        shop.wait("the condition", lambda: "NoPodsMatched" in shop.conditions("web"), running.process)
        assert shop.conditions("web")["RecommendationProvided"]["status"] == "False"
        assert shop.status("web")["recommendation"] == {}
