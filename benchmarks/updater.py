"""One pass of the updater over many VPAs whose pods all need a change, ours beside upstream's 1.8.1.

1,000 VPAs × 5 pods by default, on one real cluster with played kubelets: first one updater, then, with all
pods back and another target, the other one. New pods are sized by our admission controller both times, and
both updaters run with the same flags, by default their defaults. For each:

* ``evicted``: pods evicted in the first pass, of which the budgets allow two in each group of five;
* ``seconds``: from the first of these evictions to the last; a pass ends with ``--updater-interval``;
* ``cpu_seconds``: CPU of the process from its start to the end of the pass, of which ``cpu_before`` before
  the first eviction (its start, its first lists, its plan);
* ``requests``: what it asked of the API server, by the server's own audit, and by verb and resource;
* ``most_down``: the most pods of one group that were down when one of them had just been evicted;
* ``over_budget``: evictions of a pod that was up while no more than the budget demands were up.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil

from tests.cluster import roles
from tests.cluster.webhooks import Webhook
from tests.testbed import builds, components, folders, ports
from tests.testbed.api import Json
from tests.testbed.cluster import Cluster
from tests.testbed.nodes import FakeNodes
from tests.testbed.processes import attempts
from vpa.cluster.connection import Connection
from vpa.cluster.reflectors import Reflector, running
from vpa.cluster.resources import PODS
from vpa.objects.pods import Pod
from vpa.updates.budgets import is_unready

REPLICAS = 5
NAMESPACE = "load"
LONGEST = 600.0
QUIET = 15.0
"""Seconds without an eviction after which a pass is over; ours may look again at a proof before that."""
FLAGS = ("--updater-interval={interval}s", "--v=1")


@dataclass
class Result:
    """What became of one pass."""

    updater: str
    evicted: int
    allowed: int
    seconds: float
    per_second: float
    cpu_seconds: float
    cpu_before: float
    requests: int
    requests_by: dict[str, int]
    most_down: int
    over_budget: int


class Onlooker:
    """Sees evictions and how many pods of each group are up, in the order of the server's events."""

    def __init__(self) -> None:
        self.times: list[float] = []
        self.most_down = 0
        self.over_budget = 0
        self._up: dict[str, set[str]] = defaultdict(set)
        self._left: set[str] = set()

    def see(self, old: Pod | None, new: Pod | None) -> None:
        pod = new or old
        if pod is None:
            return
        uid, up = pod.metadata.uid, self._up[(pod.metadata.labels or {}).get("app", "")]
        if (new is None or new.metadata.deletion_timestamp is not None) and uid not in self._left:
            self._left.add(uid)
            self.times.append(time.monotonic())
            if uid in up:
                self.most_down = max(self.most_down, REPLICAS - len(up) + 1)
                self.over_budget += len(up) <= REPLICAS - int(REPLICAS * 0.5)
        if uid not in self._left and pod.status.phase == "Running" and not is_unready(pod):
            up.add(uid)
        else:
            up.discard(uid)


def deployment(name: str) -> Json:
    labels = {"app": name}
    container = {"name": "main", "image": "app:1", "resources": {"requests": size(100)}}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name},
        "spec": {
            "replicas": REPLICAS,
            "selector": {"matchLabels": labels},
            "template": {
                "metadata": {"labels": labels},
                "spec": {"terminationGracePeriodSeconds": 0, "containers": [container]},
            },
        },
    }


def autoscaler(name: str) -> Json:
    return {
        "apiVersion": "autoscaling.k8s.io/v1",
        "kind": "VerticalPodAutoscaler",
        "metadata": {"name": name},
        "spec": {
            "targetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": name},
            "updatePolicy": {"updateMode": "Recreate"},
        },
    }


def size(milli: int) -> dict[str, str]:
    return {"cpu": f"{milli}m", "memory": f"{milli}Mi"}


class Load:
    """The Deployments and VPAs."""

    def __init__(self, cluster: Cluster, count: int) -> None:
        self.cluster = cluster
        self.names = [f"app-{number:04}" for number in range(count)]

    def create(self) -> None:
        """Make all of it and wait until the pods run."""
        self.cluster.create_namespace(NAMESPACE)
        with ThreadPoolExecutor(8) as threads:
            list(threads.map(lambda name: self.cluster.api.create(deployment(name), NAMESPACE), self.names))
        self.wait()
        with ThreadPoolExecutor(8) as threads:
            list(threads.map(lambda name: self.cluster.api.create(autoscaler(name), NAMESPACE), self.names))

    def recommend(self, milli: int) -> None:
        """Give all VPAs the same target, which no pod has."""
        target = size(milli)
        entry = {"containerName": "main", "target": target, "lowerBound": target, "upperBound": target}
        status = {"status": {"recommendation": {"containerRecommendations": [entry]}}}

        def write(name: str) -> None:
            kind = "VerticalPodAutoscaler"
            self.cluster.api.patch(kind, name, NAMESPACE, body=status, subresource="status")

        with ThreadPoolExecutor(8) as threads:
            list(threads.map(write, self.names))

    def wait(self) -> None:
        """Wait until all pods run. The Deployments tell; to list all pods would hold the server up."""
        for _ in attempts(1800, f"{len(self.names) * REPLICAS} running pods", pause=3):
            counts = [found["status"] for found in self.cluster.api.list("Deployment", NAMESPACE)]
            if all(one.get("availableReplicas") == one.get("replicas") == REPLICAS for one in counts):
                return


