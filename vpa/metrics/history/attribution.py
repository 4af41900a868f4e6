"""Whose was a pod that is long gone? Its owners say it best, then its labels, and at last its name. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache

from vpa.metrics.prometheus.decoding import Labels, Matrix
from vpa.metrics.prometheus.names import Names
from vpa.objects.meta import LabelSelector

CLUSTER = "cluster"
"""The cluster itself says it: the pod is there."""
OWNER = "owner"
"""Owner metrics of kube-state-metrics say it."""
LABELS = "labels"
"""The pod's labels match the selector of one workload only."""
NAME = "name"
"""The pod's name is as the workload's pods are called."""

PodKey = tuple[str, str]
"""(namespace, pod)."""
Controller = tuple[str, str]
"""(kind, name) of a controller in the pod's namespace."""

_RANDOM = "[a-z0-9]{5}"
_HASH = "[a-z0-9]{1,10}"
_LONGEST_BASE = 58
"""Kubernetes cuts what stands before the five random characters of a generated name."""

_SUFFIX: Mapping[str, str] = {
    "Deployment": f"-{_HASH}-{_RANDOM}",
    "ReplicaSet": f"-{_RANDOM}",
    "ReplicationController": f"-{_RANDOM}",
    "DaemonSet": f"-{_RANDOM}",
    "StatefulSet": r"-\d+",
    "Job": rf"(?:-\d+)?-{_RANDOM}",
    "CronJob": rf"-\d+(?:-\d+)?-{_RANDOM}",
}
_ANY_SUFFIX = "-.+"
_PARENTS: Mapping[str, tuple[str, str]] = {
    "ReplicaSet": ("Deployment", f"-{_HASH}"),
    "Job": ("CronJob", r"-\d+"),
}

NOBODY: Controller = ("", "")
"""The owner of what has none."""


@dataclass(frozen=True, slots=True)
class Workload:
    """A workload that pods of the past may have belonged to."""

    namespace: str
    kind: str
    name: str
    selector: LabelSelector | None = None


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whose a pod was, and how that is known; no controller: nobody knows."""

    controller: Controller | None
    how: str = ""


UNKNOWN = Verdict(None)


@dataclass(slots=True)
class Attribution:
    """All that is known of pods and owners; asked pod by pod."""

    workloads: Iterable[Workload] = ()
    live: Mapping[PodKey, Controller] = field(default_factory=dict)
    """Top-most controllers of the pods that exist."""
    owners: dict[PodKey, Controller] = field(default_factory=dict)
    """Direct owners of pods, present and past."""
    parents: dict[tuple[str, str, str], Controller] = field(default_factory=dict)
    """(namespace, kind, name) of a ReplicaSet or Job → its owner, perhaps `NOBODY`."""
    labels: dict[PodKey, list[Labels]] = field(default_factory=dict)
    """Label sets that a pod had, names as Prometheus writes them."""
    _by_namespace: dict[str, list[Workload]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for workload in self.workloads:
            self._by_namespace.setdefault(workload.namespace, []).append(workload)

    def of(self, namespace: str, pod: str) -> Verdict:
        """Whose *pod* is or was."""
        key = (namespace, pod)
        if key in self.live:
            return Verdict(self.live[key], CLUSTER)
        if key in self.owners:
            return Verdict(self._top(namespace, self.owners[key]), OWNER)
        candidates = self._by_namespace.get(namespace, [])
        if key in self.labels:
            fitting = [one for one in candidates if _selects(one.selector, self.labels[key])]
            if len(fitting) == 1:
                return Verdict((fitting[0].kind, fitting[0].name), LABELS)
            candidates = fitting or candidates
        named = [
            one
            for one in candidates
            if pod.startswith(one.name[: _LONGEST_BASE - 12])
            and _named_like(one.kind, one.name).fullmatch(pod)
        ]
        if not named:
            return UNKNOWN
        # "web" and "web-canary" both fit "web-canary-6d4cf56db6-x2x4z"; the longer name says more.
        best = max(named, key=lambda one: (len(one.name), one.kind, one.name))
        return Verdict((best.kind, best.name), NAME)

    def _top(self, namespace: str, owner: Controller) -> Controller:
        """The owner's owner, as far up as is known."""
        for _ in range(8):
            kind, name = owner
            parent = self.parents.get((namespace, kind, name), self._parent_by_name(namespace, owner))
            if not any(parent):
                return owner
            owner = parent
        return owner

    def _parent_by_name(self, namespace: str, owner: Controller) -> Controller:
        """A ReplicaSet or Job that left no trace of its owner is called like the workload it was part of."""
        kind, name = owner
        parent_kind, suffix = _PARENTS.get(kind, ("", ""))
        for one in self._by_namespace.get(namespace, ()):
            if one.kind == parent_kind and re.fullmatch(re.escape(one.name) + suffix, name):
                return (one.kind, one.name)
        return NOBODY

    def learn_owners(self, matrix: Matrix, *, kind: str, name_label: str) -> None:
        """Owner metrics: of pods (*kind* ``Pod``, label ``pod``), ReplicaSets or Jobs."""
        for labels in matrix.labels:
            # Without honor_labels Prometheus puts kube-state-metrics' own labels in their place.
            namespace = labels.get("exported_namespace") or labels.get("namespace", "")
            name = labels.get(f"exported_{name_label}") or labels.get(name_label, "")
            owner = (labels.get("owner_kind", ""), labels.get("owner_name", ""))
            if not (namespace and name) or labels.get("owner_is_controller") == "false":
                continue
            if "<none>" in owner or not all(owner):
                owner = NOBODY
            if kind != "Pod":
                self.parents[namespace, kind, name] = owner
            elif any(owner) and owner[0] != "Node":
                self.owners[namespace, name] = owner

    def learn_labels(self, matrix: Matrix, names: Names) -> None:
        """Pod labels: all labels that begin with the prefix, without it."""
        prefix = names.pod_labels_prefix
        for labels in matrix.labels:
            namespace = labels.get(names.pod_labels_namespace)
            pod = labels.get(names.pod_labels_pod)
            if namespace and pod and prefix:
                own = {
                    name.removeprefix(prefix): value
                    for name, value in labels.items()
                    if name.startswith(prefix)
                }
                self.labels.setdefault((namespace, pod), []).append(own)


