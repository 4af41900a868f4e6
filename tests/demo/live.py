"""The second screen: the three services at work on a real cluster, read with the real kubectl.

Nodes are played by kwok, so nothing runs in the pods; their usage is public traces, served through the real
Metrics API path. Time is quickened: samples are stamped from eight days ago up to now, never beyond.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from tests.cluster import roles
from tests.cluster.webhooks import Webhook
from tests.testbed import ports, traces
from tests.testbed.api import Json
from tests.testbed.cluster import Cluster
from tests.testbed.processes import attempts

HERE = Path(__file__).parent
NAMESPACE = "shop"
DAYS = 8
DURATION = 40.0
"""Seconds in which the eight days pass."""

USAGE = (
    # workload, container, trace, peak of one pod in cores, memory floor in bytes
    ("web", "app", "crane_input1", 0.8, 150 * 2**20),
    ("web", "proxy", "crane_input3", 0.03, 24 * 2**20),
    ("worker", "worker", "crane_input12", 1.5, 300 * 2**20),
    ("orders", "postgres", "nab_rds_cpu_utilization_cc0c53", 0.8, 400 * 2**20),
    ("agent", "agent", "nab_ec2_cpu_utilization_24ae8d", 0.05, 40 * 2**20),
    ("report", "report", "nab_ec2_cpu_utilization_5f5533", 0.4, 90 * 2**20),
)


def build() -> subprocess.Popen[str]:
    """Start building the cluster's components, if any is missing; its progress can be read."""
    command = [sys.executable, "-m", "tests.testbed", "build"]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def follow(building: subprocess.Popen[str]) -> None:
    """Show the progress until all is built."""
    assert building.stdout is not None
    for line in building.stdout:
        print(line, end="", flush=True)
    if building.wait() != 0:
        raise SystemExit("demo: the cluster's components could not be built; the lines above say why")


def show(*, keep: bool) -> None:
    """Start everything, let eight days pass, and show what became of the shop."""
    print(
        "\nStarting a cluster: etcd, kube-apiserver, controller-manager, scheduler and two kwok nodes …",
        flush=True,
    )
    with Cluster() as cluster:
        _serve_usage(cluster)
        cluster.kubectl("apply", "-f", str(HERE / "live.yaml"))
        for kind, name in (("deploy", "web"), ("deploy", "worker"), ("sts", "orders"), ("ds", "agent")):
            cluster.kubectl(
                "rollout", "status", f"{kind}/{name}", "-n", NAMESPACE, "--timeout=90s", timeout=100
            )
        _recommender(cluster)
        print(
            "The recommender runs, as its own process with its own role. Eight days pass in 40 seconds …",
            flush=True,
        )
        _wait("recommendations", lambda: _targets(cluster, "web") and _targets(cluster, "report"), 60)
        time.sleep(DURATION)
        _kubectl(cluster, "get", "vpa")
        _kubectl(cluster, "describe", "vpa", "worker")
        _circle(cluster)
        _look_on(cluster, keep=keep)


def _serve_usage(cluster: Cluster) -> None:
    end = time.time()
    for workload, container, trace, peak, floor in USAGE:
        length = DAYS * 86400.0
        times, cores = traces.resampled(trace, end=end, length=length, step=1800.0, peak=peak)
        memory = traces.memory(cores, floor=floor, seed=1)
        points = list(zip((times - times[0]).tolist(), cores.tolist(), memory.tolist(), strict=True))
        cluster.metrics.replay(points, namespace=NAMESPACE, workload=workload, container=container)
    cluster.metrics.clock(end - DAYS * 86400, speed=DAYS * 86400 / DURATION)


def _recommender(cluster: Cluster) -> None:
    account = cluster.service_account("kube-system", "vpa-recommender")
    roles.ours("recommender").grant_to(account)
    cluster.spawn(
        "recommender",
        [
            *(sys.executable, "-m", "recommender", "--recommender-interval=1s", "--v=2"),
            f"--kubeconfig={account.kubeconfig}",
            f"--address=127.0.0.1:{ports.free()}",
        ],
    )


