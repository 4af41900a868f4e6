"""May a pod be evicted, resized or unboosted now, as far as its group, its phase and a running resize go?

These questions read the budget and take nothing from it; whoever acts counts it there.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from types import MappingProxyType

from vpa import modes
from vpa.objects.autoscalers import Recommendation, VerticalPodAutoscaler
from vpa.objects.pods import Pod
from vpa.reasons import Reason, Refusal
from vpa.rules import Rules
from vpa.scopes import NodeLabels, for_pod
from vpa.settings import Behaviour, Updating
from vpa.updates import budgets, resizing
from vpa.updates.attempts import Attempts, lower_target
from vpa.updates.budgets import Budget, Group, GroupKey
from vpa.updates.resizing import ResizeStatus


class Permission(Enum):
    """What to do about a resize, in upstream's words."""

    APPROVED = "InPlaceApproved"
    DEFERRED = "InPlaceDeferred"
    INFEASIBLE = "InPlaceInfeasible"
    INFEASIBLE_CACHED = "InPlaceInfeasibleCached"
    EVICT = "InPlaceEvict"


@dataclass(frozen=True, slots=True)
class Verdict:
    """A permission, and why it is not `Permission.APPROVED`."""

    permission: Permission
    refusal: Refusal | None = None


APPROVED = Verdict(Permission.APPROVED)


