"""Which nodes could hold a pod: allocatable minus what DaemonSets and static pods take, under the pod's
selector, affinity and tolerations. Other pods do not count: they may move, or a like node may be added.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from vpa.objects.meta import encoder
from vpa.objects.nodes import Node, Taint
from vpa.objects.pods import NodeSelectorRequirement, NodeSelectorTerm, Pod, PodSpec, Toleration
from vpa.quantities import Quantity
from vpa.selectors import Requirement
from vpa.sizes.footprints import Footprint, footprint
from vpa.updates.budgets import GroupKey, group_of

UNSCHEDULABLE: Final = Taint(key="node.kubernetes.io/unschedulable", effect="NoSchedule")
OPERATORS: Final = frozenset({"In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"})
_KEEPS_OUT: Final = frozenset({"NoSchedule", "NoExecute"})


@dataclass(slots=True)
class Room:
    """One node and what DaemonSets leave of it."""

    node: Node
    free: Footprint
    by_owner: dict[GroupKey, Footprint] = field(default_factory=dict)
    """What each DaemonSet takes here, so that its own pods are not counted against it."""

    def free_for(self, owner: GroupKey) -> Footprint:
        own = self.by_owner.get(owner)
        if not own:
            return self.free
        return {resource: nanos + own.get(resource, 0) for resource, nanos in self.free.items()}


class Rooms:
    """All nodes of a cluster at one moment; answers are remembered by the pod's placement."""

    def __init__(self, nodes: Iterable[Node], pods: Iterable[Pod] = ()) -> None:
        """*pods* may be all pods: only those of DaemonSets and static ones are counted."""
        self._rooms = {
            node.metadata.name: Room(
                node=node,
                free={name: value.nanos for name, value in (node.status.allocatable or {}).items()},
            )
            for node in nodes
        }
        for pod in pods:
            self._take(pod)
        self._known: dict[tuple[bytes, GroupKey | None], list[tuple[str, Footprint]]] = {}

    def __bool__(self) -> bool:
        return bool(self._rooms)

    def _take(self, pod: Pod) -> None:
        room = self._rooms.get(pod.spec.node_name)
        owner = group_of(pod)
        if room is None or owner.kind not in ("DaemonSet", "Node") or is_finished(pod):
            return
        taken = footprint(pod.spec)
        own = room.by_owner.setdefault(owner, {})
        for resource, nanos in taken.items():
            own[resource] = own.get(resource, 0) + nanos
            room.free[resource] = room.free.get(resource, 0) - nanos

    def room(self, name: str) -> Room | None:
        """The room of the node of that name, if it is known."""
        return self._rooms.get(name)

    def candidates(self, pod: Pod) -> list[tuple[str, Footprint]]:
        """(name, free room) of each schedulable node that the pod may run on."""
        spec = pod.spec
        placement = encoder.encode((spec.node_selector, spec.affinity, spec.tolerations))
        owner = group_of(pod)
        key = (placement, owner if owner.kind == "DaemonSet" else None)
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = [
                (name, room.free_for(owner)) for name, room in self._rooms.items() if admits(room.node, spec)
            ]
        return found

    def fits(self, pod: Pod, need: Footprint) -> bool:
        """Can any of them hold *need*?"""
        return any(holds(free, need) for _, free in self.candidates(pod))

    def largest(self, pod: Pod, need: Footprint) -> tuple[str, Footprint] | None:
        """The candidate that can hold most of *need*, and its room; None if the pod may run nowhere."""
        relevant = [resource for resource in ("cpu", "memory") if need.get(resource)]

        def share(candidate: tuple[str, Footprint]) -> tuple[float, int, int]:
            free = candidate[1]
            least = min((free.get(name, 0) / need[name] for name in relevant), default=0.0)
            return least, free.get("memory", 0), free.get("cpu", 0)

        return max(self.candidates(pod), key=share, default=None)


def holds(free: Footprint, need: Footprint) -> bool:
    """Is there enough of everything that is needed?"""
    return all(free.get(resource, 0) >= nanos for resource, nanos in need.items() if nanos > 0)


def is_finished(pod: Pod) -> bool:
    return pod.status.phase in ("Succeeded", "Failed")


def admits(node: Node, spec: PodSpec) -> bool:
    """Would the scheduler consider the node for the pod, size aside?"""
    labels = node.metadata.labels or {}
    if any(labels.get(key) != value for key, value in (spec.node_selector or {}).items()):
        return False
    affinity = spec.affinity and spec.affinity.node_affinity
    required = affinity and affinity.required_during_scheduling_ignored_during_execution
    if required and not any(_term(term, node) for term in required.node_selector_terms or ()):
        return False
    taints = [taint for taint in node.spec.taints or () if taint.effect in _KEEPS_OUT]
    if node.spec.unschedulable:
        taints.append(UNSCHEDULABLE)
    return all(any(tolerates(one, taint) for one in spec.tolerations or ()) for taint in taints)


def tolerates(toleration: Toleration, taint: Taint) -> bool:
    """Kubernetes' rule: an empty effect means all effects, an empty key with Exists all keys."""
    if toleration.effect and toleration.effect != taint.effect:
        return False
    if toleration.operator == "Exists":
        return toleration.key in ("", taint.key)
    return toleration.key == taint.key and toleration.value == taint.value


def _term(term: NodeSelectorTerm, node: Node) -> bool:
    """A term without any expression matches nothing."""
    if not term.match_expressions and not term.match_fields:
        return False
    labels = node.metadata.labels or {}
    fields = {"metadata.name": node.metadata.name}
    return all(_requirement(one, labels) for one in term.match_expressions or ()) and all(
        _requirement(one, fields) for one in term.match_fields or ()
    )


def _requirement(requirement: NodeSelectorRequirement, labels: Mapping[str, str]) -> bool:
    """A condition that the API server would not have taken matches nothing."""
    values = frozenset(requirement.values or ())
    if requirement.operator not in OPERATORS or (requirement.operator in ("Gt", "Lt") and len(values) != 1):
        return False
    return Requirement(requirement.key, requirement.operator, values).matches(labels)


def describe(need: Mapping[str, int]) -> str:
    """``cpu 250m, memory 1Gi`` for messages."""
    return ", ".join(
        f"{resource} {_text(resource, need[resource])}" for resource in ("cpu", "memory") if resource in need
    )


def _text(resource: str, nanos: int) -> str:
    if resource == "cpu":
        return str(Quantity.from_milli(nanos // 1_000_000))
    return str(Quantity.from_int(nanos // 1_000_000_000, "BinarySI"))
