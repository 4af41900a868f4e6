"""Which pods should change, and which of them first: how far they are from their target, and why now."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

from vpa.objects.autoscalers import (
    ContainerRecommendation,
    EvictionRequirement,
    ResourcePolicy,
    VerticalPodAutoscaler,
)
from vpa.objects.pods import ContainerStatus, Pod, Terminated
from vpa.policies import is_off
from vpa.reasons import Reason, Refusal
from vpa.rules import Rules
from vpa.settings import Updating
from vpa.sizes.actual import NOTHING, Actual
from vpa.sizes.observed import observed_containers
from vpa.updates.attempts import lower_target

OOM_KILLED: Final = "OOMKilled"
HIGHER: Final = "TargetHigherThanRequests"
LOWER: Final = "TargetLowerThanRequests"

_GO_ZERO: Final = datetime(1, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Priority:
    """How far a pod is from its recommendation."""

    scale_up: bool
    """Some request is below its target, or missing."""
    resource_diff: float
    """Sum over the resources of |requests − targets| / requests, each summed over the pod's containers."""
    outside_recommended_range: bool
    """Some request is below its lower or above its upper bound, or missing."""
    differs: bool
    """Some request is not its target."""
    applies: bool
    """There is a target for some container of the pod."""

    @property
    def rank(self) -> tuple[bool, float]:
        """Sorts the most urgent first."""
        return not self.scale_up, -self.resource_diff


def update_priority(
    pod: Pod,
    recommendations: Iterable[ContainerRecommendation],
    actual: Mapping[str, Actual],
) -> Priority:
    """Compare what *pod* has (*actual*) with what it may have (*recommendations*, capped for it).

    Init containers and containers that the admission controller did not see do not count.
    """
    observed = observed_containers(pod)
    entries: dict[str, ContainerRecommendation] = {}
    for entry in recommendations:
        entries.setdefault(entry.container_name, entry)
    requested: dict[str, int] = {}
    recommended: dict[str, int] = {}
    up = outside = differs = False
    for container in pod.spec.containers or ():
        name = container.name
        entry = entries.get(name)  # type: ignore[assignment]
        if entry is None or (observed is not None and name not in observed):
            continue
        requests = actual.get(name, NOTHING).requests or {}
        lower, upper = entry.lower_bound or {}, entry.upper_bound or {}
        for resource, target in (entry.target or {}).items():
            wanted = target.milli()
            recommended[resource] = recommended.get(resource, 0) + wanted
            request = requests.get(resource)
            if request is None:
                up = outside = differs = True
                continue
            has = request.milli()
            requested[resource] = requested.get(resource, 0) + has
            up = up or wanted > has
            differs = differs or wanted != has
            outside = (
                outside
                or (resource in lower and request < lower[resource])
                or (resource in upper and request > upper[resource])
            )
    diff = 0.0
    for resource, total in sorted(recommended.items()):
        base = max(float(requested.get(resource, 0)), 1.0)
        diff += abs(base - float(total)) / base
    return Priority(up, diff, outside, differs, bool(recommended))


