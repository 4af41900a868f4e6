"""A load of history from a real Prometheus: wall time, CPU, memory, bytes, queries, pauses of the event loop.

5,000 pods × 2 containers, eight days. The first run makes the data (minutes) and keeps it in the testbed's
cache; usage is from the public traces, memory is made up. ``--through-trickster`` puts a Trickster in between
and loads twice. The load runs in a process of its own; the points go into the engine's banks as in the
recommender.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import resource
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from tests.testbed import builds, folders, ports, traces
from tests.testbed.cluster import Cluster
from tests.testbed.processes import attempts
from tests.testbed.prometheus import Prometheus, Series, Trickster, backfill
from vpa.metrics.history.batches import COMPLETE, HistoryBatch
from vpa.metrics.history.grids import history_grid
from vpa.metrics.history.loading import HistoryLoader, Past
from vpa.metrics.history.planning import Target
from vpa.metrics.prometheus.access import Access
from vpa.metrics.prometheus.client import Client
from vpa.metrics.prometheus.names import Names
from vpa.rules import preset
from vpa.usage import Usage

DAY = 86_400
DAYS = 8
REPLICAS = 5
NAMESPACES = 50
CONTAINERS = ("app", "proxy")

PART = 1 << 14
"""Samples that are fed at a time."""

END = 1_796_000_400.0
"""The present of the made-up cluster: fixed, so that its data can be kept."""


def pods(count: int) -> Iterator[tuple[str, str, str]]:
    """(namespace, Deployment, pod) of *count* pods, five a Deployment."""
    for number in range(count):
        deployment = f"app-{number // REPLICAS}"
        namespace = f"team-{number // REPLICAS % NAMESPACES}"
        yield namespace, deployment, f"{deployment}-5f6b7c8d9-{number % REPLICAS}{number % 10}xyz"


def series(count: int, scrape: int) -> Iterator[Series]:
    """CPU counters, then memory of all containers."""
    shapes = [
        traces.resampled(name, end=END, length=DAYS * DAY, step=scrape, peak=1.0) for name in traces.ALL
    ]
    memories = [traces.memory(cores, floor=1e8, seed=n) / 1e8 for n, (_, cores) in enumerate(shapes)]
    random = np.random.default_rng(1)
    levels = random.lognormal(np.log(0.2), 1.0, count)
    sizes = random.lognormal(np.log(2e8), 0.8, count)
    for resource_ in ("cpu", "memory"):
        for number, (namespace, _, pod) in enumerate(pods(count)):
            times, cores = shapes[number % len(shapes)]
            for place, container in enumerate(CONTAINERS):
                labels = {"job": "kubelet", "namespace": namespace, "pod": pod, "container": container}
                share = (1.0, 0.1)[place]
                if resource_ == "cpu":
                    counter = np.round(np.cumsum(cores * levels[number] * share) * scrape, 3)
                    yield Series("container_cpu_usage_seconds_total", labels, times, counter)
                else:
                    size = memories[number % len(shapes)] * sizes[number] * share
                    pages = np.round(size / 4096) * 4096
                    yield Series("container_memory_working_set_bytes", labels, times, pages)


def data(count: int, scrape: int) -> Path:
    """The folder with the blocks, made now if need be."""
    folder = folders.cache() / f"history-{count}-{scrape}"
    if not folder.exists():
        print(f"making {count} pods of {DAYS} days, a sample each {scrape} s", file=sys.stderr)
        unfinished = folder.with_name(f"{folder.name}-unfinished")
        shutil.rmtree(unfinished, ignore_errors=True)
        backfill(unfinished, series(count, scrape))
        unfinished.rename(folder)
    return folder


async def _beat(pauses: list[float], busy: list[float]) -> None:
    """How late the loop comes back, again and again, and how much of that it computed itself."""
    while True:
        before, computed = time.perf_counter(), time.thread_time()
        await asyncio.sleep(0.001)
        pauses.append(time.perf_counter() - before - 0.001)
        busy.append(time.thread_time() - computed)


async def load(url: str, count: int, step: int) -> dict[str, Any]:
    """One load into banks."""
    known = {(namespace, pod): ("Deployment", deployment) for namespace, deployment, pod in pods(count)}
    deployments = sorted({(namespace, deployment) for namespace, deployment, _ in pods(count)})
    targets = [
        Target(namespace=namespace, kind="Deployment", name=name, series=REPLICAS * len(CONTAINERS))
        for namespace, name in deployments
    ]
    past = Past(live=known, started=dict.fromkeys(known, END - DAYS * DAY))
    usage = Usage(capacity=len(targets) * len(CONTAINERS))
    rows = {
        (*deployment, container): int(row)
        for (deployment, container), row in zip(
            ((one, container) for one in deployments for container in CONTAINERS),
            usage.new_rows(len(deployments) * len(CONTAINERS), 0),
            strict=True,
        )
    }
    pauses: list[float] = []
    busy: list[float] = []
    first = 0.0
    points = 0
    start = time.perf_counter()

    async def deliver(batch: HistoryBatch) -> None:
        nonlocal first, points
        first = first or time.perf_counter() - start
        if batch.stage != COMPLETE:
            return
        points += len(batch.cpu.times) + len(batch.memory.times)
        await _feed(usage, rows, batch)

    async with Client(Access(addresses=(url,))) as client:
        loader = HistoryLoader(client=client, names=Names(), rules=preset("safe"))
        beat = asyncio.create_task(_beat(pauses, busy))
        await asyncio.sleep(0.05)
        process = psutil.Process()
        idle = process.memory_info().rss
        cpu = time.process_time()
        start = time.perf_counter()
        grid = history_grid(now=END, length=DAYS * DAY, step=step, lag=0)
        progress = await loader.load(targets, grid, past=past, deliver=deliver)
        wall = time.perf_counter() - start
        beat.cancel()
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        return {
            "wall_s": round(wall, 2),
            "first_numbers_s": round(first, 2),
            "cpu_s": round(time.process_time() - cpu, 2),
            "peak_over_idle_mib": round((peak - idle) / 2**20),
            "idle_mib": round(idle / 2**20),
            "longest_pause_ms": round(max(pauses) * 1000),
            "of_that_computing_ms": round(max(busy) * 1000),
            "requests": client.statistics.requests,
            "megabytes": round(client.statistics.bytes / 1e6, 1),
            "points": points,
            "samples": int(usage.sample_count.sum()),
            "trickster": dict(client.statistics.trickster),
            "problems": progress.problems,
        }


async def _feed(usage: Usage, rows: dict[tuple[str, str, str], int], batch: HistoryBatch) -> None:
    """The points into the banks, some thousands at a time, so that neither memory nor the loop notices."""
    numbers = [rows[one.namespace, one.controller, one.name] for one in batch.containers]
    instances = usage.new_instances(np.array(numbers, np.int64))
    peaks = batch.memory.thinned(usage.interval[numbers])
    for resource_, points in (("cpu", batch.cpu), ("memory", peaks)):
        for start in range(0, len(points.times), PART):
            part = slice(start, start + PART)
            samples = (instances[points.index[part]], points.times[part], points.values[part])
            if resource_ == "cpu":
                count = len(samples[0])
                weights, counts = np.full(count, batch.weight), np.full(count, batch.count)
                usage.add_cpu(*samples, weights=weights, counts=counts)
            else:
                usage.add_memory(*samples)
            await asyncio.sleep(0)
    usage.free_instances(instances)


def _in_a_process(url: str, count: int, step: int) -> dict[str, Any]:
    """The load in a fresh process."""
    command = [sys.executable, "-m", "benchmarks.history", "--url", url, f"--pods={count}", f"--step={step}"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def upstream(url: str) -> dict[str, Any]:
    """Upstream's recommender on the same Prometheus, from its start to the end of its first tick.

    It needs a flag for each name that its defaults get wrong, and a range for the pod labels.
    """
    address = f"127.0.0.1:{ports.free()}"
    with Cluster(nodes=()) as cluster:
        account = cluster.service_account("kube-system", "vpa-recommender")
        account.grant([{"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}])
        command = [
            str(builds.binary("upstream-recommender")),
            f"--kubeconfig={account.kubeconfig}",
            f"--address={address}",
            "--recommender-interval=1s",
            "--storage=prometheus",
            f"--prometheus-address={url}",
            "--prometheus-cadvisor-job-name=kubelet",
            "--container-pod-name-label=pod",
            "--container-name-label=container",
            "--metric-for-pod-labels=kube_pod_labels[8d]",
            "--pod-label-prefix=label_",
            "--pod-namespace-label=namespace",
            "--pod-name-label=pod",
        ]
        start = time.perf_counter()
        with cluster.spawn("upstream-recommender", command) as service:
            for _ in attempts(600, "upstream's first tick", service):
                if 'execution_latency_seconds_count{step="total"}' in _metrics(address):
                    break
            wall = time.perf_counter() - start - 1
            process = psutil.Process(service.pid)
            used = process.cpu_times()
            status = Path(f"/proc/{service.pid}/status").read_text(encoding="ascii")
            peak = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM"))
            failed = "Cannot get cluster history" in service.logs()
    return {
        "run": "upstream 1.8",
        "wall_s": round(wall, 2),
        "cpu_s": round(used.user + used.system, 2),
        "peak_mib": round(peak / 1024),
        "failed": failed,
    }


def _metrics(address: str) -> str:
    """What a service says of itself; nothing as long as it does not listen."""
    try:
        with urllib.request.urlopen(f"http://{address}/metrics", timeout=30) as answer:
            text: str = answer.read().decode()
            return text
    except OSError:
        return ""


def main() -> None:
    """Make the data, start the servers, load, print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pods", type=int, default=5000)
    parser.add_argument("--step", type=int, default=3600, help="resolution of history in seconds")
    parser.add_argument("--scrape", type=int, default=600, help="distance of stored samples in seconds")
    parser.add_argument("--through-trickster", action="store_true")
    parser.add_argument(
        "--beside-upstream", action="store_true", help="its recommender too (builds a cluster)"
    )
    parser.add_argument("--url", help="load from here and print; no servers are started")
    options = parser.parse_args()
    if options.url:
        print(json.dumps(asyncio.run(load(options.url, options.pods, options.step))))
        return
    blocks = data(options.pods, options.scrape)
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        (folder / "data").symlink_to(blocks)
        prometheus = stack.enter_context(Prometheus(folder))
        url = prometheus.url
        if options.beside_upstream:
            print(json.dumps(upstream(url)), flush=True)
        runs = ["directly", "again"]
        if options.through_trickster:
            backend = {"max_object_size_bytes": 64 << 20}
            url = stack.enter_context(Trickster(folder / "trickster", origin=url, backend=backend)).url
            runs = ["cold cache", "warm cache"]
        for name in runs:
            print(json.dumps({"run": name, **_in_a_process(url, options.pods, options.step)}), flush=True)


if __name__ == "__main__":
    main()
