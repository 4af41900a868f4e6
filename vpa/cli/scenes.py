"""A recommender's state made from objects and usage files, for one tick without a cluster."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

import numpy as np

from vpa import checkpoints, knowledge, policies, statuses, times
from vpa.cli.objects import Item, Objects
from vpa.cli.usagefiles import Line, Where
from vpa.cli.workloads import Workloads
from vpa.histograms import NEVER
from vpa.matching import TargetKey, age_order, by_strength, controller_of, target_key
from vpa.objects.autoscalers import (
    Recommendation,
    Status,
    VerticalPodAutoscaler,
)
from vpa.objects.checkpoints import Checkpoint
from vpa.objects.limits import LimitRange
from vpa.objects.nodes import Node
from vpa.objects.pods import Pod
from vpa.recommendations import Pass, Roster
from vpa.rules import Rules
from vpa.scopes import HOSTNAME, scope_label, scope_value, splitting_label
from vpa.selectors import Labels
from vpa.settings import DEFAULT_RECOMMENDER, Aggregation, Behaviour, Estimation, Selection
from vpa.sizes.limit_ranges import NO_RANGES, ranges_by_namespace
from vpa.usage import Usage

MISSING_TARGET_REF = "targetRef not defined. If this is a v1beta1 object, switch to v1"


@dataclass(frozen=True, kw_only=True)
class Options:
    """All flags that change a recommendation."""

    behaviour: Behaviour = field(default_factory=Behaviour)
    rules: Rules = field(default_factory=Rules)
    selection: Selection = field(default_factory=Selection)
    estimation: Estimation = field(default_factory=Estimation)
    aggregation: Aggregation = field(default_factory=Aggregation)
    recommender_name: str = DEFAULT_RECOMMENDER


VpaKey = tuple[str, str]
"""Namespace and name."""


@dataclass
class Entry:
    """One VPA of the scene."""

    item: Item
    target: TargetKey | None
    problem: str | None
    """Why the target cannot be used; None: it can."""
    pods: list[Pod] = field(default_factory=list)
    containers: set[str] = field(default_factory=set)
    """What pods and the pod template name."""
    parts: list[str | None] = field(default_factory=list)
    """The values of the VPA's scope that have a recommendation of their own; None where nothing splits."""

    @property
    def vpa(self) -> VerticalPodAutoscaler:
        found = self.item.object
        assert isinstance(found, VerticalPodAutoscaler)
        return found

    @property
    def key(self) -> VpaKey:
        """Namespace and name."""
        return self.item.namespace, self.item.name

    def part(self, scope: str | None) -> tuple[VpaKey, str | None]:
        """The roster's key of what is recommended for one value of the scope, or without any."""
        return self.key, scope


