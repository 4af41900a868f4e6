"""Resizes by our updater, as the kernel sees them."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest

from tests.node import usage
from tests.node.figures import Figures
from tests.node.installation import SYSTEM, Chart
from tests.node.workloads import MI, Namespace, condition, container, is_ready, pod_spec, restarts
from tests.testbed import ports
from tests.testbed.api import Json
from tests.testbed.cluster import Cluster
from tests.testbed.processes import attempts

pytestmark = pytest.mark.usefixtures("chart")

UPDATER_SECONDS = 5
EFFECT_SECONDS = 30.0
"""Upper bound for what takes some 1 to 6 s: a pass of the updater each 5 s, and the kubelet."""


def resources(cpu: str, memory: str, cpu_limit: str, memory_limit: str) -> Json:
    return {
        "requests": {"cpu": cpu, "memory": memory},
        "limits": {"cpu": cpu_limit, "memory": memory_limit},
    }


@pytest.mark.brief
def test_a_resize_up_and_down_is_in_the_cgroups_and_restarts_nothing(
    namespace: Namespace, figures: Figures
) -> None:
    app = container(requests={"cpu": "100m", "memory": "64Mi"}, limits={"cpu": "200m", "memory": "128Mi"})
    namespace.deployment("web", pod_spec(app, node="node-1"))
    namespace.vpa("web")
    first = namespace.pod("web")
    before = namespace.cgroup(first)
    assert (before.cpu_limit, before.memory_limit) == (200, 128 * MI)
    weights = [before.cpu_weight]

    for direction, target, expected, limits in (
        (
            "up",
            {"cpu": "300m", "memory": "200Mi"},
            resources("300m", "200Mi", "600m", "400Mi"),
            (600, 400 * MI),
        ),
        ("down", {"cpu": "50m", "memory": "40Mi"}, resources("50m", "40Mi", "100m", "80Mi"), (100, 80 * MI)),
    ):
        start = namespace.recommend("web", {"app": target})
        after = namespace.in_force("web", {"app": expected}, seconds=EFFECT_SECONDS)
        figures(f"seconds_{direction}", round(time.monotonic() - start, 2))
        now = namespace.cgroup(after)
        assert (now.cpu_limit, now.memory_limit) == limits
        assert namespace.pod_cgroup(after).memory_limit == limits[1]
        weights.append(now.cpu_weight)
        assert after["metadata"]["uid"] == first["metadata"]["uid"]
        assert restarts(after) == 0
    assert weights[2] < weights[0] < weights[1]


def test_a_limit_below_what_is_in_use_is_not_asked_for(namespace: Namespace) -> None:
    hog_deployment(namespace)
    for _ in attempts(60, "metrics-server to know what it uses", pause=0.5):
        if usage.from_metrics_server(namespace, namespace.pod("hog"))["app"].memory > 100 * MI:
            break
    namespace.vpa("hog")
    namespace.recommend("hog", {"app": {"memory": "60Mi"}})
    assert "container app uses" in namespace.blocked("hog", "LimitBelowUsage")
    pod = namespace.pod("hog")
    assert pod["metadata"]["generation"] == 1, "nothing was sent"
    assert namespace.cgroup(pod).memory_limit == 160 * MI


@pytest.mark.brief
def test_a_limit_that_the_node_refuses_is_neither_asked_for_again_nor_evicted_for(
    namespace: Namespace, figures: Figures
) -> None:
    """Use that nobody knew of: the pod has only just taken its memory."""
    hog_deployment(namespace, mib=8)
    first = namespace.pod("hog")
    namespace.vpa("hog")
    namespace.work(first, mib=120)
    for _ in attempts(10, "the pod to take its memory", pause=0.02):
        if namespace.cgroup(first).memory > 120 * MI:
            break
    start = namespace.recommend("hog", {"app": {"memory": "60Mi"}})
    assert "the node does not lower the memory limit" in namespace.blocked("hog", "LimitBelowUsage")
    figures("seconds until it is said", round(time.monotonic() - start, 1))
    refused = namespace.pod("hog")
    assert condition(refused, "PodResizeInProgress")["reason"] == "Error"
    time.sleep(2 * UPDATER_SECONDS)
    after = namespace.pod("hog")
    assert after["metadata"]["uid"] == first["metadata"]["uid"]
    assert after["metadata"]["generation"] == refused["metadata"]["generation"] == 2
    assert namespace.cgroup(after).memory_limit == 160 * MI


def hog_deployment(namespace: Namespace, *, mib: int = 120) -> None:
    app = container(mib=mib, requests={"memory": "160Mi"}, limits={"memory": "160Mi"})
    namespace.deployment("hog", pod_spec(app, node="node-1"))


@pytest.mark.brief
def test_what_a_node_can_never_hold_is_known_beforehand(namespace: Namespace) -> None:
    namespace.deployment("giant", pod_spec(container(requests={"cpu": "100m", "memory": "32Mi"})))
    namespace.vpa("giant")
    namespace.recommend("giant", {"app": {"cpu": "64", "memory": "32Mi"}})
    namespace.blocked("giant", "NoNodeFits")
    assert namespace.pod("giant")["spec"]["containers"][0]["resources"]["requests"]["cpu"] == "100m"


def test_what_the_server_refuses_as_too_large_is_understood_and_not_asked_for_again(
    chart: Chart, real: Cluster, namespace: Namespace
) -> None:
    """An updater that does not look at nodes beforehand, in place of the chart's."""
    account = real.service_account(SYSTEM, f"{chart.deployment('updater')}")
    command: list[str | Path] = [
        *(sys.executable, "-m", "updater", f"--kubeconfig={account.kubeconfig}"),
        *("--foresee-node-fit=false", "--foresee-resize-refusals=false", "--min-replicas=1"),
        *("--feature-gates=InPlace=true", f"--updater-interval={UPDATER_SECONDS}s"),
        f"--vpa-object-namespace={namespace.name}",
        f"--address=127.0.0.1:{ports.free()}",
    ]
    scale = ["scale", f"deployment/{chart.deployment('updater')}", "-n", SYSTEM]
    real.kubectl(*scale, "--replicas=0")
    try:
        namespace.deployment("giant", pod_spec(container(requests={"cpu": "100m"}), node="node-1"))
        namespace.vpa("giant", mode="InPlace")
        namespace.recommend("giant", {"app": {"cpu": "64"}})
        with real.spawn("updater", command) as updater:
            message = namespace.blocked("giant", "ResizeInfeasible")
            time.sleep(2 * UPDATER_SECONDS)
            refusals = [line for line in updater.logs().splitlines() if "A pod was not resized" in line]
    finally:
        real.kubectl(*scale, "--replicas=2")
        chart.wait()
    assert "64" in message
    assert len(refusals) == 1
    assert namespace.pod("giant")["metadata"]["generation"] == 1


