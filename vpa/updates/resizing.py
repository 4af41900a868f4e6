"""In-place resize as the node reports it: its state, since when, and when it is hopeless enough to evict."""

from __future__ import annotations

from datetime import datetime, timedelta
from enum import Enum
from typing import Final

from vpa.objects.pods import Pod, PodCondition
from vpa.reasons import Reason, Refusal
from vpa.rules import Rules
from vpa.updates.attempts import Attempts

PENDING: Final = "PodResizePending"
IN_PROGRESS: Final = "PodResizeInProgress"

DEFERRED_TIMEOUT: Final = timedelta(minutes=5)
IN_PROGRESS_TIMEOUT: Final = timedelta(hours=1)
PICK_UP: Final = timedelta(minutes=1)
"""A resize that the node has not mentioned yet counts as running for so long."""


class ResizeStatus(Enum):
    """What the pod's conditions say about a resize."""

    NONE = "None"
    DEFERRED = "Deferred"
    INFEASIBLE = "Infeasible"
    IN_PROGRESS = "InProgress"
    ERROR = "Error"
    UNKNOWN = "Unknown"


def find(pod: Pod, kind: str) -> PodCondition | None:
    """The first condition of that type."""
    return next((found for found in pod.status.conditions or () if found.type == kind), None)


def is_resizing(pod: Pod) -> bool:
    """Does the first condition about a resize hold?"""
    for condition in pod.status.conditions or ():
        if condition.type in (PENDING, IN_PROGRESS):
            return condition.status == "True"
    return False


def is_stale(pod: Pod, condition: PodCondition) -> bool:
    """Does the condition speak of an older spec than the present one?"""
    return 0 < condition.observed_generation < pod.metadata.generation


def resize_status(pod: Pod, *, rules: Rules) -> ResizeStatus:
    """The state of the pod's resize; a pending one wins over one in progress.

    A condition about an older spec says nothing about this one (`resize_timers_from_conditions`).
    """
    if not is_resizing(pod):
        return ResizeStatus.NONE
    pending, progress = find(pod, PENDING), find(pod, IN_PROGRESS)
    condition = pending or progress
    if rules.resize_timers_from_conditions and condition is not None and is_stale(pod, condition):
        return ResizeStatus.IN_PROGRESS
    if pending is not None:
        known = {"Deferred": ResizeStatus.DEFERRED, "Infeasible": ResizeStatus.INFEASIBLE}
        return known.get(pending.reason, ResizeStatus.UNKNOWN)
    if progress is not None and not progress.reason and not progress.message:
        return ResizeStatus.IN_PROGRESS
    if progress is not None and progress.reason == "Error":
        return ResizeStatus.ERROR
    return ResizeStatus.UNKNOWN


def since(pod: Pod, attempts: Attempts, now: datetime, *, rules: Rules) -> datetime:
    """When the present resize began.

    Upstream: when a pod of this name was first seen resizing. Ours: the condition's own transition, or our
    own later attempt, since a condition that stays true keeps the time of the first resize.
    """
    if not rules.resize_timers_from_conditions:
        return attempts.sight(f"{pod.metadata.namespace}/{pod.metadata.name}", now)
    condition = find(pod, PENDING) or find(pod, IN_PROGRESS)
    begun = condition.last_transition_time if condition is not None else None
    if begun is None or (condition is not None and is_stale(pod, condition)):
        begun = attempts.sight(f"{pod.metadata.uid}@{pod.metadata.generation}", now)
    attempt = attempts.resizes.get(pod.metadata.uid)
    return max(begun, attempt.at) if attempt is not None and attempt.refusal is None else begun


def stuck(pod: Pod, attempts: Attempts, now: datetime, *, rules: Rules) -> Refusal | None:
    """Why a resizing pod has to wait; None when its resize is hopeless and eviction may take its place."""
    status = resize_status(pod, rules=rules)
    begun = since(pod, attempts, now, rules=rules)
    if status is ResizeStatus.DEFERRED:
        return None if now - begun > DEFERRED_TIMEOUT else deferred(pod)
    if status is ResizeStatus.IN_PROGRESS:
        return None if now - begun > IN_PROGRESS_TIMEOUT else in_progress(pod)
    if status is ResizeStatus.ERROR and rules.keep_memory_limit_above_use and below_use(pod):
        return Refusal(
            Reason.LIMIT_BELOW_USAGE,
            f"the node does not lower the memory limit: {_message(pod)}; "
            "it tries on, and a new pod would start with too little",
        )
    return None


