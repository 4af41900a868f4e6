"""``vpa recommend --prometheus``: a scene that is fed with history instead of files."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import numpy as np

from vpa.cli.history import targets_of
from vpa.cli.objects import Objects, add
from vpa.cli.scenes import Scene
from vpa.cluster.resources import WELL_KNOWN
from vpa.histograms import NEVER
from vpa.matching import TargetKey
from vpa.metrics.history.batches import HistoryBatch
from vpa.metrics.history.merging import merge
from vpa.metrics.history.tables import Points
from vpa.objects.autoscalers import VerticalPodAutoscaler


def with_autoscalers(found: Objects) -> Objects:
    """*found*; without any VPA among them, with one in mode Off for each workload that nobody controls."""
    if found.of(VerticalPodAutoscaler):
        return found
    targets = targets_of(found)
    names = Counter((target.namespace, target.name) for target in targets)
    for target in targets:
        single = names[target.namespace, target.name] == 1
        name = target.name if single else f"{target.kind.lower()}-{target.name}"
        version = WELL_KNOWN[target.kind].api_version
        reference = {"apiVersion": version, "kind": target.kind, "name": target.name}
        data = {
            "apiVersion": "autoscaling.k8s.io/v1",
            "kind": "VerticalPodAutoscaler",
            "metadata": {"name": name, "namespace": target.namespace},
            "spec": {"targetRef": reference, "updatePolicy": {"updateMode": "Off"}},
        }
        add(found, data, "a workload without a VPA")
    return found


def feed(scene: Scene, batches: Iterable[HistoryBatch]) -> int | None:
    """Feed history, joined with the checkpoints as a recommender would; the time of the newest point."""
    newest: int | None = None
    for batch in batches:
        instances, after = _places(scene, batch)
        for points in (batch.cpu, batch.memory):
            if len(points.times):
                newest = max(newest or 0, int(points.times.max()))
        cpu = _counting(batch.cpu, instances, after)
        count = len(cpu.times)
        scene.usage.add_cpu(
            instances[cpu.index],
            cpu.times,
            cpu.values,
            weights=np.full(count, batch.weight),
            counts=np.full(count, batch.count),
        )
        memory = _counting(batch.memory, instances, after)
        scene.usage.add_memory(instances[memory.index], memory.times, memory.values)
    return newest


def _places(scene: Scene, batch: HistoryBatch) -> tuple[np.ndarray, np.ndarray]:
    """For each container of *batch* its instance, -1 for none, and the time after which its points count."""
    usage = scene.usage
    instances = np.full(len(batch.containers), -1, dtype=np.int64)
    after = np.full(len(batch.containers), NEVER, dtype=np.int64)
    first: dict[int, int] = {}
    for number, one in enumerate(batch.containers):
        target = TargetKey(one.namespace, one.kind, one.controller)
        instance = scene.instance(target, one.pod, one.name)
        if instance is None:
            continue
        instances[number] = instance
        row = int(usage.row[instance])
        times = (points.of(number)[0] for points in (batch.cpu, batch.memory))
        begin = min((int(some[0]) for some in times if len(some)), default=None)
        if begin is not None:
            first[row] = min(begin, first.get(row, begin))
    for row, begin in first.items():
        known = usage.first_sample[row] != NEVER
        how = merge(
            history_first=begin,
            checkpoint_first=int(usage.first_sample[row]) if known else None,
            checkpoint_last=int(usage.last_sample[row]) if known else None,
        )
        if how.replaces:
            scene.restart_row(row)
        elif how.after is not None:
            some = instances >= 0
            after[np.flatnonzero(some)[usage.row[instances[some]] == row]] = how.after
    return instances, after


def _counting(points: Points, instances: np.ndarray, after: np.ndarray) -> Points:
    chosen = (instances[points.index] >= 0) & (points.times > after[points.index])
    index = points.index[chosen]
    ends = np.searchsorted(index, np.arange(len(points.ends)), side="right")
    return Points(index=index, times=points.times[chosen], values=points.values[chosen], ends=ends)