@dataclass(frozen=True, kw_only=True, slots=True)
class Permissions:
    """The state that the questions are asked about: one VPA's pods at one moment."""

    budget: Budget
    attempts: Attempts
    now: datetime
    mode: str
    """The VPA's update mode."""
    minimum: int
    """Replicas that a group needs to be evicted from."""
    in_place_gate: bool
    skip_budget: bool
    """``--in-place-skip-disruption-budget``."""
    vpa: VerticalPodAutoscaler
    nodes: NodeLabels
    rules: Rules

    @classmethod
    def of(
        cls,
        vpa: VerticalPodAutoscaler,
        pods: Sequence[Pod],
        *,
        replicas: Mapping[GroupKey, int],
        attempts: Attempts,
        now: datetime,
        behaviour: Behaviour,
        updating: Updating,
        rules: Rules,
        nodes: NodeLabels = MappingProxyType({}),
    ) -> Permissions:
        """The state of *pods*, all live ones of *vpa*, at the beginning of a pass."""
        mode = modes.update_mode(vpa, default=behaviour.default_update_mode)
        policy = vpa.spec.update_policy
        own = policy.min_replicas if policy is not None else None
        minimum = updating.min_replicas if own is None else own
        skip = updating.in_place_skip_disruption_budget
        still_open = (
            [pod.metadata.uid for pod in pods if resizing.is_open(pod, attempts, now, rules=rules)]
            if rules.count_open_attempts
            else []
        )
        return cls(
            budget=Budget.of(
                pods,
                replicas=replicas,
                minimum=minimum,
                tolerance=updating.eviction_tolerance,
                skip_minimum=skip and mode in (modes.IN_PLACE, modes.IN_PLACE_OR_RECREATE),
                rules=rules,
                open_resizes=frozenset(still_open),
            ),
            attempts=attempts,
            now=now,
            mode=mode,
            minimum=minimum,
            in_place_gate=behaviour.feature_gates.in_place,
            skip_budget=skip,
            vpa=vpa,
            nodes=nodes,
            rules=rules,
        )

    def recommendation(self, pod: Pod) -> Recommendation | None:
        """What the VPA's status recommends for the pod."""
        status = for_pod(self.vpa, pod, self.nodes).status
        return status.recommendation if status is not None else None

    def evict(self, pod: Pod) -> Refusal | None:
        """Why the pod may not be evicted now; None: it may."""
        group = self.budget.group(pod)
        if isinstance(group, Refusal):
            return group
        if budgets.is_pending(pod):
            return None
        if group.below_minimum:
            return budgets.too_few(group, self.minimum)
        if resizing.is_resizing(pod):
            return self._evict_resizing(pod, group)
        return self._room(pod, group)

    def resize(
        self, pod: Pod, *, changes: Collection[tuple[str, str]] | None = None, worth: bool = False
    ) -> Verdict:
        """Whether the pod may be resized now.

        *changes* are the (container, resource) pairs that the resize would change, None where that is not
        known; *worth* says that it would help a resize that the node has not made so far.
        """
        in_place = self.mode == modes.IN_PLACE
        if in_place and not self.in_place_gate:
            return _deferred(Reason.FEATURE_GATE_OFF, "mode InPlace needs --feature-gates=InPlace=true")
        group = self.budget.group(pod)
        if isinstance(group, Refusal):
            return Verdict(Permission.DEFERRED, group)
        if budgets.is_pending(pod):
            return _deferred(
                Reason.POD_PENDING, "the pod has not started; it can be resized once its containers run"
            )
        if self.recommendation(pod) is None:
            return _deferred(Reason.NO_RECOMMENDATION, "the VPA has no recommendation yet")
        if in_place and self._known_infeasible(pod):
            return Verdict(Permission.INFEASIBLE_CACHED, resizing.infeasible(pod))
        status = resizing.resize_status(pod, rules=self.rules)
        if status is not ResizeStatus.NONE:
            verdict = self._resizing(pod, group, status, in_place=in_place)
            if not worth or status is ResizeStatus.IN_PROGRESS:
                return verdict
        harmless = not restarts(pod, changes if self.rules.resize_apart_from_eviction else None)
        if self.skip_budget and harmless:
            return APPROVED
        if self.rules.resize_apart_from_eviction and group.below_minimum and not harmless:
            return Verdict(Permission.DEFERRED, budgets.too_few(group, self.minimum))
        refusal = self._room(pod, group)
        return Verdict(Permission.DEFERRED, refusal) if refusal is not None else APPROVED

    def unboost(self, pod: Pod) -> Refusal | None:
        """Why a pod whose startup boost is over may not be given its normal size now."""
        group = self.budget.group(pod)
        if isinstance(group, Refusal):
            return group
        if budgets.is_pending(pod):
            return Refusal(Reason.POD_PENDING, "the pod has not started; its boost ends after that")
        if resizing.is_resizing(pod):
            return resizing.in_progress(pod)
        return self._room(pod, group)

    def _room(self, pod: Pod, group: Group) -> Refusal | None:
        unready = not self.rules.count_readiness or budgets.is_unready(pod)
        if group.has_room() and (unready or group.has_room(unready=False)):
            return None
        return group.spent()

    def _evict_resizing(self, pod: Pod, group: Group) -> Refusal | None:
        waits = resizing.stuck(pod, self.attempts, self.now, rules=self.rules)
        return waits or self._room(pod, group)

    def _resizing(self, pod: Pod, group: Group, status: ResizeStatus, *, in_place: bool) -> Verdict:
        if not in_place:
            waits = self._evict_resizing(pod, group)
            return Verdict(Permission.EVICT) if waits is None else Verdict(Permission.DEFERRED, waits)
        if status is ResizeStatus.INFEASIBLE:
            return Verdict(Permission.INFEASIBLE, resizing.infeasible(pod))
        if status is ResizeStatus.DEFERRED:
            return Verdict(Permission.DEFERRED, resizing.deferred(pod))
        if status is ResizeStatus.IN_PROGRESS:
            return Verdict(Permission.DEFERRED, resizing.in_progress(pod))
        if status is ResizeStatus.ERROR:
            return Verdict(Permission.DEFERRED, resizing.refused(pod))
        return Verdict(Permission.DEFERRED, resizing.failing(pod))

    def _known_infeasible(self, pod: Pod) -> bool:
        known = self.attempts.infeasible.get(pod.metadata.uid)
        recommendation = self.recommendation(pod)
        if known is None or recommendation is None:
            return False
        return not lower_target(recommendation.container_recommendations or (), known)


def restarts(pod: Pod, changes: Collection[tuple[str, str]] | None = None) -> bool:
    """Would a resize restart a container, by its ``resizePolicy``?

    *changes* limits the question to those (container, resource) pairs; None: to any of any container.
    """
    return bool(restarted(pod, changes))


def restarted(pod: Pod, changes: Collection[tuple[str, str]] | None = None) -> list[str]:
    """The names of the containers that a resize would restart; *changes* as in `restarts`."""
    return [
        container.name
        for container in pod.spec.containers or ()
        if any(
            policy.restart_policy == "RestartContainer"
            and (changes is None or (container.name, policy.resource_name) in changes)
            for policy in container.resize_policy or ()
        )
    ]


def _deferred(reason: Reason, message: str) -> Verdict:
    return Verdict(Permission.DEFERRED, Refusal(reason, message))
