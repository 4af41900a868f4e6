"""The VPAs that this recommender serves, and which rows of history each of them sees.

A VPA sees the groups of its target; on Deckhouse, where ``spec.scope`` splits a DaemonSet by a node label, it
has one *part* for each value. The roster (`vpa.recommendations`) is told of every change. No I/O.
"""

from __future__ import annotations

import enum
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

import numpy as np

from recommender.records import Labels
from recommender.tracking import Group, GroupKey, Tracker
from vpa.cluster.targets import Target
from vpa.matching import TargetIndex, TargetKey, by_strength, target_key
from vpa.numerics import Ints
from vpa.objects.autoscalers import ResourcePolicy, VerticalPodAutoscaler
from vpa.objects.workloads import WELL_KNOWN
from vpa.policies import container_policy
from vpa.recommendations import Roster
from vpa.rules import Rules
from vpa.scopes import scope_label, splitting_label
from vpa.selectors import NOTHING, Selector
from vpa.settings import DEFAULT_RECOMMENDER, Behaviour, Selection

VpaKey = tuple[str, str]
"""(namespace, name)"""


class HistoryState(enum.Enum):
    """How far the history from Prometheus is that a VPA waits for."""

    SETTLED = "settled"
    """None is to come."""
    FIRST = "first"
    """None has come; a recommendation from thin data is not published yet."""
    READING = "reading"
    """More is to come; what is known serves meanwhile."""
    LATE = "late"
    """It may still come, but nobody waits for it any more."""


class PartKey(NamedTuple):
    """A VPA's key in the roster; *scope* is None unless the VPA splits its target by a node label."""

    namespace: str
    name: str
    scope: str | None = None


Sight = dict[str, tuple[int, ...]]
"""Container → the rows whose sum is its history."""


def is_served(vpa: VerticalPodAutoscaler, recommender: str, selection: Selection) -> bool:
    """Whether the VPA is for this recommender and in a namespace that it handles."""
    names = [entry.name for entry in vpa.spec.recommenders or ()]
    if recommender == DEFAULT_RECOMMENDER:
        chosen = not names or recommender in names
    else:
        chosen = recommender in names
    return chosen and selection.handles(vpa.metadata.namespace)


class Served:
    """One VPA."""

    __slots__ = (
        "controller",
        "fetching",
        "groups",
        "history",
        "impressions",
        "initial",
        "key",
        "parts",
        "pods",
        "problem",
        "resolved",
        "selector",
        "template",
        "temporary",
        "told",
        "vpa",
    )

    def __init__(self, vpa: VerticalPodAutoscaler) -> None:
        self.vpa = vpa
        self.key: VpaKey = (vpa.metadata.namespace, vpa.metadata.name)
        self.controller: TargetKey | None = target_key(vpa)
        self.resolved = False
        """The target has been looked up at all; until then nothing can be said."""
        self.selector: Selector = NOTHING
        self.problem = ""
        """Why the target cannot be used, as the condition says it."""
        self.temporary = False
        """The target could not be asked for; that says nothing about it."""
        self.template: frozenset[str] | None = None
        """Containers of the pod template, None where nobody knows them."""
        self.groups: list[Group] = []
        self.parts: dict[str | None, Sight] = {}
        self.told: tuple[ResourcePolicy | None, dict[str, str] | None] = (None, None)
        """What of the VPA the roster has seen."""
        self.pods = 0
        self.initial: dict[str, int] = {}
        """Upstream's way with checkpoints: container → a row of its own, which only this VPA sees. Ours too
        while history is to come."""
        self.history = HistoryState.SETTLED
        self.impressions: set[str] = set()
        """Containers of which such a row holds the newest days of history in place of the checkpoint."""
        self.fetching: set[str] = set()
        """Sources of history that have not delivered yet; until then nothing is published."""

    def part(self, scope: str | None) -> PartKey:
        """The key of a part."""
        return PartKey(*self.key, scope)

    def part_keys(self) -> list[PartKey]:
        """All its keys in the roster."""
        return [self.part(scope) for scope in self.parts]


