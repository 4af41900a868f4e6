"""Which pods there are, whose they are, and which row of history each of their containers feeds.

Pods that share history form a *group*: those of one top-most controller (and, on Deckhouse, of nodes with one
label value), or, as upstream has it, those with the same labels. Everything here is plain state without I/O.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator
from typing import NamedTuple, TypeVar

import numpy as np

from recommender.records import Labels, PodRecord
from vpa.matching import TargetKey
from vpa.numerics import Ints
from vpa.usage import Usage

K = TypeVar("K", TargetKey, str)

PodKey = tuple[str, str]
"""(namespace, name)"""

BARE = "Pod"
"""The kind of the group that a pod without a controller makes by itself."""


class GroupKey(NamedTuple):
    """Whose history it is. By labels, *kind* is empty and *name* is the labels' text.

    *scope* is the value of the node label that splits a DaemonSet; None where nothing splits.
    """

    namespace: str
    kind: str
    name: str
    scope: str | None = None

    @property
    def target(self) -> TargetKey:
        """The controller."""
        return TargetKey(self.namespace, self.kind, self.name)


class Group:
    """Pods that share history, and their rows."""

    __slots__ = ("containers", "key", "labels", "pods", "rows")

    def __init__(self, key: GroupKey, labels: Labels | None) -> None:
        self.key = key
        self.labels = labels
        """What the pods have in common, where that matters: bare pods, and groups by labels."""
        self.rows: dict[str, int] = {}
        """Container → its row."""
        self.pods: set[PodKey] = set()
        self.containers: Counter[str] = Counter()
        """How many pods name a container."""


class Tracked:
    """A pod: its record, its group, and the instance of each of its containers in the shape's order."""

    __slots__ = ("gone", "group", "instances", "record")

    def __init__(self, record: PodRecord, group: Group, instances: tuple[int, ...]) -> None:
        self.record = record
        self.group = group
        self.instances = instances
        self.gone = False
        """Deleted, and kept until the end of the tick so that its last samples and its kill still count."""

    def instance(self, container: str) -> int | None:
        """The instance of a container, None if the pod has no such (regular) container."""
        place = self.record.shape.index.get(container)
        return None if place is None else self.instances[place]