@pytest.mark.brief
def test_a_resize_that_would_change_the_qos_class_is_foreseen(namespace: Namespace) -> None:
    namespace.deployment("effortless", pod_spec(container()))
    namespace.vpa("effortless", mode="InPlace")
    namespace.recommend("effortless", {"app": {"cpu": "50m", "memory": "32Mi"}})
    namespace.blocked("effortless", "QoSWouldChange")


@pytest.mark.brief
def test_a_container_that_asks_for_it_is_restarted_by_a_resize_which_is_said(
    chart: Chart, namespace: Namespace, figures: Figures
) -> None:
    policy = [{"resourceName": "memory", "restartPolicy": "RestartContainer"}]
    app = container(requests={"cpu": "50m", "memory": "64Mi"}, limits={"memory": "64Mi"}, resizePolicy=policy)
    namespace.deployment("old", pod_spec(app, node="node-1"))
    namespace.vpa("old")
    first = namespace.pod("old")
    start = namespace.recommend("old", {"app": {"cpu": "50m", "memory": "96Mi"}})
    expected = {"requests": {"cpu": "50m", "memory": "96Mi"}, "limits": {"memory": "96Mi"}}
    after = namespace.in_force("old", {"app": expected}, seconds=EFFECT_SECONDS)
    figures("seconds", round(time.monotonic() - start, 1))
    assert after["metadata"]["uid"] == first["metadata"]["uid"]
    assert restarts(after) == 1
    assert namespace.cgroup(after).memory_limit == 96 * MI
    said = [line for line in chart.logs("updater").splitlines() if first["metadata"]["name"] in line]
    assert any("by resizePolicy this restarts app" in line for line in said), said


def test_a_deferred_resize_is_made_when_there_is_room(namespace: Namespace, figures: Figures) -> None:
    late_deployment(namespace)
    first = namespace.pod("late")
    namespace.recommend("late", {"app": {"cpu": "500m"}})
    for _ in attempts(EFFECT_SECONDS, "the node to defer the resize", pause=0.1):
        if condition(namespace.pod("late"), "PodResizePending").get("reason") == "Deferred":
            break
    namespace.api.delete("Deployment", "filler", namespace.name)
    start = time.monotonic()
    after = namespace.in_force("late", {"app": {"requests": {"cpu": "500m"}}}, seconds=EFFECT_SECONDS)
    figures("seconds after the other was deleted", round(time.monotonic() - start, 1))
    assert after["metadata"]["uid"] == first["metadata"]["uid"]
    assert restarts(after) == 0
    assert not condition(after, "PodResizePending")


@pytest.mark.slow
def test_a_resize_deferred_for_five_minutes_becomes_an_eviction(
    chart: Chart, namespace: Namespace, figures: Figures
) -> None:
    late_deployment(namespace, tied=False)
    first = namespace.pod("late")
    start = namespace.recommend("late", {"app": {"cpu": "500m"}})
    for _ in attempts(420, "another pod", pause=1):
        found = namespace.pods("late")
        if found and found[0]["metadata"]["uid"] != first["metadata"]["uid"] and is_ready(found[0]):
            break
    seconds = time.monotonic() - start
    figures("seconds until another pod was ready", round(seconds))
    assert 300 <= seconds <= 400
    assert found[0]["spec"]["nodeName"] == "node-2"
    assert found[0]["spec"]["containers"][0]["resources"]["requests"]["cpu"] == "500m"
    said = [line for line in chart.logs("updater").splitlines() if first["metadata"]["name"] in line]
    assert any("ResizeFellBack" in line for line in said), said


def late_deployment(namespace: Namespace, *, tied: bool = True) -> None:
    """A pod beside another that leaves 200 millicores of their node; *tied*: it can go nowhere else."""
    node = "node-1"
    filler = namespace.free_cpu(node) - 300
    namespace.deployment("filler", pod_spec(container(requests={"cpu": f"{filler}m"}), node=node))
    preferred = {
        "nodeAffinity": {
            "preferredDuringSchedulingIgnoredDuringExecution": [
                {
                    "weight": 100,
                    "preference": {
                        "matchExpressions": [
                            {"key": "kubernetes.io/hostname", "operator": "In", "values": [node]}
                        ]
                    },
                }
            ]
        }
    }
    app = container(requests={"cpu": "100m"})
    spec = pod_spec(app, node=node) if tied else pod_spec(app, affinity=preferred)
    namespace.deployment("late", spec)
    namespace.vpa("late")
