"""Usage that tests set, as clients see it through the real aggregator."""

from __future__ import annotations

import subprocess
import time
from datetime import UTC, datetime

import pytest

from tests.testbed.api import ApiError, Json
from tests.testbed.cluster import Cluster
from tests.testbed.metrics import MetricsApi
from tests.testbed.processes import attempts
from tests.testbed.usage import Clock, Pod, Rule, Usage

MIB = 2**20


@pytest.fixture
def web(cluster: Cluster, namespace: str) -> str:
    """A namespace with two running pods of the Deployment `web`."""
    cluster.kubectl("create", "deployment", "web", "--image=web:1", "--replicas=2", "-n", namespace)
    cluster.kubectl("wait", "--for=condition=Available", "--timeout=120s", "deployment/web", "-n", namespace)
    return namespace


def pod_metrics(cluster: Cluster, namespace: str, expected: int) -> list[Json]:
    """What the API shows, as soon as it has seen the *expected* number of pods."""
    path = f"/apis/metrics.k8s.io/v1beta1/namespaces/{namespace}/pods"
    for _ in attempts(60, f"metrics of {expected} pods"):
        items: list[Json] = cluster.api.request("GET", path)["items"]
        if len(items) == expected:
            return items
    raise AssertionError("unreachable")


def test_kubectl_top_shows_the_usage_that_was_set(cluster: Cluster, metrics: MetricsApi, web: str) -> None:
    metrics.use(cpu=0.25, memory=300 * MIB, namespace=web, workload="web")
    pod_metrics(cluster, web, expected=2)
    lines = cluster.kubectl("top", "pods", "-n", web, "--no-headers").splitlines()
    assert [line.split()[1:] for line in lines] == [["250m", "300Mi"]] * 2
    selected = cluster.kubectl("top", "pods", "-n", web, "-l", "app=web,app!=other", "--no-headers")
    assert len(selected.splitlines()) == 2
    with pytest.raises(subprocess.CalledProcessError) as nothing:
        cluster.kubectl("top", "pod", "missing", "-n", web)
    assert "not found" in str(nothing.value.stderr)
    assert "250m" in cluster.kubectl("top", "nodes", "--no-headers")


def test_pods_without_a_rule_have_no_metrics(cluster: Cluster, metrics: MetricsApi, web: str) -> None:
    metrics.use(cpu=1, memory=MIB, namespace=web, workload="other")
    with pytest.raises(subprocess.CalledProcessError):
        cluster.kubectl("top", "pods", "-n", web)
    pod_metrics(cluster, web, expected=0)


def test_a_service_account_needs_the_right_to_read_usage(
    cluster: Cluster, metrics: MetricsApi, web: str
) -> None:
    metrics.use(cpu=1, memory=MIB, namespace=web)
    account = cluster.service_account(web, "reader")
    asked = ["auth", "can-i", "list", "pods.metrics.k8s.io", f"--as={account.user}"]
    with pytest.raises(subprocess.CalledProcessError):
        cluster.kubectl(*asked)
    account.grant([{"apiGroups": ["metrics.k8s.io"], "resources": ["pods"], "verbs": ["list"]}])
    assert cluster.kubectl(*asked).strip() == "yes"


def test_time_stamps_can_be_of_days_ago(cluster: Cluster, metrics: MetricsApi, web: str) -> None:
    start = time.time() - 8 * 86400
    metrics.use(cpu=1, memory=MIB, namespace=web)
    metrics.clock(start, speed=0, window=15)
    first, _ = pod_metrics(cluster, web, expected=2)
    assert first["timestamp"] == datetime.fromtimestamp(start, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    assert first["window"] == "15s"


def test_a_trace_is_replayed_in_accelerated_time(cluster: Cluster, metrics: MetricsApi, web: str) -> None:
    start = 1_000_000_000.0  # a multiple of the trace's length
    metrics.replay([(0, 0.1, 1024), (500, 0.4, 2048)], namespace=web, workload="web")
    for moment, cpu, memory in (
        (0, "100000000n", "1Ki"),
        (500, "400000000n", "2Ki"),
        (1000, "100000000n", "1Ki"),
    ):
        metrics.clock(start + moment, speed=0)
        first, _ = pod_metrics(cluster, web, expected=2)
        assert first["containers"][0]["usage"] == {"cpu": cpu, "memory": memory}


@pytest.mark.parametrize("status", [404, 503])
def test_the_api_can_fail(cluster: Cluster, metrics: MetricsApi, web: str, status: int) -> None:
    metrics.use(cpu=1, memory=MIB, namespace=web)
    pod_metrics(cluster, web, expected=2)
    path = f"/apis/metrics.k8s.io/v1beta1/namespaces/{web}/pods"
    metrics.fail(status, count=1)
    with pytest.raises(ApiError) as failed:
        cluster.api.request("GET", path)
    assert failed.value.status == status
    assert len(cluster.api.request("GET", path)["items"]) == 2
    assert metrics.requests().count(path) >= 3


def test_the_api_can_be_slow_or_break_off(cluster: Cluster, metrics: MetricsApi, web: str) -> None:
    metrics.use(cpu=1, memory=MIB, namespace=web)
    pod_metrics(cluster, web, expected=2)
    metrics.delay(0.3, count=1)
    started = time.monotonic()
    pod_metrics(cluster, web, expected=2)
    assert time.monotonic() - started >= 0.3
    metrics.cut()
    with pytest.raises((ApiError, OSError, ValueError)):
        cluster.api.request("GET", f"/apis/metrics.k8s.io/v1beta1/namespaces/{web}/pods")
    metrics.heal()
    pod_metrics(cluster, web, expected=2)


def test_the_clock_never_goes_beyond_the_real_time() -> None:
    now = time.time()
    assert Clock(start=now - 10, speed=1000, since=now - 1).now() <= time.time()
    assert Clock(start=now - 100, speed=10, since=now - 1).now() == pytest.approx(now - 90, abs=2)


def test_the_latest_rule_for_a_container_counts() -> None:
    pod = Pod("ns", "web-x-1", {}, "web", "node", ("app", "side"))
    usage = Usage(
        [
            Rule(points=[(0, 1, 1)], workload="web"),
            Rule(points=[(0, 2, 2)], container="side"),
            Rule(points=[(0, 3, 3)], namespace="elsewhere"),
        ]
    )
    assert usage.of(pod, 0) == [("app", 1, 1), ("side", 2, 2)]