async def watch_pass(
    cluster: Cluster, command: Sequence[str | Path], name: str, interval: float
) -> tuple[Onlooker, float, float]:
    """Run an updater until its first pass is over; what was seen, its CPU seconds, and those at the start."""
    looking = Onlooker()
    async with await Connection.open(kubeconfig=str(cluster.kubeconfig), qps=0) as connection:
        pods: Reflector[Pod, Pod] = Reflector(
            connection, PODS, kind=Pod, project=lambda pod: pod, namespace=NAMESPACE
        )
        async with running(pods, timeout=120):
            pods.subscribe(looking.see)
            with cluster.spawn(name, command, NAMESPACE="kube-system") as process:
                used = psutil.Process(process.pid).cpu_times
                cpu, before, started = 0.0, 0.0, time.monotonic()
                while time.monotonic() - started < LONGEST:
                    await asyncio.sleep(0.5)
                    process.check()
                    last = looking.times[-1] if looking.times else None
                    if last is None or time.monotonic() - last < 1.0:
                        times = used()
                        cpu = times.user + times.system
                        before = cpu if last is None else before
                    if last is not None and (
                        time.monotonic() - last > QUIET or time.monotonic() - looking.times[0] > interval
                    ):
                        break
                return looking, cpu, before


def audited(log: Path) -> Iterator[Json]:
    """The API server's audit, one request each."""
    with log.open() as lines:
        for line in lines:
            with contextlib.suppress(ValueError):
                yield json.loads(line)


def requests(log: Path, user: str, since: str) -> Counter[str]:
    """Verb and resource → requests of *user* that were received after *since*."""
    return Counter(
        f"{entry['verb']} {asked(entry.get('objectRef', {}))}"
        for entry in audited(log)
        if entry["user"]["username"] == user and entry["requestReceivedTimestamp"] > since
    )


def asked(about: Json) -> str:
    """``pods/eviction`` or the like."""
    return "/".join(filter(None, (about.get("resource", "no resource"), about.get("subresource"))))


POLICY = """\
apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived, ResponseStarted]
rules:
  - level: Metadata
    users:
      - system:serviceaccount:kube-system:updater-ours
      - system:serviceaccount:kube-system:updater-upstream
  - level: None
"""


def measure(cluster: Cluster, load: Load, options: argparse.Namespace, which: str, log: Path) -> Result:
    """One updater's pass over the load."""
    account = cluster.service_account("kube-system", f"updater-{which}")
    (roles.ours if which == "ours" else roles.upstream)("updater").grant_to(account)
    program: list[Any] = (
        [sys.executable, "-m", "updater"] if which == "ours" else [builds.binary("upstream-updater")]
    )
    flags = [flag.format(**vars(options)) for flag in FLAGS]
    if options.qps is not None:
        flags += [f"--kube-api-qps={options.qps:g}", f"--kube-api-burst={2 * options.qps:g}"]
    command = [
        *program,
        f"--kubeconfig={account.kubeconfig}",
        f"--address=127.0.0.1:{ports.free()}",
        *flags,
    ]
    since = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime())
    looking, cpu, before = asyncio.run(watch_pass(cluster, command, f"updater-{which}", options.interval))
    asked_for = requests(log, account.user, since)
    seconds = looking.times[-1] - looking.times[0] if looking.times else 0.0
    return Result(
        updater=which,
        evicted=len(looking.times),
        allowed=len(load.names) * int(REPLICAS * 0.5),
        seconds=round(seconds, 1),
        per_second=round(len(looking.times) / seconds, 1) if seconds else 0.0,
        cpu_seconds=round(cpu, 2),
        cpu_before=round(before, 2),
        requests=asked_for.total(),
        requests_by=dict(asked_for.most_common()),
        most_down=looking.most_down,
        over_budget=looking.over_budget,
    )


def main() -> None:
    """Make the load once and run both updaters over it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--vpas", type=int, default=1000)
    parser.add_argument("--qps", type=float, help="--kube-api-qps of both, with twice that as burst")
    parser.add_argument("--interval", type=int, default=60, help="--updater-interval of both, in seconds")
    parser.add_argument("--only", choices=["ours", "upstream"])
    options = parser.parse_args()
    builds.ensure(components.COMPONENTS["upstream-vpa"])
    folder = folders.runs() / f"benchmark-updater-{time.time_ns()}"
    folder.mkdir(parents=True)
    policy, log = folder / "policy.yaml", folder / "audit.log"
    policy.write_text(POLICY)
    nodes = FakeNodes(count=20, cpu="256", memory="1Ti", pods=1000)
    arguments = [f"--audit-policy-file={policy}", f"--audit-log-path={log}"]
    with Cluster(nodes=[nodes], apiserver_args=arguments) as cluster:
        account = cluster.service_account("kube-system", "vpa-admission-controller")
        roles.ours("admission-controller").grant_to(account)
        load = Load(cluster, options.vpas)
        load.create()
        with Webhook(cluster=cluster, account=account, flags=["--v=0"]):
            order = [options.only] if options.only else ["ours", "upstream"]
            for milli, which in zip((200, 300), order, strict=False):
                load.wait()
                load.recommend(milli)
                print(json.dumps(asdict(measure(cluster, load, options, which, log))), flush=True)
    log.unlink()
    policy.unlink()
    folder.rmdir()


if __name__ == "__main__":
    main()
