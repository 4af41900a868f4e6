"""``python -m tests.demo.full``: a recommender that has just started and knows eight days.

Cluster, Prometheus and the Trickster in front of it are real.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import yaml

from tests.demo.offline import FOLDER, LENGTH, REPOSITORY, SERIES, STEP, pod_names
from tests.demo.offline import Series as Demo
from tests.testbed import builds, components, ports, traces
from tests.testbed.cluster import Cluster
from tests.testbed.processes import attempts
from tests.testbed.prometheus import Prometheus, Series, Trickster, backfill

NAMESPACE = "shop"
VPA = "VerticalPodAutoscaler"
PATIENCE = 120.0
"""Seconds within which everything must be there, even on a busy machine."""


def show() -> None:
    """Start everything, show what the recommender knows at once, and leave nothing behind."""
    builds.ensure(*(components.COMPONENTS[name] for name in (*components.CLUSTER, "prometheus", "trickster")))
    print(
        "Eight days of a small shop in a real Prometheus, read through a real Trickster. CPU: public\n"
        "traces of gocrane/crane (Apache-2.0) and the Numenta Anomaly Benchmark (MIT). Memory: SYNTHETIC.\n",
        flush=True,
    )
    with Cluster() as cluster:
        folder = cluster.folder / "history"
        backfill(folder / "prometheus" / "data", _series(time.time() // STEP * STEP + 7))
        with (
            Prometheus(folder / "prometheus") as prometheus,
            Trickster(folder / "trickster", origin=prometheus.url) as trickster,
        ):
            names = _apply(cluster)
            _recommend(cluster, trickster, names)


def _apply(cluster: Cluster) -> list[str]:
    """The workloads of the shop and their VPAs, in mode Off; the names of the VPAs."""
    names = []
    cluster.api.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})
    for body in yaml.safe_load_all((FOLDER / "shop.yaml").read_text(encoding="utf-8")):
        if body["kind"] in ("Deployment", "StatefulSet", VPA):
            if body["kind"] == VPA:
                names.append(body["metadata"]["name"])
                body["spec"]["updatePolicy"] = {"updateMode": "Off"}
            else:
                for container in body["spec"]["template"]["spec"]["containers"]:
                    container["image"] = f"{container['name']}:1"
            cluster.api.apply(body, NAMESPACE)
    wanted = sum(series.pods for series in SERIES if series.container != "proxy")
    for _ in attempts(PATIENCE, "running pods", pause=0.5):
        phases = [pod["status"].get("phase") for pod in cluster.api.list("Pod", NAMESPACE)]
        if phases.count("Running") == wanted:
            break
    return names


def _recommend(cluster: Cluster, trickster: Trickster, names: list[str]) -> None:
    flags = ["--storage=prometheus", f"--prometheus-address={trickster.url}", "--usage-source=prometheus"]
    print("$ python -m recommender", *flags, flush=True)
    process = cluster.spawn(
        "recommender",
        [
            *(sys.executable, "-m", "recommender", f"--kubeconfig={cluster.kubeconfig}"),
            *(f"--address=127.0.0.1:{ports.free()}", "--recommender-interval=5s", *flags),
        ],
    )
    started = time.monotonic()
    with process:
        for _ in attempts(PATIENCE, "recommendations with a week behind them", process, pause=0.2):
            if all(_is_confident(cluster.api.get(VPA, name, NAMESPACE)) for name in names):
                break
        seconds = time.monotonic() - started
        print(f"\n{len(names)} VPAs have confident recommendations {seconds:.1f} s after the start.")
        print(f"Trickster's answers: {trickster.requests()}\n", flush=True)
        for _ in attempts(PATIENCE, "the events", process, pause=0.5):
            events = [one for one in cluster.api.list("Event", NAMESPACE) if one["reason"] == "HistoryLoaded"]
            if len(events) >= len(names):
                break
        for event in events:
            print(f"{event['involvedObject']['name']}: {event['message']}")
        process.stop()
    objects = cluster.folder / "objects.json"
    objects.write_text(cluster.kubectl("get", "vpa,deploy,sts,pod", "-n", NAMESPACE, "-o", "json"))
    arguments = ["recommend", "-f", str(objects), "--prometheus", trickster.url]
    print("\n$ .venv/bin/vpa recommend -f objects.json --prometheus URL", flush=True)
    subprocess.run([sys.executable, "-m", "vpa.cli", *arguments], cwd=REPOSITORY, check=True)


def _is_confident(vpa: dict[str, Any]) -> bool:
    """Whether the VPA has a recommendation, nothing more is to come, and a day and more is known."""
    status = vpa.get("status", {})
    conditions = {one["type"] for one in status.get("conditions", []) if one["status"] == "True"}
    waiting = conditions & {"FetchingHistory", "LowConfidence"}
    return bool(status.get("recommendation", {}).get("containerRecommendations")) and not waiting


def _series(now: float) -> Iterator[Series]:
    """All series, those of one metric together; the pods are not those of today, so owners are told too."""
    for metric, column in (
        ("container_cpu_usage_seconds_total", 1),
        ("container_memory_working_set_bytes", 2),
    ):
        for demo in SERIES:
            data = _usage(demo, now)
            values = np.cumsum(data[1]) * STEP if column == 1 else data[2]
            for pod in pod_names(demo):
                labels = {"job": "kubelet", "namespace": NAMESPACE, "pod": pod, "container": demo.container}
                yield Series(metric, labels, data[0], values)
    times = np.arange(now - LENGTH, now, 600.0) // 600 * 600
    base = {"job": "kube-state-metrics", "namespace": NAMESPACE, "owner_is_controller": "true"}
    apps = [demo for demo in SERIES if demo.container != "proxy"]
    for demo in apps:
        deployed = demo.kind == "Deployment"
        owner = ("ReplicaSet", f"{demo.workload}-7c9d8") if deployed else (demo.kind, demo.workload)
        for pod in pod_names(demo):
            labels = {**base, "pod": pod, "owner_kind": owner[0], "owner_name": owner[1]}
            yield Series("kube_pod_owner", labels, times, np.ones(len(times)))
    for demo in apps:
        if demo.kind == "Deployment":
            labels = {**base, "replicaset": f"{demo.workload}-7c9d8"}
            labels |= {"owner_kind": demo.kind, "owner_name": demo.workload}
            yield Series("kube_replicaset_owner", labels, times, np.ones(len(times)))


def _usage(demo: Demo, now: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(seconds, cores, bytes) of one pod of a workload."""
    times, cores = traces.resampled(demo.trace, end=now, length=LENGTH, step=STEP, peak=demo.peak)
    return times, cores / demo.pods, traces.memory(cores, floor=demo.floor, seed=demo.seed)


if __name__ == "__main__":
    show()
