"""Our webhook beside upstream's 1.8.1 on one API server: latency, CPU, memory, start; and our handler alone.

    python -m benchmarks.admission [--pods 5000] [--replica-sets 20000 60000] [--rounds 2] [--handler]

The objects are there before: 1,000 Deployments with a VPA each, and so many ReplicaSets of theirs. Then, in
turns, each webhook is started and 5,000 pods are created, which the API server shows to it one by one. No
controller, scheduler or kubelet runs meanwhile: they would set the pace (20 pods a second) and take the CPUs.
Who is second in one round is first in the next, since an API server gets slower with all that it has seen.
Run by root, each webhook has its service account as in a pod; otherwise both read a kubeconfig, for which
ours needs 20 MiB more.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import os
import re
import ssl
import sys
import time
import urllib.request
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from tests.cluster import roles
from tests.cluster.webhooks import (
    NAMESPACE,
    OURS,
    Scene,
    Webhook,
    container,
    recommendation,
    requests,
    resources,
    workload,
)
from tests.core.admission_kit import PODS, Bench, patch_of, review
from tests.testbed import builds
from tests.testbed.api import ApiError, Json
from tests.testbed.certificates import ADDRESS
from tests.testbed.cluster import Cluster
from tests.testbed.nodes import FakeNodes

DEPLOYMENTS = 1000
NAMESPACES = 10
CONTAINERS = ("app", "proxy")
SMALL = resources("100m", "100Mi")
SETTERS_UP = 16
"""Connections that create what is there before."""
CLIENTS = 4
"""Connections that create pods: with more of them they wait for each other in the API server."""
SETTLE = 5.0
"""Seconds between the start of a webhook, or the end of another one, and the load."""
DURATION = "apiserver_admission_webhook_admission_duration_seconds"
QUANTILES = (0.5, 0.99)
IS_ROOT = os.geteuid() == 0
MOUNT = """
mount -t tmpfs tmpfs /run && mkdir -p /var/run/secrets/kubernetes.io &&
cp -r "$0" /var/run/secrets/kubernetes.io/serviceaccount && exec "$@"
"""
"""The service account's files, given as ``$0``, seen by one program alone."""


@dataclass
class Result:
    """What one webhook took in one round."""

    name: str
    ready: float
    """Seconds from start to the first pod with a patch."""
    idle: float
    """MiB then, all ReplicaSets known."""
    memory: float
    """MiB after all pods, at most."""
    cpu: float
    """Seconds of CPU for 1,000 pods."""
    rate: float
    """Pods a second."""
    mean: float
    """Milliseconds that the API server waited for it."""
    quantiles: tuple[float, ...]
    missed: int
    """Pods without a patch."""


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--pods", type=int, default=5000)
    parser.add_argument(
        "--replica-sets", type=int, nargs="+", default=[20_000, 60_000], help="so many, then so many"
    )
    parser.add_argument("--rounds", type=int, default=2, help="how often each webhook has its turn")
    parser.add_argument("--handler", action="store_true", help="only our handler, without a cluster")
    parser.add_argument("--only", choices=("ours", "upstream"))
    options = parser.parse_args()
    handler_alone()
    if options.handler:
        return
    with Cluster(nodes=[FakeNodes(count=1)]) as cluster:
        prepare(cluster)
        there = 0
        for replica_sets in sorted(options.replica_sets):
            with told(f"{DEPLOYMENTS} Deployments with {replica_sets} ReplicaSets"):
                populate(cluster, there, replica_sets)
            there = replica_sets
            results = []
            for number in range(options.rounds):
                for name in (("upstream", "ours"), ("ours", "upstream"))[number % 2]:
                    if options.only in (None, name):
                        time.sleep(SETTLE)
                        results.append(measure(cluster, name, options.pods))
                        print(line(results[-1]), flush=True)
            report(results, options.pods, replica_sets)


# The handler alone


