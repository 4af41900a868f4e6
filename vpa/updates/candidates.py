"""One pod against its recommendation: what it should have, how far off it is, and whether it is due."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Final

from vpa import modes
from vpa.objects.autoscalers import VerticalPodAutoscaler
from vpa.objects.pods import Pod
from vpa.pods import Desired
from vpa.reasons import Reason, Refusal
from vpa.scopes import for_pod, scope_label
from vpa.sizes.actual import Actual, actual_resources
from vpa.sizes.nodes_fit import is_finished
from vpa.sizes.sizing import sized, wanted_resources
from vpa.updates import hpas, priorities, unboosting
from vpa.updates.attempts import Target
from vpa.updates.priorities import Acceptance, Priority
from vpa.updates.resize_patches import ResizePatch, target_of
from vpa.updates.surroundings import Memory, Options, Surroundings


class Action(StrEnum):
    """What is done to a pod."""

    RESIZE = "resize"
    EVICT = "evict"
    NONE = "none"


@dataclass(slots=True)
class Candidate:
    """A pod that is due, and what became of it in this pass."""

    pod: Pod
    priority: Priority
    why: Reason
    desired: Desired
    actual: dict[str, Actual]
    way: Action
    """`Action.RESIZE` or `Action.EVICT`: what is tried."""
    expired: tuple[str, ...] = ()
    """Containers whose startup boost is to be ended."""
    fell_back: Refusal | None = None
    """Why it is not resized in place."""
    refusal: Refusal | None = None
    """Why it is not done; None: not judged yet, or done."""
    acted: bool = False
    final: bool = False
    """Nothing more is tried in this pass."""
    patch: ResizePatch | None = None
    infeasible: bool = False
    """The node found this resize infeasible, and it is asked all the same (upstream's mode InPlace)."""

    @property
    def open(self) -> bool:
        return not self.acted and not self.final

    @property
    def target(self) -> Target:
        """All values that the pod is to have."""
        if self.patch is not None:
            return self.patch.target
        return target_of(wanted_resources(self.pod, self.desired.containers))


@dataclass(frozen=True, slots=True)
class Judged:
    """A live pod that was compared with its recommendation."""

    desired: Desired
    actual: dict[str, Actual]
    priority: Priority
    verdict: Reason | Refusal


Compared = tuple[Desired, dict[str, Actual], Priority]

ALIKE: Final = 4
"""Kinds of pods of one VPA that are remembered: old ones and new ones, with and without a boost."""


class Judge:
    """Compares the pods of one VPA with its recommendation."""

    def __init__(
        self,
        vpa: VerticalPodAutoscaler,
        surroundings: Surroundings,
        *,
        now: datetime,
        options: Options,
    ) -> None:
        self.surroundings = surroundings
        self.options = options
        self.whole = vpa
        self.claims: list[hpas.Claim] = []
        if not options.updating.ignore_hpa and surroundings.hpas:
            self.claims = hpas.claims(vpa, surroundings.hpas.get(vpa.metadata.namespace, ()))
        self.vpa = hpas.leave(vpa, self.claims)
        self.split = bool(scope_label(vpa))
        self.boosting = options.behaviour.feature_gates.cpu_startup_boost and modes.has_startup_boost(vpa)
        self.now = now
        self._compared: deque[tuple[VerticalPodAutoscaler, object, Compared]] = deque(maxlen=ALIKE)
        self.acceptance = Acceptance.of(
            vpa,
            options.updating,
            per_vpa_config=options.behaviour.feature_gates.per_vpa_config,
            now=now,
            rules=options.rules,
        )

    def judge(self, pod: Pod) -> Judged:
        """What *pod* should have and whether it is due."""
        whole, free = self._views(pod)
        judged = self._judge(pod, free)
        idle = self.claims and isinstance(judged.verdict, Refusal)
        if idle and isinstance(self._judge(pod, whole).verdict, Reason):
            refusal = Refusal(Reason.HPA_CONFLICT, hpas.describe(self.claims))
            return Judged(judged.desired, judged.actual, judged.priority, refusal)
        return judged

    def carries(self, pod: Pod) -> bool | None:
        """Does a new pod have its target already? None without a target."""
        judged = self._judge(pod, self._views(pod)[1])
        if not judged.priority.applies:
            return None
        near = judged.priority.resource_diff < self.options.updating.pod_update_threshold
        return near and not judged.priority.outside_recommended_range

    def expired(self, pod: Pod) -> tuple[str, ...]:
        """The containers whose startup boost is over."""
        return tuple(unboosting.expired_containers(pod, self.whole, self.now)) if self.boosting else ()

    def _views(self, pod: Pod) -> tuple[VerticalPodAutoscaler, VerticalPodAutoscaler]:
        """The VPA with what it recommends for nodes like the pod's; and without what HPAs claim of that."""
        if not self.split:
            return self.whole, self.vpa
        whole = for_pod(self.whole, pod, self.surroundings.nodes)
        return whole, hpas.leave(whole, self.claims)

    def _judge(self, pod: Pod, vpa: VerticalPodAutoscaler) -> Judged:
        desired, actual, priority = self._compare(pod, vpa)
        if not priority.applies:
            refusal = desired.reason or Refusal(
                Reason.NO_RECOMMENDATION,
                f"VPA {vpa.metadata.name} recommends nothing for the pod's containers",
            )
            return Judged(desired, actual, priority, refusal)
        verdict = self.acceptance.judge(pod, priority, vpa.spec.resource_policy)
        return Judged(desired, actual, priority, verdict)

    def _compare(self, pod: Pod, vpa: VerticalPodAutoscaler) -> Compared:
        """Pods of one template are alike, and so is what comes of them; a node's room may be another's."""
        if self.options.sizing.cap_to_node:
            return self._compare_anew(pod, vpa)
        traits = _traits(pod)
        for known, like, compared in self._compared:
            if known is vpa and like == traits:
                return compared
        compared = self._compare_anew(pod, vpa)
        self._compared.append((vpa, traits, compared))
        return compared

    def _compare_anew(self, pod: Pod, vpa: VerticalPodAutoscaler) -> Compared:
        cap_to = self.surroundings.rooms if self.options.sizing.cap_to_node else None
        ranges = self.surroundings.range_of(pod.metadata.namespace)
        desired = sized(pod, vpa, ranges, rules=self.options.rules, cap_to=cap_to)
        actual = actual_resources(pod)
        return desired, actual, priorities.update_priority(pod, desired.recommendations, actual)


def _traits(pod: Pod) -> object:
    """All of a pod that its sizes and its distance from them depend on."""
    spec, statuses = pod.spec, pod.status.container_statuses or ()
    told = [(status.name, status.resources) for status in statuses]
    return spec.containers, spec.init_containers, spec.resources, pod.metadata.annotations, told


def not_live(pod: Pod, memory: Memory, now: datetime, *, options: Options) -> Refusal | None:
    """Why a pod does not count among the live ones."""
    if pod.metadata.deletion_timestamp is not None:
        return Refusal(Reason.POD_TERMINATING, "the pod is being deleted")
    if is_finished(pod):
        return Refusal(Reason.POD_FINISHED, f"the pod has ended ({pod.status.phase})")
    if options.rules.count_open_attempts and memory.attempts.is_leaving(pod, now):
        return Refusal(Reason.POD_TERMINATING, "the pod was evicted a moment ago")
    return None


def describe(candidate: Candidate) -> str:
    """``main: cpu 100m → 250m, memory 100Mi → 200Mi``: what the pod, or the one after it, gets."""
    wanted = {entry.container_name: entry.target or {} for entry in candidate.desired.recommendations}
    if candidate.way is Action.RESIZE and candidate.patch is not None:  # it may leave some of that out
        wanted = {name: resources.requests or {} for name, resources in candidate.patch.wanted.items()}
    parts = []
    for name, targets in wanted.items():
        requests = (candidate.actual[name].requests or {}) if name in candidate.actual else {}
        changed = [
            f"{resource} {requests.get(resource, 'none')} → {target}"
            for resource, target in sorted(targets.items())
            if requests.get(resource) != target
        ]
        if changed:
            parts.append(f"{name}: {', '.join(changed)}")
    return "; ".join(parts)
