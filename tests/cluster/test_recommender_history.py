"""The recommender reads its past from a real Prometheus, on a real cluster."""

from __future__ import annotations

import contextlib
import datetime
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.cluster import roles
from tests.cluster.recommending import CHECKPOINT, Running, Shop, dumped
from tests.testbed import folders, ports, traces
from tests.testbed.cluster import Cluster
from tests.testbed.metrics import MetricsApi
from tests.testbed.prometheus import Prometheus, Series, Trickster, backfill
from tests.testbed.prometheus_proxy import Asked, PrometheusProxy
from vpa import times
from vpa.quantities import Quantity

pytestmark = [pytest.mark.cluster, pytest.mark.prometheus]

ROOT = folders.HERE.parent.parent
DAYS = 2
SCRAPE = 60
FLAGS = (f"--history-length={DAYS}d", "--history-resolution=1m")
"""A point of a minute counts as a sample does, so that a file of usage leads to the same numbers."""

PODS = ("db-0", "later-0", "front-0", "front-1")
KINDS = ("verticalpodautoscaler", "statefulset", "pod")


@pytest.fixture
def shop(cluster: Cluster, metrics: MetricsApi, namespace: str) -> Shop:
    return Shop(cluster, namespace)


@pytest.fixture
def past(shop: Shop, tmp_path: Path) -> Iterator[Prometheus]:
    """A Prometheus, not started yet, that knows the past of the StatefulSets db, later and front."""
    now = time.time() // SCRAPE * SCRAPE + 7
    series = [*_cpu(shop.namespace, now), *_memory(shop.namespace, now)]
    backfill(tmp_path / "prometheus" / "data", series)
    made = Prometheus(tmp_path / "prometheus")
    yield made
    made.kill()


