"""Checkpoints among others that read, write and delete them."""

from __future__ import annotations

import time
from datetime import UTC, datetime

import pytest

from tests.cluster.recommending import CHECKPOINT, VPA, Shop
from tests.testbed.api import Json
from tests.testbed.cluster import Cluster
from tests.testbed.metrics import MetricsApi

LONG_AGO = "2026-01-01T00:00:00Z"


@pytest.fixture
def shop(cluster: Cluster, metrics: MetricsApi, namespace: str) -> Shop:
    """A namespace whose workloads all use half a core."""
    made = Shop(cluster, namespace)
    made.use("*", cpu=0.5, memory=400)
    return made


def checkpoint(vpa: str, container: str, *, name: str = "", newest: str = "", count: int = 10) -> Json:
    """A checkpoint as some other recommender may have written it."""
    newest = newest or datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    histogram = {"referenceTimestamp": newest, "bucketWeights": {"30": 10000}, "totalWeight": 3.0}
    return {
        "apiVersion": "autoscaling.k8s.io/v1",
        "kind": CHECKPOINT,
        "metadata": {"name": name or f"{vpa}-{container}"},
        "spec": {"vpaObjectName": vpa, "containerName": container},
        "status": {
            "version": "v3",
            "lastUpdateTime": newest,
            "firstSampleStart": newest,
            "lastSampleStart": newest,
            "totalSamplesCount": count,
            "cpuHistogram": histogram,
            "memoryHistogram": histogram,
        },
    }


def test_a_checkpoint_is_never_overwritten_by_one_that_knows_less(shop: Shop) -> None:
    shop.workload("web")
    shop.vpa("web")
    with shop.recommender() as running:
        shop.wait("usage", lambda: shop.has_cpu("web", "587m"), running.process)
        shop.kill_all("web")
        shop.wait("our checkpoint", lambda: shop.saved("web", "web"), running.process)
        running.wait_for_ticks(2)
        richer = checkpoint("web", "web", count=1_000_000)
        shop.api.patch(CHECKPOINT, "web-web", shop.namespace, body={"status": richer["status"]})
        shop.kill_all("web")
        kept = 'vpa_recommender_checkpoint_writes_total{result="kept"}'
        shop.wait("it to be kept", lambda: running.figures().get(kept), running.process)
        assert running.process.stop() == 0
    assert shop.checkpoint("web", "web")["totalSamplesCount"] == 1_000_000


def test_checkpoints_that_nobody_needs_are_deleted_and_no_others(shop: Shop) -> None:
    shop.workload("web")
    shop.vpa("web")
    shop.vpa("gone", target="web")
    shop.vpa("theirs", target="web", recommenders=[{"name": "x"}])
    for body in (
        checkpoint("web", "web"),
        checkpoint("web", "renamed"),
        checkpoint("web", "forgotten", newest=LONG_AGO),
        checkpoint("gone", "web"),
        checkpoint("theirs", "other"),
    ):
        shop.api.create(body, shop.namespace)
    with shop.recommender("--checkpoints-gc-interval=2s") as running:
        shop.wait("usage", lambda: shop.cpu("web"), running.process)
        shop.api.delete(VPA, "gone", shop.namespace)
        expected = {"web-web", "web-renamed", "theirs-other"}

        def left() -> set[str]:
            return {one["metadata"]["name"] for one in shop.api.list(CHECKPOINT, shop.namespace)}

        shop.wait("the deletions", lambda: left() == expected, running.process)
        running.wait_for_ticks(6)
        assert left() == expected
        assert "A tick failed" not in running.process.logs()


def test_two_containers_whose_checkpoints_would_have_one_name_are_both_saved(shop: Shop) -> None:
    shop.workload("one", "b-c")
    shop.workload("two", "c")
    shop.vpa("a", target="one")
    shop.vpa("a-b", target="two")
    with shop.recommender() as running:
        shop.wait("usage", lambda: shop.cpu("a") == shop.cpu("a-b") == "587m", running.process)
        assert running.process.stop() == 0
        saved = shop.api.list(CHECKPOINT, shop.namespace)
        assert {(one["spec"]["vpaObjectName"], one["spec"]["containerName"]) for one in saved} == {
            ("a", "b-c"),
            ("a-b", "c"),
        }
        shop.cluster.metrics.fail(503)
        running.process.start()
        running.wait_for_ticks(2)
        assert shop.cpu("a") == shop.cpu("a-b") == "587m", "and both are found again"


def test_within_ten_seconds_of_sigterm_everything_is_saved_and_the_process_gone(shop: Shop) -> None:
    names = [f"w{number}" for number in range(5)]
    for name in names:
        shop.workload(name, "a", "b", "c")
        shop.vpa(name)
    with shop.recommender("--kube-api-qps=1", "--kube-api-burst=20", interval="1s") as running:
        for name in names:
            shop.wait_for_target(name, "a", "b", "c")
        running.wait_for_ticks(1)
        started = time.monotonic()
        assert running.process.stop() == 0
        assert time.monotonic() - started < 10
    saved = shop.api.list(CHECKPOINT, shop.namespace)
    assert len(saved) == 15, "other clients' limits do not hold at the end"
    assert all(one["status"].get("totalSamplesCount") for one in saved)
