"""Replica groups and their disruption budget: how many pods of a group may be down because of us at one time.

A *group* is all live pods of one VPA that have the same direct owner (the ReplicaSet, not the Deployment).
Evictions and resizes take from one budget. The counters are those of one pass.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from vpa.objects.pods import Pod
from vpa.objects.workloads import CronJob, ReplicationController, Workload
from vpa.reasons import Reason, Refusal
from vpa.rules import Rules
from vpa.sizes.boosts import ANNOTATION_PREFIX

KINDS_WITH_REPLICAS: Final = frozenset({"DaemonSet", "ReplicaSet", "ReplicationController", "StatefulSet"})
"""Owners that say themselves how many pods they want."""


class GroupKey(NamedTuple):
    """The direct owner of pods; all empty for pods without a controller."""

    namespace: str
    kind: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind} {self.namespace}/{self.name}" if self.kind else "pods without a controller"


def group_of(pod: Pod) -> GroupKey:
    """The first owner that is the controller of the pod, as a key."""
    for owner in pod.metadata.owner_references or ():
        if owner.controller:
            return GroupKey(pod.metadata.namespace, owner.kind, owner.name)
    return GroupKey(pod.metadata.namespace, "", "")


def configured_replicas(
    kind: str, workload: Workload | CronJob | ReplicationController, *, rules: Rules
) -> int | None:
    """How many pods a controller of that *kind* asks for; None where that is not said by the object.

    Of a DaemonSet upstream takes the ready pods; with `count_readiness` it is the nodes it should run on.
    """
    if kind not in KINDS_WITH_REPLICAS or isinstance(workload, CronJob):
        return None
    if isinstance(workload, Workload) and kind == "DaemonSet":
        status = workload.status
        return (rules.count_readiness and status.desired_number_scheduled) or status.number_ready
    replicas = workload.spec.replicas
    return 1 if replicas is None and rules.count_readiness else replicas


def is_pending(pod: Pod) -> bool:
    return pod.status.phase == "Pending"


def is_boosted(pod: Pod) -> bool:
    """Does the pod still carry a startup boost?"""
    return any(key.startswith(ANNOTATION_PREFIX) for key in pod.metadata.annotations or ())


def is_unready(pod: Pod) -> bool:
    """Does the pod itself say that it is not ready? Without a Ready condition it counts as ready."""
    return any(
        condition.type == "Ready" and condition.status != "True" for condition in pod.status.conditions or ()
    )


@dataclass(slots=True)
class Group:
    """One replica group and what this pass has taken from it so far."""

    key: GroupKey
    configured: int
    tolerance: int
    """Pods that may be down; truncated, so maybe 0: then one at a time, and only while none is missing."""
    live: int
    running: int
    unready: int
    """Running pods that are not ready."""
    below_minimum: bool
    evicted: int = 0
    resized: int = 0

    def has_room(self, *, unready: bool = True) -> bool:
        """May one more running pod be disrupted? A *ready* one needs enough ready ones beside it."""
        taken = self.evicted + self.resized
        alive = self.running if unready else self.running - self.unready
        if self.tolerance == 0 and alive == self.configured and taken == 0:
            return True
        return alive - taken > self.configured - self.tolerance

    def spent(self) -> Refusal:
        """Why there is no room."""
        down = max(self.configured - self.running + self.unready, 0)
        return Refusal(
            Reason.BUDGET_SPENT,
            f"of {self.configured} pods of {self.key} only {max(self.tolerance, 1)} may be down at a time; "
            f"{down} are missing or not ready and {self.evicted + self.resized} are being changed: "
            "more follow when those are ready, or raise --eviction-tolerance",
        )


class Budget:
    """The groups of one VPA's live pods. Pods of a group that may not be touched get its refusal."""

    def __init__(self, groups: Mapping[GroupKey, Group], refusals: Mapping[GroupKey, Refusal]) -> None:
        self.groups = groups
        self.refusals = refusals

    @classmethod
    def of(
        cls,
        pods: Iterable[Pod],
        *,
        replicas: Mapping[GroupKey, int],
        minimum: int,
        tolerance: float,
        skip_minimum: bool,
        rules: Rules,
        open_resizes: Collection[str] = (),
    ) -> Budget:
        """Group *pods*, all live ones of one VPA.

        *replicas* is what controllers ask for; *minimum* the replicas that a group needs to be evicted from;
        *skip_minimum* lets smaller groups be resized; *open_resizes* are the uids of pods whose resize, of an
        earlier pass, is not finished.
        """
        members: dict[GroupKey, list[Pod]] = {}
        for pod in pods:
            members.setdefault(group_of(pod), []).append(pod)
        groups: dict[GroupKey, Group] = {}
        refusals: dict[GroupKey, Refusal] = {}
        for key, live in members.items():
            few = len(live) < minimum
            if few and not skip_minimum and not rules.resize_apart_from_eviction and not _boosted(live):
                refusals[key] = _too_few(key, len(live), minimum)
                continue
            configured = _configured(key, len(live), replicas, rules)
            if isinstance(configured, Refusal):
                refusals[key] = configured
                continue
            running = [pod for pod in live if not is_pending(pod)]
            groups[key] = Group(
                key=key,
                configured=configured,
                tolerance=int(configured * tolerance),
                live=len(live),
                running=len(running),
                unready=sum(map(is_unready, running)) if rules.count_readiness else 0,
                below_minimum=few and (skip_minimum or not _boosted(live) or rules.boost_keeps_min_replicas),
                resized=sum(pod.metadata.uid in open_resizes for pod in running) if open_resizes else 0,
            )
        return cls(groups, refusals)

    def group(self, pod: Pod) -> Group | Refusal:
        """The pod's group, or why none of its pods may be touched."""
        key = group_of(pod)
        return self.groups.get(key) or self.refusals[key]

    def evicted(self, pod: Pod) -> None:
        """Count an eviction. A pending pod takes nothing: it was not running."""
        group = self.groups[group_of(pod)]
        if not is_pending(pod):
            group.evicted += 1

    def not_evicted(self, pod: Pod) -> None:
        """Give back what `evicted` took: the API server refused."""
        group = self.groups[group_of(pod)]
        if not is_pending(pod):
            group.evicted -= 1

    def resized(self, pod: Pod) -> None:
        """Count a resize."""
        self.groups[group_of(pod)].resized += 1

    def not_resized(self, pod: Pod) -> None:
        """Give back what `resized` took: the API server refused."""
        self.groups[group_of(pod)].resized -= 1


def _boosted(pods: Iterable[Pod]) -> bool:
    return any(map(is_boosted, pods))


def _configured(key: GroupKey, live: int, replicas: Mapping[GroupKey, int], rules: Rules) -> int | Refusal:
    """How many pods the owner wants."""
    if key.kind in KINDS_WITH_REPLICAS:
        return replicas.get(key) or Refusal(
            Reason.NO_CONTROLLER,
            f"{key} is not known or wants no pods: its pods are left alone until it does",
        )
    if key.kind == "Job":
        return live
    if not rules.budget_for_unknown_owners:
        return 0
    if not key.kind:
        return Refusal(
            Reason.NO_CONTROLLER,
            "the pod has no controller that would make a new one: create it through a Deployment or the like",
        )
    return live


def _too_few(key: GroupKey, live: int, minimum: int) -> Refusal:
    return Refusal(
        Reason.TOO_FEW_REPLICAS,
        f"{key} has {live} live pods, fewer than the {minimum} that eviction needs: "
        "add replicas, or lower spec.updatePolicy.minReplicas or --min-replicas",
    )


def too_few(group: Group, minimum: int) -> Refusal:
    """Why a pod of a group below the minimum is not evicted."""
    return _too_few(group.key, group.live, minimum)