@dataclass(frozen=True, kw_only=True, slots=True)
class Acceptance:
    """What decides, beside the priority itself, whether a pod is changed now."""

    updating: Updating
    oom_threshold: timedelta
    now: datetime
    rules: Rules

    @classmethod
    def of(
        cls,
        vpa: VerticalPodAutoscaler,
        updating: Updating,
        *,
        per_vpa_config: bool,
        now: datetime,
        rules: Rules,
    ) -> Acceptance:
        """The thresholds that hold for *vpa*; *per_vpa_config* is the feature gate of that name."""
        policy = vpa.spec.update_policy
        own = policy.evict_after_oom_seconds if policy is not None else None
        threshold = timedelta(microseconds=updating.evict_after_oom_threshold / 1000)
        if own is not None and per_vpa_config:
            threshold = timedelta(seconds=own)
        return cls(updating=updating, oom_threshold=threshold, now=now, rules=rules)

    def judge(self, pod: Pod, priority: Priority, policy: ResourcePolicy | None) -> Reason | Refusal:
        """Why the pod is changed now, or why not."""
        if self.oom(pod, policy):
            if priority.resource_diff == 0:
                return _up_to_date(
                    "was OOM-killed, but has its target: a higher recommendation would help it"
                )
            return Reason.QUICK_OOM
        if priority.outside_recommended_range:
            return Reason.OUTSIDE_BOUNDS
        age_needed = timedelta(
            microseconds=self.updating.in_recommendation_bounds_eviction_lifetime_threshold / 1000
        )
        started = pod.status.start_time
        young = started is None or self.now < started + age_needed
        near = priority.resource_diff < self.updating.pod_update_threshold
        if not young and not near:
            return Reason.DRIFT
        if priority.applies and not priority.differs:
            return _up_to_date("has its target")
        percent = f"{priority.resource_diff * 100:.3g} %"
        threshold = f"{self.updating.pod_update_threshold * 100:.3g} %"
        old_enough = f"older than {_hours(age_needed)}"
        if young and near:
            return Refusal(
                Reason.WITHIN_BOUNDS,
                f"all requests are within their bounds and off by {percent}: it changes when one leaves "
                f"them, or when the pod is {old_enough} and off by {threshold}",
            )
        if young:
            return Refusal(
                Reason.TOO_YOUNG,
                f"the requests are within their bounds, off by {percent}: the pod must be {old_enough}"
                + (f" (on {started + age_needed:%Y-%m-%d %H:%M} UTC)" if started else ""),
            )
        return Refusal(
            Reason.BELOW_THRESHOLD,
            f"the requests are within the recommended bounds and off by {percent}: it changes at {threshold} "
            "(--pod-update-threshold)",
        )

    def oom(self, pod: Pod, policy: ResourcePolicy | None) -> bool:
        """Was some container of ours OOM-killed soon after its start, and not long ago?"""
        statuses = pod.status.container_statuses
        if not statuses:
            return False
        suspects = [status for status in statuses if self._quick_oom(status)]
        if not suspects:
            return False
        observed = observed_containers(pod)
        return any(
            (observed is None or status.name in observed) and not is_off(policy, status.name)
            for status in suspects
        )

    def _quick_oom(self, status: ContainerStatus) -> bool:
        return self._soon(status.last_state.terminated) or (
            self.rules.see_oom_at_once and self._soon(status.state.terminated)
        )

    def _soon(self, end: Terminated | None) -> bool:
        if end is None or end.reason != OOM_KILLED:
            return False
        finished = end.finished_at or _GO_ZERO
        ran, ago = finished - (end.started_at or _GO_ZERO), self.now - finished
        return ran < self.oom_threshold and ago < self.oom_threshold


def worth_another_try(
    recommendations: Iterable[ContainerRecommendation], infeasible: Iterable[ContainerRecommendation] | None
) -> bool:
    """Upstream's mode InPlace: after an infeasible attempt only a lower target is tried."""
    return infeasible is None or lower_target(recommendations, infeasible)


def in_order(pods: Iterable[tuple[Pod, Priority]]) -> list[tuple[Pod, Priority]]:
    """The most urgent first: those that need more, then those that are furthest off; equal ones as given."""
    return sorted(pods, key=lambda one: one[1].rank)


def requirements_met(
    pod: Pod,
    requirements: Sequence[EvictionRequirement],
    recommendations: Iterable[ContainerRecommendation],
    actual: Mapping[str, Actual],
    *,
    rules: Rules,
) -> bool:
    """Does some container satisfy every requirement? A container without a CPU or memory request does."""
    entries: dict[str, ContainerRecommendation] = {}
    for entry in recommendations:
        entries.setdefault(entry.container_name, entry)
    for container in pod.spec.containers or ():
        entry = entries.get(container.name)  # type: ignore[assignment]
        if entry is None:
            continue
        requests = actual.get(container.name, NOTHING).requests or {}
        if "cpu" not in requests or "memory" not in requests:
            return True
        target = entry.target or {}

        def changes(resource: str, direction: str) -> bool:
            if resource not in target and rules.requirements_need_a_target:  # noqa: B023
                return False
            wanted = target[resource].milli() if resource in target else 0  # noqa: B023
            has = requests[resource].milli() if resource in requests else 0  # noqa: B023
            return (direction == HIGHER and wanted > has) or (direction == LOWER and wanted < has)

        if all(
            any(changes(resource, one.change_requirement) for resource in one.resources or ())
            for one in requirements
        ):
            return True
    return False


def describe(requirements: Iterable[EvictionRequirement]) -> str:
    """The requirements as words for messages."""
    words = {HIGHER: "above", LOWER: "below"}
    parts = []
    for one in requirements:
        side = words.get(one.change_requirement, one.change_requirement)
        parts.append(f"the target of {' or '.join(one.resources or ())} is {side} the request")
    return " and ".join(parts)


def _up_to_date(what: str) -> Refusal:
    return Refusal(Reason.UP_TO_DATE, f"the pod {what}")


def _hours(length: timedelta) -> str:
    hours = length / timedelta(hours=1)
    return f"{hours:g} h" if hours >= 1 else f"{length.total_seconds():g} s"