class Tracker:
    """All groups and pods."""

    def __init__(self, usage: Usage) -> None:
        self.usage = usage
        self.groups: dict[GroupKey, Group] = {}
        self.pods: dict[PodKey, Tracked] = {}
        self.changed: dict[GroupKey, Group] = {}
        """Groups whose pods or rows changed since the caller cleared this."""
        self._at: defaultdict[TargetKey, dict[GroupKey, Group]] = defaultdict(dict)
        self._loose: defaultdict[str, dict[GroupKey, Group]] = defaultdict(dict)
        self._gone: list[Tracked] = []
        self._sink: int | None = None

    # Groups

    def group(self, key: GroupKey, labels: Labels | None = None) -> Group:
        """The group, made if it is new."""
        group = self.groups.get(key)
        if group is None:
            group = self.groups[key] = Group(key, labels)
            if labels is None:
                self._at[key.target][key] = group
            else:
                self._loose[key.namespace][key] = group
            self.changed[key] = group
        return group

    def at(self, target: TargetKey) -> Collection[Group]:
        """The groups of a controller: one, or one for each value of a scope."""
        return self._at[target].values() if target in self._at else ()

    def loose(self, namespace: str) -> Collection[Group]:
        """The groups of a namespace that are found by labels only."""
        return self._loose[namespace].values() if namespace in self._loose else ()

    def row(self, group: Group, container: str, now: int) -> int:
        """The row of a container, made if it is new."""
        row = group.rows.get(container)
        if row is None:
            row = group.rows[container] = int(self.usage.new_rows(1, now)[0])
            self.changed[group.key] = group
        return row

    def release(self, group: Group, containers: Iterable[str]) -> None:
        """Forget rows. Pods that still name such a container go on, with an empty row."""
        for container in containers:
            row = group.rows[container]
            if group.containers[container]:
                self.usage.clear_rows(np.array([row]))
            else:
                del group.rows[container]
                self.usage.free_rows(np.array([row]))
            self.changed[group.key] = group

    def abandon(self, group: Group, container: str) -> None:
        """Forget a row though (finished) pods name it; what they may still send goes nowhere."""
        if self._sink is None:
            self._sink = int(self.usage.new_rows(1, 0)[0])
        for _, instance in self.feeding(group, container):
            self.usage.row[instance] = self._sink
        self.usage.free_rows(np.array([group.rows.pop(container)]))
        self.changed[group.key] = group

    def drop_group(self, group: Group) -> None:
        """Forget a group without pods, and its rows."""
        self.release(group, list(group.rows))
        del self.groups[group.key]
        _take_out(self._at, group.key.target, group)
        _take_out(self._loose, group.key.namespace, group)

    # Pods

    def put(self, record: PodRecord, key: GroupKey, labels: Labels | None, now: int) -> Tracked:
        """Add a pod, or replace its record. One that returns under its name goes on where it was."""
        present = self.pods.get(record.key)
        group = self.group(key, labels)
        if present is not None:
            same = present.group is group and present.record.shape is record.shape
            if same and not present.gone:
                present.record = record
                return present
            self._leave(present)
        instances = self._instances(record, group, present, now)
        if present is None:
            present = self.pods[record.key] = Tracked(record, group, instances)
        present.record, present.group, present.instances = record, group, instances
        self._enter(present)
        return present

    def remove(self, key: PodKey) -> None:
        """The pod is deleted; until :meth:`sweep` it can still be found."""
        tracked = self.pods.get(key)
        if tracked is not None and not tracked.gone:
            self._leave(tracked)
            tracked.gone = True
            self._gone.append(tracked)

    def sweep(self) -> list[Tracked]:
        """Forget the deleted pods for good, and return them."""
        leaving = [tracked for tracked in self._gone if tracked.gone]
        self._gone = []
        for tracked in leaving:
            if self.pods.get(tracked.record.key) is tracked:
                del self.pods[tracked.record.key]
                self.usage.free_instances(np.array(tracked.instances, dtype=np.int64))
        return leaving

    def find(self, namespace: str, pod: str, container: str) -> int | None:
        """The instance of a pod's container, None if it is not tracked."""
        tracked = self.pods.get((namespace, pod))
        return None if tracked is None else tracked.instance(container)

    def feeding(self, group: Group, container: str) -> Iterator[tuple[str, int]]:
        """(pod name, instance) of all that feed a row."""
        for key in group.pods:
            tracked = self.pods[key]
            instance = tracked.instance(container)
            if instance is not None:
                yield tracked.record.name, instance

    def _instances(
        self, record: PodRecord, group: Group, former: Tracked | None, now: int
    ) -> tuple[int, ...]:
        """One instance for each container; those that the pod had before keep their windows and peaks."""
        names = record.shape.names
        kept = {}
        if former is not None:
            kept = dict(zip(former.record.shape.names, former.instances, strict=True))
            ended = [instance for name, instance in kept.items() if name not in record.shape.index]
            self.usage.free_instances(np.array(ended, dtype=np.int64))
        rows = {name: self.row(group, name, now) for name in names}
        added = [name for name in rows if name not in kept]
        fresh = self.usage.new_instances(np.array([rows[name] for name in added], dtype=np.int64))
        found = {name: instance for name, instance in kept.items() if name in rows}
        for name, instance in found.items():
            self.usage.row[instance] = rows[name]
        found.update(zip(added, fresh.tolist(), strict=True))
        return tuple(found[name] for name in names)

    def _enter(self, tracked: Tracked) -> None:
        tracked.gone = False
        group = tracked.group
        group.pods.add(tracked.record.key)
        for name in tracked.record.shape.names:
            group.containers[name] += 1
        self.changed[group.key] = group

    def _leave(self, tracked: Tracked) -> None:
        if tracked.gone:
            return
        group = tracked.group
        group.pods.discard(tracked.record.key)
        group.containers.subtract(tracked.record.shape.names)
        group.containers = +group.containers
        self.changed[group.key] = group

    # Rows as wholes

    def rows(self) -> Ints:
        """All rows, ``int64[n]``."""
        return np.array(
            [row for group in self.groups.values() for row in group.rows.values()], dtype=np.int64
        )


def _take_out(index: dict[K, dict[GroupKey, Group]], key: K, group: Group) -> None:
    groups = index.get(key)
    if groups is not None and groups.pop(group.key, None) is not None and not groups:
        del index[key]
