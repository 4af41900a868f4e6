"""Whose a pod is, told from the objects at hand: its top-most controller, its VPA, and what its owner wants.

Offline there is no scale subresource to ask, so an owner of an unknown kind counts when a VPA targets it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from vpa.cli.objects import Objects
from vpa.gates import FeatureGates
from vpa.matching import TargetIndex, TargetKey, controller_of, takes_part
from vpa.objects.autoscalers import VerticalPodAutoscaler
from vpa.objects.meta import ObjectMeta, OwnerReference
from vpa.objects.pods import Pod, PodTemplate
from vpa.objects.workloads import WELL_KNOWN, CronJob, ReplicationController, Workload
from vpa.reasons import Reason, Refusal
from vpa.rules import Rules
from vpa.selectors import EVERYTHING, NOTHING, Selector, SelectorError, from_labels, from_object
from vpa.updates.budgets import GroupKey, configured_replicas

AnyWorkload = Workload | CronJob | ReplicationController


@dataclass(frozen=True, slots=True)
class Choice:
    """The VPA of a pod; *rivals* are the names of others that match it."""

    vpa: VerticalPodAutoscaler
    rivals: tuple[str, ...] = ()


class Workloads:
    """The controllers among *objects*, and the VPAs that target them."""

    def __init__(self, objects: Objects) -> None:
        self._known: dict[TargetKey, AnyWorkload] = {
            TargetKey(item.namespace, item.kind, item.name): item.object
            for item in objects.items
            if item.kind in WELL_KNOWN
        }
        self._vpas = TargetIndex(objects.of(VerticalPodAutoscaler))

    def rivals(self, target: TargetKey) -> list[VerticalPodAutoscaler]:
        """All VPAs of one target, the oldest first."""
        return self._vpas.at(target)

    def topmost(self, pod: Pod) -> TargetKey | None:
        """The highest controller that a VPA could target; None if an owner on the way is not known."""
        return self._topmost(self._parent(pod.metadata, pod.metadata.namespace, pod.metadata.labels))

    def topmost_of(self, owner: TargetKey, labels: dict[str, str] | None) -> TargetKey | None:
        """The same for a pod of the past, of which only its controller, and perhaps its labels, are known."""
        metadata = ObjectMeta(
            owner_references=[OwnerReference(kind=owner.kind, name=owner.name, controller=True)]
        )
        return self._topmost(self._parent(metadata, owner.namespace, labels))

    def _topmost(self, key: TargetKey | None) -> TargetKey | None:
        return self._climb(key)[0]

    def _climb(self, key: TargetKey | None) -> tuple[TargetKey | None, TargetKey | None]:
        """(the highest controller, None), or (None, the owner on the way that is not known)."""
        found: TargetKey | None = None
        seen: set[TargetKey] = set()
        while key is not None and key not in seen:
            seen.add(key)
            if key.kind not in WELL_KNOWN:
                return (key if self._vpas.is_target(key) else found), None
            workload = self._known.get(key)
            if workload is None:
                return None, key
            found = key
            key = self._parent(workload.metadata, key.namespace, None)
        return found, None

    def _parent(
        self, metadata: ObjectMeta, namespace: str, labels: dict[str, str] | None
    ) -> TargetKey | None:
        """The controller of an object; of an unknown ReplicaSet the Deployment that stands for it."""
        owner = controller_of(metadata)
        if owner is None or owner.kind == "Node":
            return None
        key = TargetKey(namespace, owner.kind, owner.name)
        if key.kind == "ReplicaSet" and key not in self._known:
            return self._stand_in(key, labels) or key
        return key

    def _stand_in(self, replica_set: TargetKey, labels: dict[str, str] | None) -> TargetKey | None:
        """The Deployment whose name is the ReplicaSet's without its last part, and whose selector matches.

        Labels that nobody knows (None) match.
        """
        key = TargetKey(replica_set.namespace, "Deployment", replica_set.name.rpartition("-")[0])
        if key not in self._known:
            return None
        return key if labels is None or self.selector(key).matches(labels) else None

    def is_known(self, key: TargetKey) -> bool:
        """Is the controller among the objects? One of an unknown kind is taken to exist."""
        return key in self._known or key.kind not in WELL_KNOWN

    def parent(self, key: TargetKey) -> TargetKey | None:
        """The well-known controller above a controller, if there is one."""
        workload = self._known.get(key)
        owner = controller_of(workload.metadata) if workload is not None else None
        if owner is None or owner.kind not in WELL_KNOWN:
            return None
        return TargetKey(key.namespace, owner.kind, owner.name)

    def template(self, key: TargetKey) -> PodTemplate | None:
        """The pod template of a controller, if it is known."""
        workload = self._known.get(key)
        if isinstance(workload, CronJob):
            return workload.spec.job_template.spec.template
        return workload.spec.template if workload is not None else None

    def selector(self, key: TargetKey) -> Selector:
        """Which pods are a controller's: nothing for a missing well-known one, everything for other kinds."""
        workload = self._known.get(key)
        if workload is None:
            return NOTHING if key.kind in WELL_KNOWN else EVERYTHING
        try:
            if isinstance(workload, ReplicationController):
                return from_labels(workload.spec.selector)
            if isinstance(workload, CronJob):
                template = self.template(key)
                return from_labels(template.metadata.labels if template is not None else None)
            return from_object(workload.spec.selector)
        except SelectorError:
            return NOTHING

    def choice(
        self, pod: Pod, *, service: str, rules: Rules, gates: FeatureGates, default_mode: str
    ) -> Choice | None:
        """The VPA that *service* would choose for the pod.

        Where none takes part, for example because its mode is Off, the one that would be next.
        """
        key = self.topmost(pod)
        if key is None or not self.selector(key).matches(pod.metadata.labels):
            return None
        matching = self._vpas.at(key)
        taking_part = [
            vpa
            for vpa in matching
            if takes_part(vpa, service=service, rules=rules, gates=gates, default_mode=default_mode)
        ]
        if taking_part:
            return Choice(taking_part[0], tuple(vpa.metadata.name for vpa in taking_part[1:]))
        return Choice(matching[0]) if matching else None

    def no_vpa(self, pod: Pod) -> Refusal:
        """Why no VPA is the pod's."""
        owner = controller_of(pod.metadata)
        if owner is None:
            return Refusal(
                Reason.NO_CONTROLLER,
                "the pod has no controller, and VPAs target controllers: "
                "create it through a Deployment or the like",
            )
        if owner.kind == "Node":
            return Refusal(
                Reason.NO_CONTROLLER, "the pod is a static pod, which only files of its node change"
            )
        namespace = pod.metadata.namespace
        topmost, missing = self._climb(self._parent(pod.metadata, namespace, pod.metadata.labels))
        if missing is not None:
            text = f"{missing.kind} {missing.name}, which controls the pod, is not among the objects"
            return Refusal(Reason.NO_VPA, text)
        if topmost is None:
            return Refusal(Reason.NO_VPA, f"no VPA targets {owner.kind} {owner.name}: create one")
        what = f"{topmost.kind} {topmost.name}"
        targeting = self._vpas.at(topmost)
        if targeting:
            name = targeting[0].metadata.name
            text = f"VPA {name} targets {what}, whose selector does not match the labels of the pod"
            return Refusal(Reason.NO_VPA, text)
        return Refusal(Reason.NO_VPA, f"no VPA targets {what}: create one")

    def replicas(self, pods: Iterable[Pod], *, rules: Rules) -> dict[GroupKey, int]:
        """How many pods each owner of *pods* wants, as far as it is known."""
        wanted: dict[GroupKey, int] = {}
        for key, workload in self._known.items():
            count = configured_replicas(key.kind, workload, rules=rules)
            if count is not None:
                wanted[GroupKey(*key)] = count
        for pod in pods:
            owner = controller_of(pod.metadata)
            if owner is None or owner.kind != "ReplicaSet":
                continue
            key = TargetKey(pod.metadata.namespace, "ReplicaSet", owner.name)
            stand_in = None if key in self._known else self._stand_in(key, pod.metadata.labels)
            if stand_in is None:
                continue
            count = configured_replicas("ReplicaSet", self._known[stand_in], rules=rules)
            if count is not None:
                wanted[GroupKey(*key)] = count
        return wanted