def _circle(cluster: Cluster) -> None:
    """Webhook and updater: pods resized in place, one evicted and created anew, one left alone."""
    admission = cluster.service_account("kube-system", "vpa-admission-controller")
    roles.ours("admission-controller").grant_to(admission)
    updater = cluster.service_account("kube-system", "vpa-updater")
    roles.ours("updater").grant_to(updater)
    _requests(cluster, "before")
    before = {pod["metadata"]["uid"] for pod in cluster.api.list("Pod", NAMESPACE)}
    with Webhook(cluster=cluster, account=admission, flags=["--status-lease-update-interval=1s"]):
        print(
            "\nNow the webhook and the updater run too (--wait-for-history=false: the demo's minute is less\n"
            "than the day of samples that the updater wants to see before it evicts).\n",
            flush=True,
        )
        cluster.spawn(
            "updater",
            [
                *(
                    sys.executable,
                    "-m",
                    "updater",
                    "--updater-interval=2s",
                    "--wait-for-history=false",
                    "--v=2",
                ),
                f"--kubeconfig={updater.kubeconfig}",
                f"--address=127.0.0.1:{ports.free()}",
            ],
        )
        _wait("web to be resized in place", lambda: _resized(cluster, "web") == 3, 90)
        _wait("worker to be created anew", lambda: _replaced(cluster, "worker", before) == 2, 90)
        _requests(cluster, "after")
        print("web: the same pods, resized. worker: new pods, sized by the webhook. orders: left alone.\n")
        _kubectl(cluster, "get", "events", "--field-selector", "source=vpa-updater")
        _kubectl(cluster, "describe", "vpa", "orders")


def _targets(cluster: Cluster, vpa: str) -> bool:
    status = cluster.api.get("VerticalPodAutoscaler", vpa, NAMESPACE).get("status", {})
    return bool(status.get("recommendation", {}).get("containerRecommendations"))


def _pods(cluster: Cluster, app: str) -> list[Json]:
    return cluster.api.list("Pod", NAMESPACE, labelSelector=f"app={app}")


def _resized(cluster: Cluster, app: str) -> int:
    return sum(
        "vpaInPlaceUpdated" in (pod["metadata"].get("annotations") or {}) for pod in _pods(cluster, app)
    )


def _replaced(cluster: Cluster, app: str, before: set[str]) -> int:
    return sum(
        pod["metadata"]["uid"] not in before and pod["status"].get("phase") == "Running"
        for pod in _pods(cluster, app)
    )


def _wait(what: str, holds: Callable[[], object], seconds: float) -> None:
    for _ in attempts(seconds, what, pause=0.5):
        if holds():
            return


def _requests(cluster: Cluster, when: str) -> None:
    columns = (
        "POD:.metadata.name,STARTED:.status.startTime,"
        "CPU:.spec.containers[*].resources.requests.cpu,MEMORY:.spec.containers[*].resources.requests.memory"
    )
    print(f"\nRequests {when}:", flush=True)
    _kubectl(cluster, "get", "pods", "-l", "app in (web, worker, orders)", "-o", f"custom-columns={columns}")


def _kubectl(cluster: Cluster, *arguments: str) -> None:
    print(f"$ kubectl -n {NAMESPACE} {_quoted(arguments)}")
    print(cluster.kubectl("-n", NAMESPACE, *arguments), flush=True)


def _quoted(arguments: Sequence[str]) -> str:
    return " ".join(f"'{one}'" if " " in one or "[" in one else one for one in arguments)


def _look_on(cluster: Cluster, *, keep: bool) -> None:
    if not keep:
        print("Everything is removed now. `make demo KEEP=1` keeps the cluster until Ctrl-C, to look on.")
        return
    print(f"Look on:  export KUBECONFIG={cluster.kubeconfig}\nCtrl-C ends everything.", flush=True)
    try:
        while True:
            time.sleep(3600)
    except KeyboardInterrupt:
        print("\nRemoving everything.")