def below_use(pod: Pod) -> bool:
    """Is the resize held up because the new memory limit is below what is in use?"""
    condition = find(pod, IN_PROGRESS)
    return (
        condition is not None and condition.reason == "Error" and "below current usage" in condition.message
    )


def deferred(pod: Pod) -> Refusal:
    return Refusal(
        Reason.RESIZE_DEFERRED,
        f"the node has no room for the resize now{_quoted(pod)}: it is made when room appears",
    )


def in_progress(pod: Pod) -> Refusal:
    return Refusal(Reason.RESIZE_IN_PROGRESS, f"the node is making the last resize{_quoted(pod)}")


def infeasible(pod: Pod) -> Refusal:
    return Refusal(
        Reason.RESIZE_INFEASIBLE,
        f"the node cannot make the resize{_quoted(pod)}: a lower target or another node is needed",
    )


def failing(pod: Pod) -> Refusal:
    return Refusal(
        Reason.RESIZE_IN_PROGRESS,
        f"the node fails to make the resize and tries on{_quoted(pod)}",
    )


def refused(pod: Pod) -> Refusal:
    """The node says that it failed; what would have to change."""
    if below_use(pod):
        return Refusal(
            Reason.LIMIT_BELOW_USAGE,
            f"the node does not lower the memory limit: {_message(pod)}; it does when the use falls or the "
            "recommendation rises",
        )
    return Refusal(
        Reason.RESIZE_REFUSED,
        f"the node refuses the resize{_quoted(pod)} and tries on: what it names has to change, or the "
        "target, or a new pod is needed",
    )


def held_up(pod: Pod, *, rules: Rules) -> Refusal | None:
    """Why the node has not made the resize to what the pod's spec has; None: it has, or it is about to.

    The kubelet's figures may be those of the spec long before: it enforces no memory request, for example.
    """
    status = resize_status(pod, rules=rules)
    if status is ResizeStatus.ERROR:
        return refused(pod)
    if status is ResizeStatus.INFEASIBLE:
        return infeasible(pod)
    return deferred(pod) if status is ResizeStatus.DEFERRED else None


def _message(pod: Pod) -> str:
    condition = find(pod, PENDING) or find(pod, IN_PROGRESS)
    return condition.message or condition.reason if condition is not None else ""


def _quoted(pod: Pod) -> str:
    message = _message(pod)
    return f" ({message})" if message else ""


def is_open(pod: Pod, attempts: Attempts, now: datetime, *, rules: Rules) -> bool:
    """Is the pod disrupted, or about to be, by a resize of an earlier pass?

    One that the node defers or refuses disturbs nothing.
    """
    status = resize_status(pod, rules=rules)
    if status in (ResizeStatus.IN_PROGRESS, ResizeStatus.UNKNOWN):
        return now - since(pod, attempts, now, rules=rules) < IN_PROGRESS_TIMEOUT
    attempt = attempts.resizes.get(pod.metadata.uid)
    if status is not ResizeStatus.NONE or attempt is None or attempt.refusal is not None:
        return False
    if now - attempt.at >= PICK_UP:
        return False
    return pod.metadata.generation < attempt.generation or not is_done(pod)


def is_done(pod: Pod) -> bool:
    """Do all containers have in force what their spec says? True too where the node does not tell."""
    in_force = {status.name: status.resources for status in pod.status.container_statuses or ()}
    for container in pod.spec.containers or ():
        now, wanted = in_force.get(container.name), container.resources
        if now is None or wanted is None:
            continue
        if any((now.requests or {}).get(name) != value for name, value in (wanted.requests or {}).items()):
            return False
        if any((now.limits or {}).get(name) != value for name, value in (wanted.limits or {}).items()):
            return False
    return True
