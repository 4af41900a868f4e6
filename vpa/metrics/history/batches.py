"""What a load hands over: whose containers they are, their points, and what is to be said of it. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass

import numpy as np

from vpa import times
from vpa.metrics.history.amounts import sample_weight
from vpa.metrics.history.attribution import CLUSTER, LABELS, NAME, OWNER, Verdict
from vpa.metrics.history.grids import Grid
from vpa.metrics.history.planning import CPU, MEMORY, Target
from vpa.metrics.history.tables import Counts, Points, Table
from vpa.rules import Rules

NEWEST = "newest"
COMPLETE = "complete"


@dataclass(frozen=True, slots=True)
class Container:
    """A container of the present or past, and how it is known whose it was."""

    namespace: str
    pod: str
    name: str
    kind: str
    controller: str
    how: str
    """``cluster``, ``owner``, ``labels`` or ``name``."""


@dataclass(frozen=True, kw_only=True, slots=True)
class HistoryBatch:
    """The history of some workloads.

    ``stage`` is ``newest`` (the last day or so, for a first impression) or ``complete``, which holds all of
    it again. *cpu* and *memory* index into *containers*. A CPU point weighs ``weight`` and counts as
    ``count`` samples; memory points are peaks, of which the largest in a window weighs 1.
    """

    stage: str
    targets: tuple[Target, ...]
    containers: tuple[Container, ...]
    cpu: Points
    memory: Points
    grid: Grid
    weight: float
    count: int
    counts: Counts
    unknown_pods: int
    """Pods that were found but belong to none of the targets, or to nobody knows whom."""

    def loaded(self) -> dict[tuple[str, str, str], Loaded]:
        """(namespace, kind, name) of each target → what was found of it."""
        found = {(one.namespace, one.kind, one.name): Loaded() for one in self.targets}
        for number, container in enumerate(self.containers):
            one = found[container.namespace, container.kind, container.controller]
            one.pods[container.pod] = container.how
            for resource, points in ((CPU, self.cpu), (MEMORY, self.memory)):
                moments, _ = points.of(number)
                one.points[resource] += len(moments)
                if len(moments):
                    one.first = min(one.first or int(moments[0]), int(moments[0]))
                    one.last = max(one.last, int(moments[-1]))
        return found


class Loaded:
    """What was found of one workload."""

    __slots__ = ("first", "last", "pods", "points")

    def __init__(self) -> None:
        self.pods: dict[str, str] = {}
        """Pod → how its controller is known."""
        self.points: Counter[str] = Counter()
        """Resource → points."""
        self.first = 0
        self.last = 0
        """Nanoseconds since the epoch of the oldest and the newest point; 0 without any."""

    def words(self) -> str:
        """One sentence for an event."""
        if not self.pods:
            return "Prometheus has no history of its pods"
        span = f"{times.text(self.first)} to {times.text(self.last)}"
        how = Counter(self.pods.values())
        past = {OWNER: "by owner metrics", LABELS: "by labels", NAME: "by name only"}
        gone = ", ".join(f"{how[one]} {text}" for one, text in past.items() if how[one])
        pods = f"{len(self.pods)} pods ({how[CLUSTER]} present{', past: ' + gone if gone else ''})"
        return (
            f"{self.points[CPU]} CPU and {self.points[MEMORY]} memory points of {pods} "
            f"from {span} were read from Prometheus"
        )


def batch(
    table: Table,
    *,
    stage: str,
    targets: Collection[Target],
    verdict: Callable[[str, str], Verdict],
    rules: Rules,
) -> HistoryBatch:
    """What *table* has of *targets*; *verdict* says whose a (namespace, pod) was."""
    wanted = {(one.namespace, one.kind, one.name) for one in targets}
    verdicts = {pod: verdict(*pod) for pod in dict.fromkeys((ns, pod) for ns, pod, _ in table.keys)}
    containers: list[Container] = []
    renumbered = np.full(len(table.keys), -1, np.int64)
    unknown: set[tuple[str, str]] = set()
    for number, (namespace, pod, name) in enumerate(table.keys):
        known = verdicts[namespace, pod]
        if known.controller is None or (namespace, *known.controller) not in wanted:
            unknown.add((namespace, pod))
            continue
        renumbered[number] = len(containers)
        kind, controller = known.controller
        containers.append(Container(namespace, pod, name, kind, controller, known.how))
    cpu, memory = (_chosen(table.points(one), renumbered, len(containers)) for one in (CPU, MEMORY))
    counts = Counts()
    counts.add(table.counts)
    counts.gaps = cpu.gaps(table.grid.step) + memory.gaps(table.grid.step)
    weight, count = sample_weight(table.grid.step, rules)
    return HistoryBatch(
        stage=stage,
        targets=tuple(sorted(targets)),
        containers=tuple(containers),
        cpu=cpu,
        memory=memory,
        grid=table.grid,
        weight=weight,
        count=count,
        counts=counts,
        unknown_pods=len(unknown),
    )


def _chosen(points: Points, renumbered: np.ndarray, containers: int) -> Points:
    """*points* of the containers with a new number, which are in the same order as before."""
    if containers == len(renumbered):
        return points
    index = renumbered[points.index]
    kept = index >= 0
    index = index[kept]
    return Points(
        index=index,
        times=points.times[kept],
        values=points.values[kept],
        ends=np.searchsorted(index, np.arange(containers), side="right"),
    )
