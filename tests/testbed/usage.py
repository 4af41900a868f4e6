"""What the Metrics API process serves: which container uses how much at which time. No I/O."""

from __future__ import annotations

import bisect
import datetime
import fnmatch
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

Json = dict[str, Any]


@dataclass(frozen=True)
class Pod:
    """What is needed of a pod."""

    namespace: str
    name: str
    labels: dict[str, str]
    workload: str
    """Name of what made it: Deployment, StatefulSet, Job …; its own name when nothing did."""
    node: str
    running: tuple[str, ...]
    """Names of its running containers."""

    @classmethod
    def of(cls, body: Json) -> Pod:
        """From a Pod as the API prints it."""
        meta, status = body["metadata"], body.get("status", {})
        statuses = (*status.get("initContainerStatuses", ()), *status.get("containerStatuses", ()))
        return cls(
            namespace=meta["namespace"],
            name=meta["name"],
            labels=meta.get("labels", {}),
            workload=_workload(meta),
            node=body["spec"].get("nodeName", ""),
            running=tuple(one["name"] for one in statuses if "running" in one.get("state", {})),
        )


def _workload(meta: Json) -> str:
    owner = next((one for one in meta.get("ownerReferences", ()) if one.get("controller")), None)
    if owner is None:
        return str(meta["name"])
    # A Deployment's ReplicaSet bears its name with a hash at the end.
    template_hash = meta.get("labels", {}).get("pod-template-hash")
    name = str(owner["name"])
    return name.removesuffix(f"-{template_hash}") if owner["kind"] == "ReplicaSet" and template_hash else name


@dataclass(frozen=True, kw_only=True)
class Rule:
    """Containers (all four are globs), and what they use: points of (time, cores, bytes), sorted by time."""

    points: Sequence[Sequence[float]]
    namespace: str = "*"
    workload: str = "*"
    pod: str = "*"
    container: str = "*"

    def concerns(self, pod: Pod) -> bool:
        """Whether it is about containers of *pod*."""
        return (
            fnmatch.fnmatchcase(pod.namespace, self.namespace)
            and fnmatch.fnmatchcase(pod.workload, self.workload)
            and fnmatch.fnmatchcase(pod.name, self.pod)
        )

    def at(self, now: float) -> tuple[float, float]:
        """Cores and bytes at *now*: a point holds until the next; several are repeated for ever."""
        times = [point[0] for point in self.points]
        if len(times) > 1:
            # The last point holds as long as the one before it did.
            period = 2 * times[-1] - times[-2] - times[0]
            now = times[0] + (now - times[0]) % period
        _, cores, size = self.points[max(0, bisect.bisect_right(times, now) - 1)]
        return cores, size


@dataclass(frozen=True, kw_only=True)
class Clock:
    """Time as the metrics show it: from *start* on, *speed* times as fast, never beyond the real time."""

    start: float | None = None
    speed: float = 1.0
    resolution: float = 1.0
    """Seconds between two looks at a container; time stamps move in such steps."""
    window: float = 30.0
    since: float = field(default_factory=time.time)

    def now(self) -> float:
        """Seconds since the epoch."""
        real = time.time()
        now = real if self.start is None else min(real, self.start + (real - self.since) * self.speed)
        return now - now % self.resolution


@dataclass
class Usage:
    """The rules and the clock."""

    rules: list[Rule] = field(default_factory=list)
    clock: Clock = field(default_factory=Clock)

    def of(self, pod: Pod, now: float) -> list[tuple[str, float, float]]:
        """(container, cores, bytes) of the running containers of *pod* that rules name; later rules win."""
        rules = [rule for rule in reversed(self.rules) if rule.concerns(pod)]
        found = []
        for container in pod.running:
            rule = next((one for one in rules if fnmatch.fnmatchcase(container, one.container)), None)
            if rule is not None:
                found.append((container, *rule.at(now)))
        return found

    def pod_metrics(self, pod: Pod, now: float) -> Json | None:
        """A PodMetrics; None when nothing is known of the pod."""
        containers = [
            {"name": name, "usage": _quantities(cores, size)} for name, cores, size in self.of(pod, now)
        ]
        meta = {"name": pod.name, "namespace": pod.namespace, "labels": pod.labels}
        return self._metrics(meta, now, containers=containers) if containers else None

    def node_metrics(self, pods: Iterable[Pod], now: float) -> list[Json]:
        """NodeMetrics by name: a node uses what its pods use."""
        totals: dict[str, tuple[float, float]] = {}
        for pod in pods:
            for _, cores, size in self.of(pod, now):
                before = totals.get(pod.node, (0.0, 0.0))
                totals[pod.node] = (before[0] + cores, before[1] + size)
        return [
            self._metrics({"name": node}, now, usage=_quantities(*total))
            for node, total in sorted(totals.items())
        ]

    def _metrics(self, meta: Json, now: float, **content: Any) -> Json:
        at = datetime.datetime.fromtimestamp(now, datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        window = f"{self.clock.window:g}s"
        return {"metadata": meta | {"creationTimestamp": at}, "timestamp": at, "window": window} | content


def _quantities(cores: float, size: float) -> Json:
    """As metrics-server prints them: nanocores, and Ki where it comes out even."""
    whole = round(size)
    memory = f"{whole // 1024}Ki" if whole % 1024 == 0 else str(whole)
    return {"cpu": f"{round(cores * 1e9)}n", "memory": memory}