class Autoscalers:
    """All VPAs: those that we serve with what they see, and the others as rivals of ours."""

    def __init__(self, tracker: Tracker, roster: Roster, *, rules: Rules, behaviour: Behaviour) -> None:
        self.served: dict[VpaKey, Served] = {}
        self.everyone = TargetIndex()
        """Every VPA that exists, whoever serves it."""
        self._tracker = tracker
        self._roster = roster
        self._rules = rules
        self._behaviour = behaviour
        self._of_target: defaultdict[TargetKey, set[VpaKey]] = defaultdict(set)
        self._in_namespace: defaultdict[str, set[VpaKey]] = defaultdict(set)
        self.dirty: set[VpaKey] = set()
        """Those whose sight, or status, may have to change."""

    def __iter__(self) -> Iterator[Served]:
        return iter(self.served.values())

    @property
    def by_controller(self) -> bool:
        """Whether history belongs to the controller."""
        return self._rules.history_by_controller

    # VPAs come, change and go

    def note(self, old: VerticalPodAutoscaler | None, new: VerticalPodAutoscaler | None) -> None:
        """Any VPA of the cluster changed; rivals of it are looked at again."""
        for vpa in (old, new):
            key = target_key(vpa) if vpa is not None else None
            if key is not None:
                self.dirty |= self._of_target.get(key, set())
        if new is not None:
            self.everyone.put(new)
        elif old is not None:
            self.everyone.remove(old.metadata.namespace, old.metadata.name)

    def put(self, vpa: VerticalPodAutoscaler) -> Served:
        """Serve a VPA, or take its changed self."""
        key = (vpa.metadata.namespace, vpa.metadata.name)
        served = self.served.get(key)
        if served is None:
            served = self.served[key] = Served(vpa)
            self._in_namespace[key[0]].add(key)
            self._target(served, served.controller)
        elif target_key(served.vpa) != target_key(vpa):
            self._target(served, target_key(vpa))
            served.template, served.selector = None, NOTHING
        served.vpa = vpa
        self.dirty.add(key)
        return served

    def update(self, vpa: VerticalPodAutoscaler) -> None:
        """Take a VPA of which only the status has changed, by our own doing."""
        self.served[vpa.metadata.namespace, vpa.metadata.name].vpa = vpa
        self.everyone.put(vpa)

    def drop(self, key: VpaKey) -> None:
        """Serve the VPA no longer; its rows stay with their controllers."""
        served = self.served.pop(key, None)
        if served is None:
            return
        for part in served.part_keys():
            self._roster.drop(part)
        if served.initial:
            self._tracker.usage.free_rows(_ints(served.initial.values()))
        self._in_namespace[key[0]].discard(key)
        self._target(served, None)
        self.dirty.discard(key)

    def _target(self, served: Served, target: TargetKey | None) -> None:
        if served.controller is not None:
            self._of_target[served.controller].discard(served.key)
        if target is not None:
            self._of_target[target].add(served.key)
        served.controller = target

    def resolved(self, served: Served, target: Target) -> None:
        """What is known of the VPA's target now."""
        keep = self._rules.unreadable_targets_keep and bool(target.problem)
        if not served.resolved:
            served.resolved = True
            self.dirty.add(served.key)
        if (target.problem, target.temporary) != (served.problem, served.temporary):
            served.problem, served.temporary = target.problem, target.temporary
            self.dirty.add(served.key)
        if target.key is not None and not keep and target.key.target != served.controller:
            self._target(served, target.key.target)
            self.dirty.add(served.key)
        if keep:
            return
        if not self._rules.history_by_controller and (
            served.selector.requirements != target.selector.requirements
        ):
            self._forget_initial(served)
        template = target.record.regular_containers if target.record is not None else None
        known = None if template is None else frozenset(template)
        if (served.selector, served.template) != (target.selector, known):
            served.selector, served.template = target.selector, known
            self.dirty.add(served.key)

    def _forget_initial(self, served: Served) -> None:
        """Upstream makes a VPA anew when its selector changes, and so forgets what was loaded for it."""
        if served.initial:
            self._tracker.usage.free_rows(_ints(served.initial.values()))
            served.initial = {}
            self.dirty.add(served.key)

    # Who is concerned

    def concerned(self, group: Group) -> set[VpaKey]:
        """The VPAs that see a group, or would."""
        found = set(self.at(group.key.target))
        if group.labels is not None:
            found.update(key for key in self.in_namespace(group.key.namespace) if self._selects(key, group))
        return found

    def at(self, target: TargetKey) -> Iterable[VpaKey]:
        """The VPAs of a controller."""
        return self._of_target.get(target, ())

    def in_namespace(self, namespace: str) -> Iterable[VpaKey]:
        """The VPAs of a namespace."""
        return self._in_namespace.get(namespace, ())

    def wants(self, group: GroupKey, labels: Labels | None) -> bool:
        """Whether any VPA would see pods of this group; *labels* where it is found by them."""
        if self._of_target.get(group.target):
            return True
        candidate = Group(group, labels)
        return labels is not None and any(
            self._selects(key, candidate) for key in self.in_namespace(group.namespace)
        )

    def scope_of(self, target: TargetKey) -> str:
        """The node label by which the oldest scoped VPA of a DaemonSet splits it, "" for none."""
        return splitting_label(self.served[key].vpa for key in self.at(target))

    def rivals(self, served: Served) -> list[VerticalPodAutoscaler]:
        """All VPAs of the same target, this one included; the one that pods follow comes first."""
        target = target_key(served.vpa)
        found = self.everyone.at(target) if target is not None else []
        return by_strength(
            found or [served.vpa],
            rules=self._rules,
            gates=self._behaviour.feature_gates,
            default_mode=self._behaviour.default_update_mode,
        )

    def _selects(self, key: VpaKey, group: Group) -> bool:
        served = self.served[key]
        if self._rules.history_by_controller and served.controller and served.controller.kind in WELL_KNOWN:
            return False  # a controller adopts what it selects; what it does not own is not its own
        return served.selector.matches(group.labels)

    # What they see

    def look(self, served: Served) -> None:
        """Find the VPA's groups and rows again, and tell the roster what has changed."""
        served.groups = self._groups(served)
        served.pods = sum(len(group.pods) for group in served.groups)
        parts = self._parts(served)
        told = (served.vpa.spec.resource_policy, served.vpa.metadata.annotations)
        if parts == served.parts and told == served.told:
            return
        for scope in served.parts.keys() - parts.keys():
            self._roster.drop(served.part(scope))
        for scope, sight in parts.items():
            if told != served.told or sight != served.parts.get(scope):
                self._roster.put(served.part(scope), served.vpa, sight)
        served.parts, served.told = parts, told
        if self._behaviour.feature_gates.per_vpa_config:
            self._configure(served)

    def _groups(self, served: Served) -> list[Group]:
        found: list[Group] = []
        if self._rules.history_by_controller and served.controller is not None:
            found += self._tracker.at(served.controller)
        if not served.selector.nothing:
            loose = self._tracker.loose(served.key[0])
            found += [group for group in loose if self._selects(served.key, group)]
        return found

    def _parts(self, served: Served) -> dict[str | None, Sight]:
        present = self.present(served)
        if not scope_label(served.vpa):
            return {None: _sight(served.groups, served.initial, present)}
        shared = [group for group in served.groups if group.key.scope is None]
        split = {group.key.scope: group for group in served.groups if group.key.scope is not None}
        return {scope: _sight([split[scope], *shared], served.initial, present) for scope in sorted(split)}

    def present(self, served: Served) -> frozenset[str] | None:
        """The containers that pods or the template name; None where nobody knows, or it does not matter."""
        if not self._rules.present_containers:
            return None
        named = {name for group in served.groups for name in group.containers}
        if served.template is None:
            return frozenset(named) or None
        return served.template | named

    # Settings of container policies

    def _configure(self, served: Served) -> None:
        """Give the rows the OOM and window settings of the policy (feature gate PerVPAConfig)."""
        if self._rules.settings_end_with_policy and self.rivals(served)[0].metadata.name != served.key[1]:
            return
        for sight in served.parts.values():
            for container, rows in sight.items():
                if self._rules.settings_end_with_policy:
                    self._tracker.usage.reset_settings(_ints(rows))
                policy = container_policy(served.vpa.spec.resource_policy, container)
                self._tracker.usage.configure(_ints(rows), policy)


def rows_of(served: Served, container: str) -> list[int]:
    """All rows of a container, also of one that is not seen any more but not yet forgotten."""
    rows = {group.rows[container] for group in served.groups if container in group.rows}
    return sorted(rows | ({served.initial[container]} if container in served.initial else set()))


def containers_of(served: Served) -> list[str]:
    """All containers that have rows."""
    return sorted({name for group in served.groups for name in group.rows} | served.initial.keys())


def _sight(groups: Iterable[Group], initial: Mapping[str, int], present: frozenset[str] | None) -> Sight:
    found: defaultdict[str, list[int]] = defaultdict(list)
    for group in groups:
        for container, row in group.rows.items():
            found[container].append(row)
    for container, row in initial.items():
        found[container].append(row)
    return {
        container: tuple(rows) for container, rows in found.items() if present is None or container in present
    }


def _ints(rows: Iterable[int]) -> Ints:
    return np.array([*rows], dtype=np.int64)