def a_review(number: int) -> bytes:
    """A review of some 8 KB, as the API server sends it for a pod of a Deployment."""
    environment = [{"name": f"VARIABLE_{index}", "value": "x" * 40} for index in range(25)]
    probe = {"httpGet": {"path": "/healthz", "port": 8080, "scheme": "HTTP"}, "periodSeconds": 10}
    mount = {"name": "kube-api-access-abcde", "mountPath": "/var/run/secrets/x", "readOnly": True}
    containers = [
        container(name, SMALL, resources("200m", "200Mi"))
        | {"env": environment, "readinessProbe": probe, "volumeMounts": [mount]}
        for name in CONTAINERS
    ]
    owner = {
        "apiVersion": "apps/v1",
        "kind": "ReplicaSet",
        "name": f"web-{number}-5d4f8c7b9",
        "uid": "6c1b1d30-8d5c-4f4e-9c39-6a3d1c5b7f10",
        "controller": True,
        "blockOwnerDeletion": True,
    }
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "generateName": f"web-{number}-5d4f8c7b9-",
            "namespace": "n",
            "creationTimestamp": None,
            "labels": {"app": "web", "pod-template-hash": "5d4f8c7b9"},
            "ownerReferences": [owner],
        },
        "spec": {
            "containers": containers,
            "volumes": [{"name": "kube-api-access-abcde", "projected": {"defaultMode": 420}}],
            "restartPolicy": "Always",
            "schedulerName": "default-scheduler",
        },
        "status": {},
    }
    return json.dumps(review(PODS, pod)).encode()


def handler_alone(count: int = 3000) -> None:
    """CPU of `Handler.answer`: decoding, choice of sizes, reply, metrics."""
    targets = {name: resources("253m", "262144k") for name in CONTAINERS}
    vpa = {
        "metadata": {"name": "v", "namespace": "n"},
        "spec": {
            "resourcePolicy": {"containerPolicies": [{"containerName": "*", "maxAllowed": {"cpu": "4"}}]}
        },
        "status": {
            "recommendation": {
                "containerRecommendations": [
                    {"containerName": name, "target": target} for name, target in targets.items()
                ]
            }
        },
    }
    bench = Bench(vpa)
    bodies = [a_review(number) for number in range(100)]

    async def run() -> float:
        replies = [await bench.call(body) for body in bodies]
        assert all(patch_of(json.loads(reply.body)["response"]) for reply in replies)
        best = float("inf")
        for _ in range(5):
            start = time.process_time()
            for body in itertools.islice(itertools.cycle(bodies), count):
                await bench.call(body)
            best = min(best, (time.process_time() - start) / count)
        return best

    print(f"handler alone: {asyncio.run(run()) * 1e6:.0f} µs of CPU for a review of {len(bodies[0])} bytes")


# Objects


