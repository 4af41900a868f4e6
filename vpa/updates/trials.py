"""Trying to change one pod: the checks of a resize, of the end of a boost and of an eviction, in their order.

First what forbids it for good, at last the budget, so that the reason given is the one to be removed.
Nothing is taken from the budget here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from vpa import modes
from vpa.modes import Permits
from vpa.objects.autoscalers import VerticalPodAutoscaler
from vpa.objects.pods import Pod, Resources
from vpa.reasons import Reason, Refusal
from vpa.rules import Rules
from vpa.sizes.sizing import wanted_resources
from vpa.updates import priorities, resizing
from vpa.updates.attempts import shrinks
from vpa.updates.budgets import GroupKey, group_of
from vpa.updates.candidates import Action, Candidate, Judged
from vpa.updates.permissions import Permission, Permissions
from vpa.updates.resize_patches import NothingToPatch, ResizePatch, changes, current, resize_patch, target_of
from vpa.updates.resizing import ResizeStatus
from vpa.updates.safety import Safety
from vpa.updates.surroundings import Memory, Surroundings

WEBHOOK_NOT_READY: Final = Refusal(
    Reason.WEBHOOK_NOT_READY,
    "the admission controller's lease is not fresh, so new pods might not get their target: see that it runs",
)
NO_RESIZE: Final = Refusal(
    Reason.FEATURE_GATE_OFF, "this cluster cannot resize pods in place (Kubernetes before 1.33)"
)
_PENDING_AT_NODE: Final = Refusal(
    Reason.RESIZE_IN_PROGRESS, "the pod's spec has its target already; its node has not made the resize yet"
)


@dataclass(kw_only=True, slots=True)
class Trials:
    """The checks for the pods of one VPA in one pass."""

    vpa: VerticalPodAutoscaler
    permissions: Permissions
    permits: Permits
    safety: Safety
    surroundings: Surroundings
    memory: Memory
    now: datetime
    rules: Rules
    loading: Refusal | None
    """Why nothing may be evicted or shrink: the history is too short."""
    breaker: Callable[[], Refusal | None]
    """The loop breaker's word on one more eviction."""
    blocked: dict[GroupKey, Refusal] = field(default_factory=dict)
    """Groups that the eviction API refused in this pass."""
    hindered: set[GroupKey] = field(default_factory=set)
    """Groups of which one eviction was refused: another pod is tried, then the group is blocked."""
    stopped: Refusal | None = None
    """Why the API server is left alone for the rest of the pass."""
    resize_missing: Refusal | None = None
    """Why nothing can be resized in this cluster."""

    def __post_init__(self) -> None:
        if not self.surroundings.can_resize:
            self.resize_missing = NO_RESIZE

    def resize(self, candidate: Candidate) -> Refusal | None:
        """Why the pod is not resized now. Where eviction may take its place, that becomes its way."""
        pod = candidate.pod
        if self.resize_missing is not None:
            return self._instead(candidate, self.resize_missing)
        patch = self._patch(candidate)
        if isinstance(patch, Refusal):
            return patch
        changed = changes(pod, patch.wanted) if patch is not None else set()
        verdict = self.permissions.resize(pod, changes=changed, worth=self._worth(pod, patch))
        candidate.infeasible = verdict.permission is Permission.INFEASIBLE
        if verdict.permission is Permission.EVICT:
            return self._instead(candidate, _hopeless(pod, self.rules))
        if verdict.refusal is not None and not self._asks_anyway(pod, verdict.permission):
            return verdict.refusal
        if patch is None:
            if self.rules.patch_only_changes:
                return _PENDING_AT_NODE
            return self._instead(candidate, Refusal(Reason.RESIZE_REFUSED, "the resize would change nothing"))
        if self.rules.remember_refusals:
            earlier = self.memory.attempts.resize_refused(pod.metadata.uid, patch.target, self.now)
            if earlier is not None:
                return self._instead(candidate, earlier)
        foreseen = self.safety.resize(pod, patch.wanted, changed)
        if foreseen is not None:
            if foreseen.eviction_helps:
                return self._instead(candidate, foreseen.refusal)
            return foreseen.refusal
        candidate.patch = patch
        return None

    def unboost(self, candidate: Candidate) -> Refusal | None:
        """Why the startup boost of the pod is not ended now; eviction never takes its place."""
        pod = candidate.pod
        try:
            patch = resize_patch(
                pod,
                candidate.desired.containers,
                rules=self.rules,
                off=self.permissions.mode == modes.OFF,
                expired=candidate.expired,
            )
        except ValueError as error:
            return Refusal(Reason.RESIZE_REFUSED, f"the startup boost is over but cannot be ended: {error}")
        if patch.resize and self.resize_missing is not None:
            return self.resize_missing
        refusal = self.permissions.unboost(pod)
        if refusal is not None:
            return refusal
        if self.rules.remember_refusals:
            refusal = self.memory.attempts.resize_refused(pod.metadata.uid, patch.target, self.now)
            if refusal is not None:
                return refusal
        foreseen = self.safety.resize(pod, patch.wanted, changes(pod, patch.wanted)) if patch.resize else None
        if foreseen is not None:
            return foreseen.refusal
        candidate.patch = patch
        return None

    def evict(self, candidate: Candidate) -> Refusal | None:
        """Why the pod is not evicted now."""
        pod = candidate.pod
        permitted = self.permissions.evict(pod)
        if permitted is not None and permitted.reason in (Reason.TOO_FEW_REPLICAS, Reason.NO_CONTROLLER):
            return permitted
        if not self.surroundings.webhook_ready:
            return WEBHOOK_NOT_READY
        wanted = wanted_resources(pod, candidate.desired.containers)
        if self.loading is not None and not self._helps_against_oom(candidate, wanted):
            return self.loading
        if self.rules.resize_apart_from_eviction:
            refusal = self.requirements(pod, candidate)
            if refusal is not None:
                return refusal
        refusal = self.safety.eviction(pod, wanted)
        if refusal is None and self.rules.remember_refusals:
            refusal = self.memory.attempts.eviction_refused(pod.metadata.uid, self.now)
        return (
            refusal
            or self.blocked.get(group_of(pod))
            or self.safety.disruption_budget(pod)
            or self.breaker()
            or permitted
        )

    def requirements(self, pod: Pod, judged: Judged | Candidate) -> Refusal | None:
        """Why the VPA's eviction requirements forbid to evict the pod."""
        policy = self.vpa.spec.update_policy
        wanted = policy.eviction_requirements if policy is not None else None
        if not wanted or priorities.requirements_met(
            pod, wanted, judged.desired.recommendations, judged.actual, rules=self.rules
        ):
            return None
        return Refusal(
            Reason.EVICTION_REQUIREMENT_NOT_MET,
            f"the VPA lets the pod be evicted only when {priorities.describe(wanted)}",
        )

    def _helps_against_oom(self, candidate: Candidate, wanted: Mapping[str, Resources]) -> bool:
        """Is the pod out of memory time and again, and would it get more? That needs no history."""
        return candidate.why is Reason.QUICK_OOM and not shrinks(target_of(wanted), current(candidate.pod))

    def _instead(self, candidate: Candidate, refusal: Refusal) -> Refusal:
        """The pod cannot be resized: evict it instead, if its mode lets us."""
        if self.permits.by_eviction:
            candidate.way = Action.EVICT
            candidate.fell_back = refusal
        return refusal

    def _patch(self, candidate: Candidate) -> ResizePatch | Refusal | None:
        """The patch without what must not be touched; None if nothing would change."""
        pod, sizes = candidate.pod, candidate.desired.containers
        try:
            patch = resize_patch(pod, sizes, rules=self.rules)
        except NothingToPatch:
            return None
        kept = self.safety.pairs_to_keep(pod, patch.wanted, grow_only=self.loading)
        if not kept:
            return patch
        try:
            return resize_patch(pod, sizes, rules=self.rules, keep=kept)
        except NothingToPatch:
            return next(iter(kept.values()))

    def _worth(self, pod: Pod, patch: ResizePatch | None) -> bool:
        """Would a new resize help one that the node has not made so far?"""
        if patch is None or not self.rules.remember_refusals:
            return False
        if shrinks(patch.target, current(pod)):
            return True
        if resizing.resize_status(pod, rules=self.rules) is not ResizeStatus.ERROR:
            return False
        begun = resizing.since(pod, self.memory.attempts, self.now, rules=self.rules)
        return self.now - begun > resizing.DEFERRED_TIMEOUT

    def _asks_anyway(self, pod: Pod, permission: Permission) -> bool:
        """Upstream's mode InPlace sends the resize even where it should wait, if only the group is known."""
        if self.permissions.mode != modes.IN_PLACE or self.rules.budget_in_every_mode:
            return False
        if permission not in (Permission.DEFERRED, Permission.INFEASIBLE):
            return False
        return not isinstance(self.permissions.budget.group(pod), Refusal)


def _hopeless(pod: Pod, rules: Rules) -> Refusal:
    """What became of a resize that the node will not make any more."""
    status = resizing.resize_status(pod, rules=rules)
    if status is ResizeStatus.DEFERRED:
        return resizing.deferred(pod)
    if status is ResizeStatus.INFEASIBLE:
        return resizing.infeasible(pod)
    return resizing.refused(pod) if status is ResizeStatus.ERROR else resizing.failing(pod)