class Scene:
    """Objects, the rows of their containers, and what usage lines mean for them."""

    def __init__(self, objects: Objects, options: Options) -> None:
        self.options = options
        self.usage = Usage(options.aggregation)
        self.roster = Roster(self.usage, options.estimation)
        self.workloads = Workloads(objects)
        self.notices: list[str] = []
        self.unknown: dict[str, int] = {}
        """Pod (or pod and container) of lines that no object explains → number of such lines' containers."""
        self.entries = [
            self._entry(item) for item in objects.of_kind("VerticalPodAutoscaler") if self._ours(item)
        ]
        self._by_key = {entry.key: entry for entry in reversed(self.entries)}
        self._of_target: defaultdict[TargetKey, list[Entry]] = defaultdict(list)
        self._in_namespace: defaultdict[str, list[tuple[Entry, TargetKey]]] = defaultdict(list)
        for entry in self.entries:
            if entry.problem is None and entry.target is not None:
                self._of_target[entry.target].append(entry)
                self._in_namespace[entry.target.namespace].append((entry, entry.target))
                template = self.workloads.template(entry.target)
                named = template.spec.containers if template is not None else None
                entry.containers.update(container.name for container in named or ())
        self._ranges = ranges_by_namespace(objects.of(LimitRange), rules=options.rules)
        self._nodes = {node.metadata.name: node.metadata.labels or {} for node in objects.of(Node)}
        self._pods = {(pod.metadata.namespace, pod.metadata.name): pod for pod in objects.of(Pod)}
        self._entries_of: defaultdict[tuple[str, str], list[Entry]] = defaultdict(list)
        self._rows: defaultdict[TargetKey, dict[tuple[str | None, str], int]] = defaultdict(dict)
        """Target → (value of the scope, container) → row."""
        self._instances: dict[tuple[TargetKey, str, str], int] = {}
        for pod in self._pods.values():
            self._place(pod)
        for checkpoint in objects.of(Checkpoint):
            self._load(checkpoint)

    # VPAs and their targets

    def _ours(self, item: Item) -> bool:
        named = [entry.name for entry in item.object.spec.recommenders or ()]
        name = self.options.recommender_name
        wanted = name in named or (not named and name == DEFAULT_RECOMMENDER)
        return wanted and self.options.selection.handles(item.namespace)

    def _entry(self, item: Item) -> Entry:
        vpa: VerticalPodAutoscaler = item.object
        target = target_key(vpa)
        ref = vpa.spec.target_ref
        if target is None or ref is None:
            return Entry(item, None, f"Cannot read targetRef. Reason: {MISSING_TARGET_REF}")
        if not self.workloads.is_known(target):
            missing = f"{target.kind} {target.namespace}/{target.name} does not exist"
            return Entry(item, target, f"Cannot read targetRef. Reason: {missing}")
        if self.workloads.parent(target) is not None:
            text = f"{ref.api_version}.{ref.kind}/{ref.name}"
            return Entry(
                item,
                target,
                f"The target {text} has a parent controller but it should point to a topmost well-known or "
                "scalable controller",
            )
        return Entry(item, target, None)

    def _is_of(self, pod: Pod, target: TargetKey) -> bool:
        """Whether a pod is the target's: by the selector and, where its owner can be told, by that too."""
        if pod.metadata.namespace != target.namespace:
            return False
        known = self.workloads.template(target) is not None
        if controller_of(pod.metadata) is not None and (
            self.options.rules.history_by_controller or not known
        ):
            top = self.workloads.topmost(pod)
            if top is not None and top != target:
                return False
        elif not known:
            return False  # of a target of an unknown kind only owners tell
        return self.workloads.selector(target).matches(pod.metadata.labels)

    # Pods, rows and instances

    def _place(self, pod: Pod) -> None:
        if pod.status.phase == "Pending":
            return  # the recommender does not see it yet
        for entry, target in self._in_namespace[pod.metadata.namespace]:
            if self._is_of(pod, target):
                entry.pods.append(pod)
                entry.containers.update(container.name for container in pod.spec.containers or ())
                self._entries_of[pod.metadata.namespace, pod.metadata.name].append(entry)
                for container in pod.spec.containers or ():
                    self._instance(target, pod.metadata.name, container.name)

    def _split(self, target: TargetKey) -> str:
        """The node label that splits a target, if it can be read: most labels need the Nodes."""
        label = splitting_label(entry.vpa for entry in self._of_target[target])
        if label in ("", HOSTNAME) or self._nodes:
            return label
        notice = (
            f"{target.kind} {target.namespace}/{target.name} is split by the node label {label}: "
            "without Nodes among the objects its groups are not known"
        )
        if notice not in self.notices:
            self.notices.append(notice)
        return ""

    def _scope(self, target: TargetKey, pod: str) -> str | None:
        """The value that splits the pod's part off; None where nothing splits, and for pods of the past."""
        known = self._pods.get((target.namespace, pod))
        return None if known is None else scope_value(self._split(target), known.spec.node_name, self._nodes)

    def _row(self, target: TargetKey, container: str, scope: str | None = None) -> int:
        rows = self._rows[target]
        row = rows.get((scope, container))
        if row is None:
            row = rows[scope, container] = int(self.usage.new_rows(1, 0)[0])
            if self.options.behaviour.feature_gates.per_vpa_config:
                self._configure(target, container, row)
        return row

    def _configure(self, target: TargetKey, container: str, row: int) -> None:
        """The settings of the VPA that holds: the oldest one."""
        vpas = sorted((entry.vpa for entry in self._of_target[target]), key=age_order)
        for vpa in vpas[:1]:
            policy = policies.container_policy(vpa.spec.resource_policy, container)
            self.usage.configure(np.array([row]), policy)

    def _instance(self, target: TargetKey, pod: str, container: str) -> int:
        key = (target, pod, container)
        instance = self._instances.get(key)
        if instance is None:
            row = self._row(target, container, self._scope(target, pod))
            instance = self._instances[key] = int(self.usage.new_instances(np.array([row]))[0])
        return instance

    def instance(self, target: TargetKey, pod: str, container: str) -> int | None:
        """The instance of a container of the present or past; None where no VPA would see it."""
        seen = any(self._is_present(entry, container) for entry in self._of_target[target])
        return self._instance(target, pod, container) if seen else None

    def restart_row(self, row: int) -> None:
        """Forget what a checkpoint has told of a row."""
        self.usage.clear_rows(np.array([row]))
        feeding = np.array([one for one in self._instances.values() if self.usage.row[one] == row])
        for column in (self.usage.cpu_time, self.usage.memory_time, self.usage.window_end):
            column[feeding] = NEVER
        self.usage.memory_peak[feeding] = 0
        self.usage.oom_peak[feeding] = 0

    def locate(self, line: Line) -> Where:
        """The instances that a usage line feeds: one for each target that the pod belongs to."""
        pod = self._pods.get((line.namespace, line.pod))
        if pod is not None:
            if line.container not in {container.name for container in pod.spec.containers or ()}:
                if line.container not in {container.name for container in pod.spec.init_containers or ()}:
                    self._miss(f"{line.namespace}/{line.pod} (container {line.container})")
                return ()
            entries = self._entries_of[line.namespace, line.pod]
            targets = [entry.target for entry in entries if entry.target is not None]
        elif line.owner is not None or line.labels is not None:
            targets = self._past(line)
        else:
            self._miss(f"{line.namespace}/{line.pod}")
            return ()
        return tuple(dict.fromkeys(self._instance(target, line.pod, line.container) for target in targets))

    def _miss(self, what: str) -> None:
        self.unknown[what] = self.unknown.get(what, 0) + 1

    def _past(self, line: Line) -> list[TargetKey]:
        """The targets of a pod that is no more, by its owner or by its labels."""
        labels: dict[str, str] | None = line.labels
        targets = [target for _, target in self._in_namespace[line.namespace]]
        if line.owner is not None:
            owner = TargetKey(line.namespace, line.owner.kind, line.owner.name)
            top = self.workloads.topmost_of(owner, labels) or owner
            return [target for target in targets if target == top]
        return [target for target in targets if self._selects(target, labels)]

    def _selects(self, target: TargetKey, labels: Labels | None) -> bool:
        return self.workloads.template(target) is not None and self.workloads.selector(target).matches(labels)

    # Checkpoints

    def _load(self, checkpoint: Checkpoint) -> None:
        namespace, spec = checkpoint.metadata.namespace, checkpoint.spec
        entry = self._by_key.get((namespace, spec.vpa_object_name))
        if entry is None or entry.target is None:
            return
        if not self._is_present(entry, spec.container_name):
            return
        row = self._row(entry.target, spec.container_name)
        peaks = []
        if self.options.rules.running_peaks:
            peaks = checkpoints.decode_peaks(checkpoint.metadata.annotations, checkpoint.status)
        names = [pod.metadata.name for pod in entry.pods]
        keys = {name: (entry.target, name, spec.container_name) for name in names}
        found = {name: self._instances[key] for name, key in keys.items() if key in self._instances}
        feeding = {name: one for name, one in found.items() if self.usage.row[one] == row}
        try:
            knowledge.adopt(self.usage, row, checkpoints.decode(checkpoint.status), peaks, feeding, now=0)
        except checkpoints.CheckpointError as error:
            vpa = f"{namespace}/{spec.vpa_object_name}"
            self.notices.append(f"cannot load checkpoint for VPA {vpa}. Reason: {error}")

    def _is_present(self, entry: Entry, container: str) -> bool:
        """Whether a pod or the pod template names the container; where neither is known, it may exist."""
        if not self.options.rules.present_containers or entry.target is None or entry.problem is not None:
            return True
        unknown = not entry.pods and self.workloads.template(entry.target) is None
        return unknown or container in entry.containers

    # The tick

    def run(self) -> Pass:
        """One pass over all VPAs."""
        for entry in self.entries:
            rows = {} if entry.target is None else self._rows[entry.target]
            seen = {key: row for key, row in rows.items() if self._is_present(entry, key[1])}
            entry.parts = [None]
            if scope_label(entry.vpa):
                entry.parts = [*sorted({scope for scope, _ in seen if scope is not None})]
            for part in entry.parts:
                self.roster.put(entry.part(part), entry.vpa, _sight(seen, part))
        return self.roster.run()

    def recommendation(self, entry: Entry, part: str | None, run: Pass) -> Recommendation:
        """What a VPA recommends for one value of its scope."""
        return self.roster.recommendation(entry.part(part), run)

    def days(self, entry: Entry) -> float:
        """How many days of data are known of the VPA's containers, the least of them."""
        return min((self.roster.confidence(entry.part(part)) for part in entry.parts), default=0.0)

    def status(self, entry: Entry, run: Pass, now: datetime) -> Status:
        """What the recommender would write for one VPA."""
        recommendation, groups = Recommendation(), None
        if scope_label(entry.vpa):
            groups = statuses.by_scope((part, self.recommendation(entry, part, run)) for part in entry.parts)
        else:
            recommendation = self.recommendation(entry, None, run)
        known = statuses.Known(
            recommendation=recommendation,
            groups=groups,
            pods=len(entry.pods),
            days=self.days(entry),
            problem=entry.problem or "",
            unreadable=entry.problem is not None,  # it may just not have been given to us
            rivals=self._rivals(entry),
            pod=min(entry.pods, key=lambda pod: pod.metadata.name, default=None),
            ranges=self._ranges.get(entry.item.namespace, NO_RANGES),
        )
        wanted = statuses.wanted(entry.vpa, known, rules=self.options.rules)
        return statuses.compose(entry.vpa.status, wanted, now)

    def _rivals(self, entry: Entry) -> list[str]:
        """All VPAs of the target, this one included; the one that pods follow first."""
        behaviour = self.options.behaviour
        found = by_strength(
            self.workloads.rivals(entry.target) if entry.target is not None else [],
            rules=self.options.rules,
            gates=behaviour.feature_gates,
            default_mode=behaviour.default_update_mode,
        )
        return [vpa.metadata.name for vpa in found]

    def moment(self, time: int) -> datetime:
        """Nanoseconds as a datetime."""
        return times.to_datetime(time)


def _sight(seen: Mapping[tuple[str | None, str], int], part: str | None) -> dict[str, list[int]]:
    """Container → the rows that one part sees: its own and those that nothing splits; all without a part."""
    found: dict[str, list[int]] = {}
    for (scope, container), row in seen.items():
        if part is None or scope in (part, None):
            found.setdefault(container, []).append(row)
    return found