def prepare(cluster: Cluster) -> None:
    """Namespaces, Deployments with a VPA each, and rest."""
    account = cluster.api.get("ServiceAccount", "default", "default")
    for name in ("kube-controller-manager", "kube-scheduler", "kwok"):
        cluster.process(name).kill()
    for number in range(NAMESPACES):
        name = f"bench-{number}"
        cluster.api.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
        cluster.api.create(
            {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": account["metadata"]["name"]}},
            name,
        )


def populate(cluster: Cluster, there: int, wanted: int) -> None:
    """Deployments with VPAs if there are none yet, and from *there* to *wanted* ReplicaSets of the past."""
    revisions = range(there // DEPLOYMENTS, wanted // DEPLOYMENTS)
    with ThreadPoolExecutor(SETTERS_UP) as threads:
        for _ in threads.map(lambda one: group(cluster, one, revisions), range(DEPLOYMENTS)):
            pass
    cluster.api.close()  # the server has closed what was idle meanwhile; the next request connects anew


def group(cluster: Cluster, number: int, revisions: range) -> None:
    """One Deployment, its VPA, and *revisions* of its ReplicaSets."""
    scene = Scene(cluster, namespace(number))
    name = f"web-{number}"
    containers = [container(one, SMALL, resources("200m", "200Mi")) for one in CONTAINERS]
    if revisions.start == 0:
        scene.vpa(name, *(recommendation(one, "253m", "262144k") for one in CONTAINERS))
        deployment = workload("Deployment", name, containers, replicas=0)
        deployment["spec"]["revisionHistoryLimit"] = 1_000_000
        owner = reference(scene.create(deployment))
    else:
        deployment = cluster.api.get("Deployment", name, scene.namespace)
        owner = reference({"apiVersion": "apps/v1", "kind": "Deployment", **deployment})
    for revision in revisions:
        body = workload("ReplicaSet", f"{name}-{revision:010x}", containers, replicas=0)
        labels = {"app": name, "pod-template-hash": f"{revision:010x}"}
        body["metadata"] |= {"labels": labels, "ownerReferences": [owner]}
        body["spec"]["selector"]["matchLabels"] = labels
        body["spec"]["template"]["metadata"]["labels"] = labels
        scene.create(body)


def namespace(number: int) -> str:
    return f"bench-{number % NAMESPACES}"


def reference(owner: Json) -> Json:
    metadata = owner["metadata"]
    found = {"apiVersion": owner["apiVersion"], "kind": owner["kind"], "controller": True}
    return found | {"name": metadata["name"], "uid": metadata["uid"], "blockOwnerDeletion": True}


def pods_to_create(cluster: Cluster, count: int) -> list[tuple[str, Json]]:
    """(namespace, pod) of *count* pods, of one ReplicaSet of each Deployment."""
    sets = []
    for number in range(min(count, DEPLOYMENTS)):
        oldest = cluster.api.get("ReplicaSet", f"web-{number}-{0:010x}", namespace(number))
        sets.append({"apiVersion": "apps/v1", "kind": "ReplicaSet", **oldest})
    found = []
    for one in itertools.islice(itertools.cycle(sets), count):
        template = one["spec"]["template"]
        metadata = {
            "generateName": f"{one['metadata']['name']}-",
            "labels": template["metadata"]["labels"],
            "ownerReferences": [reference(one)],
        }
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template["spec"]}
        found.append((one["metadata"]["namespace"], pod))
    return found


@dataclass(kw_only=True)
class InPod(Webhook):
    """A webhook that finds its service account where a kubelet would have put it, if we may do that."""

    def command(self) -> list[str | Path]:
        if not IS_ROOT:
            return super().command()
        command = [part for part in super().command() if not str(part).startswith("--kubeconfig=")]
        return ["unshare", "--mount", "sh", "-c", MOUNT, str(self._files()), *command]

    def _files(self) -> Path:
        folder = self.cluster.folder / f"{self.name}-account"
        folder.mkdir()
        (folder / "token").write_text(self.account.token)
        (folder / "ca.crt").write_bytes(self.cluster.ca.read_bytes())
        return folder

    def spawn(self) -> None:
        host, _, port = self.cluster.server.removeprefix("https://").partition(":")
        environment = {"KUBERNETES_SERVICE_HOST": host, "KUBERNETES_SERVICE_PORT": port}
        self.process = self.cluster.spawn(self.name, self.command(), NAMESPACE=NAMESPACE, **environment)


# Measuring


def measure(cluster: Cluster, name: str, count: int) -> Result:
    """Start the webhook *name*, create *count* pods, end it, remove the pods."""
    account = cluster.service_account("kube-system", f"admission-{name}")
    (roles.ours if name == "ours" else roles.upstream)("admission-controller").grant_to(account)
    program: Sequence[Any] = OURS
    if name == "upstream":
        program = [builds.binary("upstream-admission-controller")]
    pods = pods_to_create(cluster, count)
    started = time.monotonic()
    webhook = InPod(
        cluster=cluster,
        account=account,
        name=f"{name}-{time.monotonic_ns()}",
        program=program,
        flags=["--v=0"],
    )
    webhook.spawn()
    try:
        wait_for_patch(webhook, pods[0])
        ready = time.monotonic() - started
        webhook.wait()
        time.sleep(SETTLE)
        process = psutil.Process(webhook.process.pid)
        idle = process.memory_info().rss / 2**20
        before, cpu = histogram(cluster), cpu_of(process)
        start = time.monotonic()
        missed = create(cluster, pods)
        wall = time.monotonic() - start
        spent = cpu_of(process) - cpu
        waited = Waited(before, histogram(cluster))
        memory = peak(process)
    finally:
        webhook.__exit__(None, None, None)
        remove_pods(cluster)
    return Result(
        name=name,
        ready=ready,
        idle=idle,
        memory=memory,
        cpu=spent / count * 1000,
        rate=count / wall,
        mean=waited.mean * 1000,
        quantiles=tuple(waited.quantile(one) * 1000 for one in QUANTILES),
        missed=missed,
    )


def wait_for_patch(webhook: Webhook, pod: tuple[str, Json]) -> None:
    """Call the webhook until it answers with a patch."""
    body = review(PODS, pod[1])
    body["request"]["namespace"] = pod[0]
    body["request"]["object"]["metadata"]["namespace"] = pod[0]
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    call = urllib.request.Request(
        f"https://{ADDRESS}:{webhook.port}/",
        data=json.dumps(body).encode(),
        headers={"Content-Type": "application/json"},
    )
    while True:
        webhook.process.check()
        try:
            with urllib.request.urlopen(call, context=context, timeout=30) as answer:
                if patch_of(json.load(answer)["response"]):
                    return
        except OSError:
            pass
        time.sleep(0.02)


def create(cluster: Cluster, pods: Sequence[tuple[str, Json]]) -> int:
    """Create all; how many came without the target."""

    def one(pod: tuple[str, Json]) -> bool:
        try:
            return requests(cluster.api.create(pod[1], pod[0]))["cpu"] != "253m"
        except ApiError as error:
            print(error, file=sys.stderr)
            return True

    with ThreadPoolExecutor(CLIENTS) as threads:
        return sum(threads.map(one, pods))


def remove_pods(cluster: Cluster) -> None:
    """Delete all pods at once."""
    for number in range(NAMESPACES):
        path = cluster.api.path("Pod", None, f"bench-{number}")
        options = {"apiVersion": "v1", "kind": "DeleteOptions", "gracePeriodSeconds": 0}
        cluster.api.request("DELETE", path, options)


def cpu_of(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def peak(process: psutil.Process) -> float:
    """Most resident memory so far in MiB."""
    with open(f"/proc/{process.pid}/status") as status:
        found = re.search(r"^VmHWM:\s+(\d+) kB", status.read(), re.MULTILINE)
    return int(found[1]) / 1024 if found else process.memory_info().rss / 2**20


def histogram(cluster: Cluster) -> dict[float, float]:
    """Upper bound → calls so far that took no longer; the sum of all seconds under the key -1."""
    text = cluster.api.raw("GET", "/metrics", headers={}).decode()
    found: dict[float, float] = {}
    for line in text.splitlines():
        if line.startswith(DURATION) and 'name="vpa.k8s.io"' in line and 'operation="CREATE"' in line:
            value = float(line.rpartition(" ")[2])
            if line.startswith(f"{DURATION}_sum"):
                found[-1.0] = value
            elif bound := re.search(r'le="([^"]+)"', line):
                found[float(bound[1])] = value
    return found


@dataclass
class Waited:
    """How long the API server waited between two looks at its histogram."""

    before: dict[float, float]
    after: dict[float, float]

    def _count(self, bound: float) -> float:
        return self.after.get(bound, 0.0) - self.before.get(bound, 0.0)

    @property
    def mean(self) -> float:
        """Seconds."""
        return self._count(-1.0) / max(1.0, self._count(float("inf")))

    def quantile(self, share: float) -> float:
        """Seconds, as Prometheus interpolates."""
        bounds = sorted(bound for bound in self.after if bound >= 0)
        wanted = share * self._count(float("inf"))
        low, below = 0.0, 0.0
        for bound in bounds:
            if self._count(bound) >= wanted:
                inside = self._count(bound) - below
                return low if bound == float("inf") else low + (bound - low) * (wanted - below) / inside
            low, below = bound, self._count(bound)
        return low


def report(results: Sequence[Result], pods: int, replica_sets: int) -> None:
    """A table, and the ratios of the means."""
    scene = f"{pods} pods, {replica_sets} ReplicaSets, {DEPLOYMENTS} VPAs"
    print(f"\n{scene}, {os.cpu_count()} CPUs, load {os.getloadavg()[0]:.1f}")
    for result in results:
        print(line(result))
    ours, theirs = ([one for one in results if one.name == name] for name in ("ours", "upstream"))
    if ours and theirs:
        for what in ("ready", "idle", "memory", "cpu", "mean"):
            mine, other = (sum(getattr(one, what) for one in each) / len(each) for each in (ours, theirs))
            print(f"{what:>8}: {mine:8.2f} beside {other:8.2f}, a share of {mine / other:.2f}")


def line(result: Result) -> str:
    quantiles = ", ".join(
        f"p{share * 100:g} {value:.1f}" for share, value in zip(QUANTILES, result.quantiles, strict=True)
    )
    return (
        f"{result.name:>8}: ready {result.ready:5.1f} s, "
        f"{result.idle:4.0f} MiB idle, {result.memory:4.0f} MiB most, "
        f"{result.cpu:.3f} s CPU per 1000 pods at {result.rate:.0f} pods/s, "
        f"latency {result.mean:.2f} ms ({quantiles}), {result.missed} missed"
    )


@contextmanager
def told(what: str) -> Iterator[None]:
    start = time.monotonic()
    print(what, file=sys.stderr)
    yield
    print(f"  done in {time.monotonic() - start:.0f} s", file=sys.stderr)


if __name__ == "__main__":
    main()
