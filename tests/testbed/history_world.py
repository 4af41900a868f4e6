"""A week and a day of a small cluster as Prometheus has it: usage from public traces, memory made up.

Namespace ``shop``: a Deployment that was rolled out (two pods present, three past), a StatefulSet whose CPU
is exposed per core, two StatefulSets with the same labels, a CronJob. Namespace ``other``: one Deployment.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from tests.testbed import traces
from tests.testbed.prometheus import Series
from vpa.metrics.history.attribution import Workload
from vpa.metrics.history.loading import Past
from vpa.metrics.history.planning import Target
from vpa.objects.meta import LabelSelector

DAY = 86_400
LENGTH = 8 * DAY
SCRAPE = 60
OWNER_SCRAPE = 600

CADVISOR = {"job": "kubelet", "metrics_path": "/metrics/cadvisor", "instance": "10.0.0.1:10250"}
STATE = {"job": "kube-state-metrics", "instance": "10.0.0.2:8080"}


@dataclass(frozen=True)
class Pod:
    """A pod that ran from *start* to *end*, as shares of the whole time."""

    namespace: str
    name: str
    owner: tuple[str, str]
    containers: tuple[str, ...] = ("app",)
    start: float = 0.0
    end: float = 1.0
    trace: str = "crane_input1"
    peak: float = 1.0
    cores: int = 0
    """Series of CPU per core; 0: one in all."""
    app: str = ""
    owner_known: bool = True

    @property
    def live(self) -> bool:
        return self.end == 1.0


def _web(replicaset: str, *tails: str, start: float = 0.0, end: float = 1.0) -> Iterator[Pod]:
    for tail in tails:
        owner = ("ReplicaSet", f"web-{replicaset}")
        name = f"web-{replicaset}-{tail}"
        yield Pod("shop", name, owner, ("app", "proxy"), start=start, end=end, app="web")


def _tick(number: int) -> Pod:
    """A run of the CronJob that has left no owner metrics."""
    job = f"tick-{29_000_000 + number}"
    start, end = number / 8, number / 8 + 0.02
    trace = "nab_ec2_cpu_utilization_5f5533"
    return Pod(
        "shop",
        f"{job}-{number}abcd",
        ("Job", job),
        start=start,
        end=end,
        trace=trace,
        peak=0.5,
        app="tick",
        owner_known=False,
    )


PODS = (
    *_web("5f6b7c8d9", "aaaaa", "bbbbb", "ccccc", end=0.6),
    *_web("7d8c9b6f5", "ddddd", "eeeee", start=0.6),
    Pod("shop", "db-0", ("StatefulSet", "db"), trace="nab_rds_cpu_utilization_cc0c53", cores=8, app="db"),
    Pod("shop", "s0-0", ("StatefulSet", "s0"), trace="crane_input3", peak=0.016, app="s"),
    Pod("shop", "s1-0", ("StatefulSet", "s1"), trace="crane_input12", peak=2.0, app="s"),
    *(_tick(number) for number in range(1, 7)),
    Pod(
        "other",
        "api-6d4cf56db6-zzzzz",
        ("ReplicaSet", "api-6d4cf56db6"),
        trace="nab_ec2_cpu_utilization_24ae8d",
        app="api",
    ),
)

PARENTS = {
    ("shop", "ReplicaSet", "web-5f6b7c8d9"): ("Deployment", "web"),
    ("shop", "ReplicaSet", "web-7d8c9b6f5"): ("Deployment", "web"),
    ("other", "ReplicaSet", "api-6d4cf56db6"): ("Deployment", "api"),
}

WORKLOADS = (
    ("shop", "Deployment", "web", "web"),
    ("shop", "StatefulSet", "db", "db"),
    ("shop", "StatefulSet", "s0", "s"),
    ("shop", "StatefulSet", "s1", "s"),
    ("shop", "CronJob", "tick", "tick"),
    ("other", "Deployment", "api", "api"),
)

TARGETS = tuple(
    Target(namespace=namespace, kind=kind, name=name, series=8) for namespace, kind, name, _ in WORKLOADS
)


def top(pod: Pod) -> tuple[str, str]:
    """The top-most controller of a pod."""
    if pod.owner[0] == "Job":
        return ("CronJob", pod.owner[1].rsplit("-", 1)[0])
    return PARENTS.get((pod.namespace, *pod.owner), pod.owner)


def past(now: float) -> Past:
    """What the cluster itself knows now."""
    begin = now - LENGTH
    return Past(
        workloads=tuple(
            Workload(namespace, kind, name, LabelSelector(match_labels={"app.kubernetes.io/name": app}))
            for namespace, kind, name, app in WORKLOADS
        ),
        live={(pod.namespace, pod.name): top(pod) for pod in PODS if pod.live},
        started={(pod.namespace, pod.name): begin + pod.start * LENGTH for pod in PODS if pod.live},
    )


def usage(pod: Pod, container: str, now: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(seconds, cores, bytes) of a container, one value a scrape."""
    share = 1.0 if container == "app" else 0.1
    times, cores = traces.resampled(pod.trace, end=now, length=LENGTH, step=SCRAPE, peak=pod.peak * share)
    seed = sum(map(ord, pod.name + container))
    memory = traces.memory(cores, floor=64e6 * (1 + len(pod.name) % 5) * share, seed=seed)
    begin = now - LENGTH
    inside = (times >= begin + pod.start * LENGTH) & (times <= begin + pod.end * LENGTH)
    return times[inside], cores[inside], memory[inside]