def _usage(pod: str, now: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    seconds, cores = traces.resampled("crane_input1", end=now, length=DAYS * 86400, step=SCRAPE, peak=1.3)
    return seconds, cores, traces.memory(cores, floor=90e6, seed=len(pod))


def _labels(namespace: str, pod: str) -> dict[str, str]:
    return {"job": "kubelet", "namespace": namespace, "pod": pod, "container": pod.rpartition("-")[0]}


def _cpu(namespace: str, now: float) -> Iterator[Series]:
    for pod in PODS:
        seconds, cores, _ = _usage(pod, now)
        counter = np.cumsum(cores) * SCRAPE
        yield Series("container_cpu_usage_seconds_total", _labels(namespace, pod), seconds, counter)


def _memory(namespace: str, now: float) -> Iterator[Series]:
    for pod in PODS:
        seconds, _, memory = _usage(pod, now)
        yield Series("container_memory_working_set_bytes", _labels(namespace, pod), seconds, memory)


def loaded(shop: Shop, vpa: str) -> str:
    """What the event says of the VPA's history; "" while there is none."""
    return next((message for reason, message in shop.events(vpa) if reason == "HistoryLoaded"), "")


def by_file(shop: Shop, past: Prometheus, folder: Path, last: int) -> dict[str, Any]:
    """VPA → its containers' recommendations from the same samples by `vpa recommend --usage`.

    *last*: nanoseconds of the newest sample.
    """
    objects, usage = dumped(shop, folder, *KINDS), folder / "usage.jsonl"
    where = [f"--prometheus-address={past.url}", f"--now={moment_after(last)}", *FLAGS]
    usage.write_text(run("history", "-f", str(objects), "-o", "usage", *where))
    result = json.loads(run("recommend", "-f", str(objects), "--usage", str(usage), "-o", "json"))
    return {one["metadata"]["name"]: one["status"]["recommendation"] for one in result["items"]}


def moment_after(last: int) -> str:
    """When *last* (nanoseconds) is the newest point that history has."""
    return f"{datetime.datetime.fromtimestamp(last / times.SECOND + 121, datetime.UTC):%Y-%m-%dT%H:%M:%SZ}"


def targets(recommendation: dict[str, Any]) -> dict[str, Any]:
    return {one["containerName"]: one["target"] for one in recommendation["containerRecommendations"]}


def run(*args: str) -> str:
    command = [sys.executable, "-m", "vpa.cli", *args]
    return subprocess.run(command, cwd=ROOT, check=True, text=True, stdout=subprocess.PIPE, timeout=60).stdout


def test_a_prometheus_that_is_down_at_the_start_is_read_when_it_comes_and_nothing_counts_twice(
    shop: Shop, past: Prometheus, tmp_path: Path
) -> None:
    shop.workload("db", kind="StatefulSet")
    shop.workload("later", kind="StatefulSet")
    shop.vpa("db", kind="StatefulSet")
    flags = ("--storage=prometheus", f"--prometheus-address={past.url}", *FLAGS)

    with shop.recommender(*flags) as running:
        shop.wait("the condition", lambda: shop.has_condition("db", "FetchingHistory"), running.process)
        assert not shop.targets("db")
        shop.wait("its cause", lambda: running.logged("Reading history: "), running.process)
        assert running.logged(f"at {past.url}: Cannot connect to host") == 1, "said when it begins"
        past.start()
        past.wait_until_ready()
        message = shop.wait("history", lambda: loaded(shop, "db"), running.process)
        assert "of 1 pods (1 present)" in message
        shop.wait("its end", lambda: not shop.has_condition("db", "FetchingHistory"), running.process)
        shop.wait_for_target("db", "db", seconds=10)
        assert not shop.has_condition("db", "LowConfidence")

        shop.vpa("later", kind="StatefulSet")
        shop.wait("its history", lambda: loaded(shop, "later"), running.process)
        shop.wait_for_target("later", "later", seconds=10)
        asked = running.figures()
        answered = 'vpa_recommender_prometheus_client_api_requests_count_total{code="200",method="post"}'
        assert asked.get(answered, asked.get(answered.replace("_total", ""), 0)) >= 4
        running.process.stop()  # saves checkpoints
    before = shop.checkpoint("db", "db")
    expected = by_file(shop, past, tmp_path, times.parse(before["lastSampleStart"]))
    assert shop.status("db")["recommendation"] == expected["db"]

    end = moment_after(times.parse(before["lastSampleStart"]))
    where = ("-n", shop.namespace, "--kubeconfig", str(shop.cluster.kubeconfig), f"--now={end}", *FLAGS)
    shown = run("recommend", "--prometheus", past.url, *where, "-o", "json")
    live = {one["metadata"]["name"]: one["status"]["recommendation"] for one in json.loads(shown)["items"]}
    assert targets(live["db"]) == targets(expected["db"])  # bounds tell that checkpoints are rounded

    known = len([reason for reason, _ in shop.events("db") if reason == "HistoryLoaded"])
    assert known == 1
    with shop.recommender(*flags, name="again") as running:
        running.wait_for_ticks(1)
        shop.wait(
            "history again",
            lambda: (
                not shop.has_condition("db", "FetchingHistory")
                and "History is read" in running.process.logs()
            ),
            running.process,
        )
        running.process.stop()
    after = shop.checkpoint("db", "db")
    more = times.parse(after["lastSampleStart"]) - times.parse(before["lastSampleStart"])
    counted = after["totalSamplesCount"] - before["totalSamplesCount"]
    assert counted == more // (SCRAPE * times.SECOND)
    assert after["firstSampleStart"] == before["firstSampleStart"]


def test_a_trickster_that_is_restarted_in_the_middle_of_a_load_costs_nothing(
    shop: Shop, past: Prometheus, tmp_path: Path
) -> None:
    shop.workload("db", kind="StatefulSet")
    shop.vpa("db", kind="StatefulSet")
    past.start()
    past.wait_until_ready()
    asked = 0

    def kill_at_the_second(one: Asked) -> None:
        nonlocal asked
        asked += one.path.endswith("query_range")
        if asked == 2 and trickster.running:
            trickster.kill()

    with (
        PrometheusProxy(past.url, before=kill_at_the_second) as proxy,
        Trickster(tmp_path / "trickster", origin=proxy.url) as trickster,
    ):
        address = f"--prometheus-address={trickster.url}"
        one_by_one = "--prometheus-query-concurrency=1"
        with shop.recommender("--storage=prometheus", address, one_by_one, *FLAGS) as running:
            said = f"at {trickster.url}: "
            shop.wait("its message", lambda: running.logged(said) > 0, running.process)
            assert not trickster.running
            assert running.logged("Reading history: ") == 1
            shop.wait("the condition", lambda: shop.has_condition("db", "FetchingHistory"), running.process)
            assert not loaded(shop, "db")
            trickster.start()
            trickster.wait_until_ready()
            shop.wait("history", lambda: loaded(shop, "db"), running.process)
            shop.wait("its end", lambda: not shop.has_condition("db", "FetchingHistory"), running.process)
            shop.wait_for_target("db", "db", seconds=10)
            assert not shop.has_condition("db", "LowConfidence")
            assert running.logged("A tick failed") == 0
            assert running.process.stop() == 0
    last = times.parse(shop.checkpoint("db", "db")["lastSampleStart"])
    assert shop.status("db")["recommendation"] == by_file(shop, past, tmp_path, last)["db"]


def test_while_history_is_awaited_nothing_is_evicted_and_checkpoints_are_written(
    shop: Shop, past: Prometheus
) -> None:
    """Field case 40, with an updater that would evict at once what is recommended meanwhile."""
    shop.workload("front", kind="StatefulSet", replicas=2)
    shop.vpa("front", kind="StatefulSet", updatePolicy={"updateMode": "Recreate"})
    shop.use("front", cpu=3.0, memory=2000)
    flags = ("--storage=prometheus", f"--prometheus-address={past.url}", *FLAGS)
    pods = uids(shop)
    with shop.recommender() as running:  # of before, without history
        shop.wait("a large target", lambda: cores(shop.cpu("front")) > 3, running.process)
    shop.api.delete(CHECKPOINT, "front-front", shop.namespace)

    with shop.recommender(*flags) as running:
        shop.wait("the condition", lambda: shop.has_condition("front", "FetchingHistory"), running.process)
        with updater(shop) as acting:
            held = 'vpa_updater_pods{action="none",reason="HistoryLoading"}'
            shop.wait("passes", lambda: acting.answers() and acting.figures().get(held) == 2, acting.process)
            running.wait_for_ticks(4)
            assert running.process.stop() == 0
            assert shop.checkpoint("front", "front")["totalSamplesCount"] > 0
            running.process.start()
            shop.wait("its second try", lambda: running.logged("Reading history: ") == 2, running.process)
            made = passes(acting)
            shop.wait("more passes", lambda: passes(acting) >= made + 3, acting.process)
            assert shop.has_condition("front", "FetchingHistory")
            assert acting.figures()[held] == 2
            assert uids(shop) == pods

            past.start()
            past.wait_until_ready()
            shop.wait("history", lambda: loaded(shop, "front"), running.process)
            shop.wait("an eviction", lambda: uids(shop) != pods, running.process, acting.process)
            assert not shop.has_condition("front", "FetchingHistory")


def cores(quantity: str) -> float:
    """A quantity of CPU; 0 where there is none."""
    return Quantity.parse(quantity or "0").milli() / 1000


def uids(shop: Shop) -> set[str]:
    """Which pods there are."""
    return {pod["metadata"]["uid"] for pod in shop.api.list("Pod", shop.namespace)}


def passes(acting: Running) -> float:
    """How many passes an updater has made."""
    return acting.figures()['vpa_updater_execution_latency_seconds_count{step="total"}']


@contextlib.contextmanager
def updater(shop: Shop) -> Iterator[Running]:
    """The updater of the shop's namespace, as if a webhook were at work there."""
    lease = {"holderIdentity": "test", "renewTime": "2100-01-01T00:00:00.000000Z", "leaseDurationSeconds": 60}
    about = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": "admission"}}
    shop.api.apply({**about, "spec": lease}, shop.namespace)
    account = shop.cluster.service_account("kube-system", "vpa-updater")
    roles.ours("updater").grant_to(account)
    port = ports.free()
    command = [
        *(sys.executable, "-m", "updater", f"--kubeconfig={account.kubeconfig}"),
        *(f"--address=127.0.0.1:{port}", "--updater-interval=1s"),
        f"--vpa-object-namespace={shop.namespace}",
        "--admission-controller-status-lease-name=admission",
        f"--admission-controller-status-lease-namespace={shop.namespace}",
    ]
    process = shop.cluster.spawn(f"updater-{shop.namespace}", command)
    with process:
        yield Running(process, port)