@lru_cache(maxsize=1 << 14)
def _named_like(kind: str, name: str) -> re.Pattern[str]:
    """Names of the pods of a workload."""
    suffix = _SUFFIX.get(kind, _ANY_SUFFIX)
    pattern = re.escape(name) + suffix
    if len(name) > _LONGEST_BASE - 12 and suffix.endswith(_RANDOM):
        pattern += f"|{re.escape(name[: _LONGEST_BASE - 12])}[a-z0-9.-]*{_RANDOM}"
    return re.compile(pattern)


def spellings(label: str) -> tuple[str, str]:
    """How a pod label's name appears in Prometheus: sanitised, and as kube-state-metrics spells it."""
    snake = re.sub(r"([a-z0-9])([A-Z])", r"\1_\2", label).lower()
    return _sanitised(label), _sanitised(snake)


def _sanitised(text: str) -> str:
    return re.sub(r"[^a-zA-Z0-9_]", "_", text)


def _selects(selector: LabelSelector | None, sets: list[Labels]) -> bool:
    """Whether *selector* selects a pod that had any of these label sets; an empty one selects nothing."""
    if selector is None or not (selector.match_labels or selector.match_expressions):
        return False
    return any(_matches(selector, labels) for labels in sets)


def _matches(selector: LabelSelector, labels: Labels) -> bool:
    def value(label: str) -> str | None:
        return next((labels[name] for name in spellings(label) if name in labels), None)

    if any(value(label) != wanted for label, wanted in (selector.match_labels or {}).items()):
        return False
    for expression in selector.match_expressions or ():
        found = value(expression.key)
        holds = {
            "In": found is not None and found in (expression.values or ()),
            "NotIn": found is None or found not in (expression.values or ()),
            "Exists": found is not None,
            "DoesNotExist": found is None,
        }
        if not holds.get(expression.operator, False):
            return False
    return True