def series(now: float) -> Iterator[Series]:
    """All series, those of one metric together; *now* is the time of the last scrape."""
    yield from _cpu(now)
    yield from _memory(now)
    yield from _state(now)


def _cpu(now: float) -> Iterator[Series]:
    metric = "container_cpu_usage_seconds_total"
    for pod in PODS:
        for container in pod.containers:
            times, cores, _ = usage(pod, container, now)
            counter = np.cumsum(cores) * SCRAPE
            labels = {**CADVISOR, "namespace": pod.namespace, "pod": pod.name, "container": container}
            labels["id"] = f"/kubepods/{pod.name}/{container}"
            if pod.cores:
                for core in range(pod.cores):
                    yield Series(metric, {**labels, "cpu": f"cpu{core:02d}"}, times, counter / pod.cores)
                continue
            yield Series(metric, {**labels, "cpu": "total"}, times, counter)
            if container == "app" and pod.live:
                # The kubelet tells the same on another path, without the labels that tell parts apart.
                copy = {key: value for key, value in labels.items() if key != "id"}
                yield Series(metric, {**copy, "metrics_path": "/metrics/resource"}, times, counter)
        yield Series(
            metric, {**CADVISOR, "namespace": pod.namespace, "pod": pod.name, "id": "/pod"}, times, counter
        )


def _memory(now: float) -> Iterator[Series]:
    metric = "container_memory_working_set_bytes"
    for pod in PODS:
        for container in pod.containers:
            times, _, memory = usage(pod, container, now)
            labels = {**CADVISOR, "namespace": pod.namespace, "pod": pod.name}
            yield Series(metric, {**labels, "container": container, "id": f"/{container}"}, times, memory)
        yield Series(metric, {**labels, "container": "POD", "id": "/pause"}, times, memory * 0 + 4096)
        yield Series(metric, {**labels, "id": "/pod"}, times, memory * 3)


def _state(now: float) -> Iterator[Series]:
    def lived(pod: Pod) -> np.ndarray:
        begin = now - LENGTH
        start, end = begin + pod.start * LENGTH, begin + pod.end * LENGTH
        return np.arange(start // OWNER_SCRAPE * OWNER_SCRAPE, end + 1, OWNER_SCRAPE)

    for pod in PODS:
        if pod.owner_known:
            labels = {**STATE, "namespace": pod.namespace, "pod": pod.name, "owner_is_controller": "true"}
            labels |= {"owner_kind": pod.owner[0], "owner_name": pod.owner[1]}
            yield Series("kube_pod_owner", labels, lived(pod), np.ones(len(lived(pod))))
    for pod in PODS:
        labels = {**STATE, "namespace": pod.namespace, "pod": pod.name}
        labels["label_app_kubernetes_io_name"] = pod.app
        yield Series("kube_pod_labels", labels, lived(pod), np.ones(len(lived(pod))))
    for (namespace, _, name), (kind, owner) in PARENTS.items():
        labels = {
            **STATE,
            "namespace": namespace,
            "replicaset": name,
            "owner_kind": kind,
            "owner_name": owner,
        }
        times = np.arange(now - LENGTH, now + 1, OWNER_SCRAPE) // OWNER_SCRAPE * OWNER_SCRAPE
        yield Series("kube_replicaset_owner", labels, times, np.ones(len(times)))
