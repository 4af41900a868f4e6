"""Our recommender beside upstream's 1.8.1: same API server, same objects, same usage, one after the other.

    python -m benchmarks.recommender [--vpas 1000] [--ticks 3]

Makes a cluster with so many Deployments of five pods of two containers, and a VPA with three days of history
for each; then runs each recommender at its default flags and prints what it took.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import psutil

from tests.cluster import roles
from tests.testbed import builds, ports
from tests.testbed.cluster import Cluster
from tests.testbed.nodes import FakeNodes
from tests.testbed.processes import Process

Json = dict[str, Any]

PODS = 5
CONTAINERS = ("web", "log")
NAMESPACES = 10
MINUTE = 60.0
GROUP = "autoscaling.k8s.io/v1"
HISTORY_DAYS = 3


@dataclass
class Result:
    """What one recommender took."""

    name: str
    first: float
    """Seconds from its start until every VPA had its recommendation."""
    loop: float
    """Seconds of one loop, once all is known."""
    cpu: float
    """Seconds of CPU in one loop."""
    memory: float
    """Most memory, MiB."""
    statuses: float
    checkpoints: float
    """Writes a minute."""
    end: float
    """Seconds from SIGTERM to the end."""
    saved: float
    """Checkpoints that were written in that time."""


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--vpas", type=int, default=1000)
    parser.add_argument("--ticks", type=int, default=3, help="loops that are measured, after the first")
    parser.add_argument("--only", choices=("ours", "upstream"))
    options = parser.parse_args()
    nodes = FakeNodes(count=max(3, options.vpas * PODS // 400 + 1), cpu="128", memory="512Gi")
    with Cluster(nodes=[nodes]) as cluster:
        with _told(f"{options.vpas} Deployments with {options.vpas * PODS} pods"):
            _populate(cluster, options.vpas)
        results = []
        for name, command in _commands(cluster).items():
            if options.only in (None, name):
                _reset(cluster, options.vpas)
                results.append(_measure(cluster, name, command, options.vpas, options.ticks))
    _report(results, options.vpas)


def _commands(cluster: Cluster) -> dict[str, list[Any]]:
    account = cluster.service_account("kube-system", "vpa-recommender")
    roles.ours("recommender").grant_to(account)
    shared = [f"--kubeconfig={account.kubeconfig}"]
    return {
        "ours": [sys.executable, "-m", "recommender", "--v=0", *shared],
        "upstream": [builds.binary("upstream-recommender"), "--leader-elect=false", "--v=0", *shared],
    }


# Objects


def _populate(cluster: Cluster, vpas: int) -> None:
    for number in range(NAMESPACES):
        cluster.create_namespace(f"bench-{number}")
    with ThreadPoolExecutor(8) as threads:
        list(
            threads.map(
                lambda number: cluster.api.create(_deployment(number), _namespace(number)), range(vpas)
            )
        )
    while (running := _running_pods(cluster)) < vpas * PODS:
        print(f"  {running} of {vpas * PODS} pods run", file=sys.stderr, flush=True)
        time.sleep(10)
    rules = [
        {
            "namespace": f"bench-{number}",
            "container": container,
            "points": [
                (60.0 * minute, base * (1 + number / 10) * (1 + 0.3 * ((minute * 7919) % 13) / 13), size)
                for minute in range(30)
            ],
        }
        for number in range(NAMESPACES)
        for container, base, size in (("web", 0.3, 4e8 + 3e7 * number), ("log", 0.02, 6e7))
    ]
    cluster.metrics.rules(rules)
    cluster.metrics.clock(resolution=15)


def _running_pods(cluster: Cluster) -> int:
    accept = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
    path = "/api/v1/pods?fieldSelector=status.phase%3DRunning"
    return len(json.loads(cluster.api.raw("GET", path, headers={"Accept": accept}))["items"])


def _namespace(number: int) -> str:
    return f"bench-{number % NAMESPACES}"


def _deployment(number: int) -> Json:
    name = f"w{number}"
    labels = {"app": name}
    resources = {"requests": {"cpu": "100m", "memory": "200Mi"}}
    containers = [{"name": one, "image": "x:1", "resources": resources} for one in CONTAINERS]
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name},
        "spec": {
            "replicas": PODS,
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": {"containers": containers}},
        },
    }


def _reset(cluster: Cluster, vpas: int) -> None:
    """VPAs without status, and checkpoints with three days of history."""
    with _told("VPAs and their checkpoints"), ThreadPoolExecutor(8) as threads:
        for number in range(NAMESPACES):
            for kind in ("VerticalPodAutoscaler", "VerticalPodAutoscalerCheckpoint"):
                cluster.api.delete(kind, None, f"bench-{number}")
        list(threads.map(lambda number: _autoscaler(cluster, number), range(vpas)))


def _autoscaler(cluster: Cluster, number: int) -> None:
    name, namespace = f"w{number}", _namespace(number)
    target = {"apiVersion": "apps/v1", "kind": "Deployment", "name": name}
    body: Json = {
        "apiVersion": GROUP,
        "kind": "VerticalPodAutoscaler",
        "metadata": {"name": name},
        "spec": {"targetRef": target, "updatePolicy": {"updateMode": "Off"}},
    }
    cluster.api.create(body, namespace)
    now = time.time()
    moments = [
        datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        for at in (now, now - HISTORY_DAYS * 86400, now - now % 86400)
    ]
    for place, container in enumerate(CONTAINERS):
        peak = 17 + (number + place) % 40
        weights = {str(peak + step): 10000 - 900 * step for step in range(9)}
        histogram = {"referenceTimestamp": moments[2], "bucketWeights": weights, "totalWeight": 900.0}
        checkpoint = {
            "apiVersion": GROUP,
            "kind": "VerticalPodAutoscalerCheckpoint",
            "metadata": {"name": f"{name}-{container}"},
            "spec": {"vpaObjectName": name, "containerName": container},
            "status": {
                "version": "v3",
                "lastUpdateTime": moments[0],
                "firstSampleStart": moments[1],
                "lastSampleStart": moments[0],
                "totalSamplesCount": HISTORY_DAYS * 1440 * PODS,
                "cpuHistogram": histogram,
                "memoryHistogram": histogram | {"totalWeight": 12.0},
            },
        }
        cluster.api.create(checkpoint, namespace)


# Measuring


def _measure(cluster: Cluster, name: str, command: list[Any], vpas: int, ticks: int) -> Result:
    port = ports.free()
    process = cluster.spawn(f"bench-{name}", [*command, f"--address=127.0.0.1:{port}"])
    started = time.monotonic()
    with process, _told(f"{name}: the first recommendation of every VPA"):
        while _without_recommendation(cluster):
            process.check()
            time.sleep(1.0)
        first = time.monotonic() - started
        with _told(f"{name}: {ticks} loops after that"):
            return _steady(cluster, process, port, name, first, ticks)


def _steady(cluster: Cluster, process: Process, port: int, name: str, first: float, ticks: int) -> Result:
    watched = psutil.Process(process.pid)
    _wait_for_loops(port, _loops(port)[0] + 1)
    loops, seconds = _loops(port)
    cpu, writes, since = _cpu(watched), _writes(cluster), time.monotonic()
    _wait_for_loops(port, loops + ticks)
    later, more = _loops(port)
    minutes = (time.monotonic() - since) / MINUTE
    spent, wrote, memory = _cpu(watched) - cpu, _writes(cluster), _peak(process.pid)
    before, stopped = _writes(cluster)[1], time.monotonic()
    process.stop()
    end = time.monotonic() - stopped
    return Result(
        name=name,
        first=first,
        loop=(more - seconds) / (later - loops),
        cpu=spent / (later - loops),
        memory=memory,
        statuses=(wrote[0] - writes[0]) / minutes,
        checkpoints=(wrote[1] - writes[1]) / minutes,
        end=end,
        saved=_writes(cluster)[1] - before,
    )


def _without_recommendation(cluster: Cluster) -> int:
    items = cluster.api.request("GET", f"/apis/{GROUP}/verticalpodautoscalers")["items"]
    return sum(1 for item in items if not item.get("status", {}).get("recommendation"))


def _cpu(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def _peak(pid: int) -> float:
    with open(f"/proc/{pid}/status", encoding="ascii") as file:
        line = next(line for line in file if line.startswith("VmHWM"))
    return int(line.split()[1]) / 1024


def _metrics(port: int) -> dict[str, float]:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as answer:
        lines = answer.read().decode().splitlines()
    return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines if line[:1] != "#"}


def _loops(port: int) -> tuple[float, float]:
    """How many loops were made, and the seconds they took together."""
    with contextlib.suppress(OSError):
        found = _metrics(port)
        series = 'vpa_recommender_execution_latency_seconds_{}{{step="total"}}'
        return found.get(series.format("count"), 0.0), found.get(series.format("sum"), 0.0)
    return 0.0, 0.0


def _wait_for_loops(port: int, count: float) -> None:
    while _loops(port)[0] < count:
        time.sleep(5.0)  # each look costs the one that is measured


def _writes(cluster: Cluster) -> tuple[float, float]:
    """Statuses and checkpoints that were written, as the API server counts them."""
    text = cluster.api.raw("GET", "/metrics", headers={}).decode()
    found = {"verticalpodautoscalers": 0.0, "verticalpodautoscalercheckpoints": 0.0}
    for line in text.splitlines():
        if line.startswith("apiserver_request_total{") and 'verb="GET"' not in line:
            for resource in found:
                if f'resource="{resource}"' in line and ('verb="PATCH"' in line or 'verb="POST"' in line):
                    found[resource] += float(line.rpartition(" ")[2])
    return found["verticalpodautoscalers"], found["verticalpodautoscalercheckpoints"]


# Reporting


@contextlib.contextmanager
def _told(what: str) -> Iterator[None]:
    started = time.monotonic()
    print(f"{what} …", file=sys.stderr, flush=True)
    yield
    print(f"{what}: {time.monotonic() - started:.0f} s", file=sys.stderr, flush=True)


def _report(results: list[Result], vpas: int) -> None:
    print(f"{vpas} VPAs, {vpas * PODS} pods, {vpas * PODS * len(CONTAINERS)} containers, default flags")
    rows = [
        ("start → last first recommendation, s", "first"),
        ("one loop, s", "loop"),
        ("CPU in one loop, s", "cpu"),
        ("peak memory, MiB", "memory"),
        ("status writes a minute", "statuses"),
        ("checkpoint writes a minute", "checkpoints"),
        ("SIGTERM → end, s", "end"),
        ("checkpoints written in that time", "saved"),
    ]
    width = max(len(title) for title, _ in rows)
    print(" " * width, *(f"{result.name:>10}" for result in results), "ratio" if len(results) == 2 else "")
    for title, field in rows:
        values = [getattr(result, field) for result in results]
        ratio = f"{values[0] / values[1]:9.3f}" if len(values) == 2 and values[1] else ""
        print(f"{title:<{width}}", *(f"{value:>10.2f}" for value in values), ratio)
    print(json.dumps([vars(result) for result in results]))


if __name__ == "__main__":
    main()
