"""What a copy of 10,000 pods costs: `python -m benchmarks.reflector [--pods N] [--generated]`.

A real API server holds the pods (two containers, probes, environment, a projected volume: some 7 KiB each).
A fresh process lists them, as lean records, looks away while another process changes every pod once, and then
takes in all these events at once. CPU is that of the process that keeps the copy: network, TLS and HTTP
included. With ``--generated`` the generated client lists the same pods, in a process of its own.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import resource
import subprocess
import sys
import time
from typing import Any, NamedTuple

import psutil

from tests.testbed.cluster import Cluster
from vpa.cluster import writes
from vpa.cluster.connection import Connection
from vpa.cluster.reflectors import Reflector, running
from vpa.cluster.resources import PODS
from vpa.objects.meta import PartialObject
from vpa.objects.pods import Pod

NAMESPACE = "pods"
MIB = 2**20
REFERENCE = """\
for comparison, measured on one quiet core of this kind of machine without network (µs and KiB for a pod):
  generated client, typed list      900–1,230 µs   110 KiB
  json.loads                              131 µs    30 KiB
  prototype, lean record                 14.4 µs   1.2 KiB
  generated client, typed watch       630–680 µs an event
  prototype, lean record, TLS           32–39 µs an event"""


class LeanContainer(NamedTuple):
    name: str
    cpu: int
    memory: int


class LeanPod(NamedTuple):
    """About what a recommender keeps of a pod."""

    uid: str
    phase: str
    owner: str
    labels: tuple[tuple[str, str], ...]
    containers: tuple[LeanContainer, ...]


UNKNOWN = LeanPod("", "", "", (), ())


def lean(pod: Pod) -> LeanPod:
    intern = sys.intern
    owners = pod.metadata.owner_references or ()
    containers = []
    for container in pod.spec.containers or ():
        requests = (container.resources and container.resources.requests) or {}
        cpu, memory = requests.get("cpu"), requests.get("memory")
        containers.append(
            LeanContainer(intern(container.name), cpu.milli() if cpu else 0, memory.value() if memory else 0)
        )
    return LeanPod(
        uid=pod.metadata.uid,
        phase=intern(pod.status.phase),
        owner=intern(owners[0].name) if owners else "",
        labels=tuple((intern(key), intern(value)) for key, value in (pod.metadata.labels or {}).items()),
        containers=tuple(containers),
    )


def pod(number: int) -> dict[str, Any]:
    probe = {"httpGet": {"path": "/healthz", "port": 8080}, "periodSeconds": 10, "failureThreshold": 3}
    container = {
        "image": "registry.example.com/team/application:v1.2.3",
        "args": ["--listen=:8080", "--log-level=info", "--config=/etc/application/config.yaml"],
        "env": [{"name": f"SETTING_{n}", "value": f"some value of setting {n}"} for n in range(12)],
        "resources": {"requests": {"cpu": "100m", "memory": "128Mi"}, "limits": {"memory": "256Mi"}},
        "livenessProbe": probe,
        "readinessProbe": probe,
        "volumeMounts": [{"name": "config", "mountPath": "/etc/application"}],
    }
    source = {"configMap": {"name": "application", "items": [{"key": "a", "path": "a"}]}}
    return {
        "metadata": {
            "name": f"application-{number // 10:04d}-{number:06d}",
            "labels": {"app": f"application-{number // 10}", "pod-template-hash": f"{number // 10:08x}"},
            "annotations": {"checksum/config": f"{number:064x}"},
        },
        "spec": {
            "schedulerName": "nobody",  # the pods stay as they are
            "containers": [{"name": "application", **container}, {"name": "sidecar", **container}],
            "volumes": [{"name": "config", "projected": {"sources": [source]}}],
        },
    }


async def in_parallel(count: int, width: int, work: Any) -> float:
    """Run ``work(number)`` for each number, *width* at once; seconds."""
    numbers = iter(range(count))

    async def worker() -> None:
        for number in numbers:
            await work(number)

    started = time.perf_counter()
    await asyncio.gather(*(worker() for _ in range(width)))
    return time.perf_counter() - started


async def fill(kubeconfig: str, count: int) -> None:
    async with await Connection.open(kubeconfig=kubeconfig, qps=0) as connection:
        took = await in_parallel(
            count,
            32,
            lambda n: writes.create(connection, PODS, pod(n), kind=PartialObject, namespace=NAMESPACE),
        )
    print(f"{count} pods created in {took:.0f} s", flush=True)


async def change(kubeconfig: str, count: int) -> None:
    async with await Connection.open(kubeconfig=kubeconfig, qps=0) as connection:
        body = {"metadata": {"annotations": {"changed": str(time.time())}}}
        await in_parallel(
            count,
            32,
            lambda n: writes.patch(
                connection, PODS, pod(n)["metadata"]["name"], body, kind=PartialObject, namespace=NAMESPACE
            ),
        )


def cpu() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def rss() -> float:
    gc.collect()
    return float(psutil.Process().memory_info().rss) / MIB


def peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


async def longest_stall(until: asyncio.Event) -> float:
    """The longest time for which the event loop did not turn, in seconds."""
    worst = 0.0
    while not until.is_set():
        before = time.perf_counter()
        await asyncio.sleep(0.001)
        worst = max(worst, time.perf_counter() - before - 0.001)
    return worst


async def measure(kubeconfig: str, count: int) -> None:
    """Keep a copy and print what it costs; runs in a fresh process."""
    async with await Connection.open(kubeconfig=kubeconfig, qps=0) as connection:
        copy = Reflector(connection, PODS, kind=Pod, project=lean, namespace=NAMESPACE)
        all_changed = asyncio.Event()
        base, cpu_before, started = rss(), cpu(), time.perf_counter()
        async with running(copy, timeout=300):
            used, took = cpu() - cpu_before, time.perf_counter() - started
        kept = rss() - base
        print(f"process before the list          {base:8.1f} MiB")
        print(f"list: {len(copy)} pods in        {took:8.2f} s")
        print(f"  CPU                            {used / count * 1e6:8.1f} µs a pod ({used:.2f} s)")
        print(f"  kept                           {kept / count * 1024:8.2f} KiB a pod ({kept:.1f} MiB)")
        print(f"  peak of the process            {peak():8.1f} MiB", flush=True)

        changing = [sys.executable, "-m", "benchmarks.reflector", "--change", kubeconfig, f"--pods={count}"]
        await (await asyncio.create_subprocess_exec(*changing)).wait()
        changed: set[str] = set()

        def note(old: LeanPod | None, new: LeanPod | None) -> None:
            changed.add((new or old or UNKNOWN).uid)
            if len(changed) == count:
                all_changed.set()

        copy.subscribe(note)  # which is told at once what is there
        changed.clear()
        all_changed.clear()
        stall = asyncio.create_task(longest_stall(all_changed))
        cpu_before, started = cpu(), time.perf_counter()
        async with running(copy):  # it resumes from where it was
            await all_changed.wait()
            used, took = cpu() - cpu_before, time.perf_counter() - started
        print(f"watch: {copy.counters.events} events in     {took:8.2f} s ({count / took:,.0f} a second)")
        print(f"  CPU                            {used / count * 1e6:8.1f} µs an event ({used:.2f} s)")
        print(f"  kept after it                  {(rss() - base) / count * 1024:8.2f} KiB a pod")
        print(f"  longest stall of the loop      {await stall * 1000:8.1f} ms")
        print(f"lists {copy.counters.lists}, watches {copy.counters.watches}, poison {copy.counters.poison}")


async def measure_generated(kubeconfig: str, count: int) -> None:
    """The same list through the generated client; runs in a fresh process."""
    from kubernetes.aio import client, config

    configuration = client.Configuration()
    await config.load_kube_config(config_file=kubeconfig, client_configuration=configuration)
    async with client.ApiClient(configuration) as api:
        base, cpu_before = rss(), cpu()
        found = await client.CoreV1Api(api).list_namespaced_pod(NAMESPACE)
        used, kept = cpu() - cpu_before, rss() - base
        print(f"generated client: {len(found.items)} pods")
        print(f"  CPU                            {used / count * 1e6:8.1f} µs a pod ({used:.2f} s)")
        print(f"  kept                           {kept / count * 1024:8.2f} KiB a pod ({kept:.1f} MiB)")
        print(f"  peak of the process            {peak():8.1f} MiB", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pods", type=int, default=10_000)
    parser.add_argument("--generated", action="store_true", help="also list with the generated client")
    for inner in ("measure", "measure-generated", "change"):
        parser.add_argument(f"--{inner}", metavar="KUBECONFIG", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    for kubeconfig, work in (
        (arguments.measure, measure),
        (arguments.measure_generated, measure_generated),
        (arguments.change, change),
    ):
        if kubeconfig:
            asyncio.run(work(kubeconfig, arguments.pods))
            return
    with Cluster() as cluster:
        cluster.create_namespace(NAMESPACE)
        kubeconfig = str(cluster.kubeconfig)
        asyncio.run(fill(kubeconfig, arguments.pods))
        path = f"/api/v1/namespaces/{NAMESPACE}/pods?limit=100"
        some = json.loads(cluster.api.raw("GET", path, headers={}))["items"]
        size = sum(len(json.dumps(item, separators=(",", ":"))) for item in some) / len(some)
        print(f"{size / 1024:.1f} KiB of JSON a pod")
        command = [sys.executable, "-m", "benchmarks.reflector", f"--pods={arguments.pods}"]
        subprocess.run([*command, "--measure", kubeconfig], check=True)
        if arguments.generated:
            subprocess.run([*command, "--measure-generated", kubeconfig], check=True)
    print(REFERENCE)


if __name__ == "__main__":
    main()
