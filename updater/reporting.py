"""What users see of the updater: events, logs, metrics and conditions."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from datetime import datetime

from updater import figures, standing
from updater.acting import OVER
from updater.figures import mode, name, size
from updater.metrics import AllMetrics
from updater.ownership import VpaKey, key_of
from updater.publishing import Publisher
from updater.settings import Settings
from updater.standing import Lasting, Standing
from vpa import modes
from vpa.cluster.events import Recorder, Reference
from vpa.cluster.resources import PODS, VERTICAL_AUTOSCALERS
from vpa.disruptions import Action, Decision, Memory, Plan, Surroundings
from vpa.objects.autoscalers import VerticalPodAutoscaler
from vpa.objects.pods import Pod
from vpa.reasons import Reason, Refusal
from vpa.telemetry import logs
from vpa.updates import hpas, outcomes
from vpa.updates.answers import NODE_CAPACITY, Answer
from vpa.updates.attempts import Target
from vpa.updates.breakers import Finding
from vpa.updates.passes import VpaPass
from vpa.updates.permissions import Permission

log = logging.getLogger(__name__)


class Reports:
    """Tells of single changes as they happen, and of whole passes."""

    def __init__(
        self,
        settings: Settings,
        recorder: Recorder,
        publisher: Publisher,
        metrics: AllMetrics,
        memory: Memory,
        *,
        now: Callable[[], datetime],
    ) -> None:
        self._settings = settings
        self._recorder = recorder
        self._publisher = publisher
        self._metrics = metrics
        self._memory = memory
        self._now = now
        self._lasting = Lasting()
        self._skipped: dict[str, Target] = {}
        """Uid of a pod → the infeasible resize that was told of."""

    # Single changes

    def done(self, decision: Decision) -> None:
        """The API server took it."""
        evicted = decision.action is Action.EVICT
        events = outcomes.evicted(decision.pod) if evicted else outcomes.resized()
        self._emit(decision.pod, decision.vpa, events)
        labels = size(decision.vpa_pass) | name(decision.vpa)
        if evicted:
            self._metrics.loop.evicted.inc(1, **labels, **mode(decision.vpa))
        else:
            self._metrics.loop.updated.inc(1, **labels)
        log.info("Evicted a pod" if evicted else "Resized a pod", extra=_facts(decision))

    def refused(self, decision: Decision, answer: Answer, refusal: Refusal) -> None:
        """It did not."""
        self._metrics.own.refusals.inc(action=decision.action.value, reason=refusal.reason)
        if decision.action is Action.EVICT:
            self._failed_eviction(decision, "EvictionError")
        else:
            infeasible = answer.code == 403 and NODE_CAPACITY in answer.causes
            in_place = modes.update_mode(decision.vpa) == modes.IN_PLACE
            reason = "InPlaceUpdateInfeasible" if infeasible and in_place else "InPlaceUpdateError"
            expired = decision.candidate is not None and decision.candidate.expired
            self._failed_update(decision, "UnboostError" if expired else reason)
        log.warning(
            "A pod was not %s: %s",
            "evicted" if decision.action is Action.EVICT else "resized",
            refusal.message,
            extra=_facts(decision) | {"reason": refusal.reason.value},
        )

    def withdrawn(self, decision: Decision, refusal: Refusal) -> None:
        """It was not sent after all."""
        self._metrics.own.withdrawn.inc(action=decision.action.value, reason=refusal.reason)
        if refusal is OVER and decision.action is Action.EVICT:
            self._failed_eviction(decision, "EvictionRateLimiterWaitFailed")
        elif refusal is OVER:
            self._failed_update(decision, "InPlaceUpdateRateLimiterWaitFailed")
        log.log(logs.V2, "Not sent: %s", refusal.message, extra=_facts(decision))

    def found(self, findings: Iterable[Finding], vpas: Mapping[VpaKey, VerticalPodAutoscaler]) -> None:
        """Replacements were looked at."""
        for one in findings:
            self._metrics.own.replacements.inc(carries_target=str(one.carries).lower())
            if one.refusal is None:
                continue
            log.warning(
                "A new pod came without its target: %s",
                one.refusal.message,
                extra={"pod": f"{one.key[0]}/{one.pod.metadata.name}", "vpa": "/".join(one.key)},
            )
            vpa = vpas.get(one.key)
            if vpa is not None and self._settings.rules.more_conditions:
                self._publisher.put(vpa, {standing.LOOP_BREAKER: standing.loop_breaker(one.refusal)})

    # A pass

    def passed(self, plan: Plan, surroundings: Surroundings, *, apart: Counter[Reason] | None = None) -> bool:
        """All decisions of a pass: are pods held back until a replacement is seen?

        *apart* counts the pods that were not planned for; None in a pass over some VPAs only.
        """
        now = self._now()
        by_vpa = {one.managed.key: Standing(one.managed.vpa, len(one.managed.pods)) for one in plan.passes}
        counts: Counter[tuple[str, Reason]] = Counter()
        for reason, pods in (apart or {}).items():
            counts[Action.NONE.value, reason] += pods
        for decision in plan.acted:
            if decision.candidate is not None and decision.candidate.acted:
                counts[decision.action.value, decision.reason] += 1
        held_back = False
        infeasible = []
        for decision in plan.others():
            counts[Action.NONE.value, decision.reason] += 1
            if _is_known_infeasible(decision):
                infeasible.append(decision)
            key = decision.vpa.metadata.namespace, decision.vpa.metadata.name
            by_vpa[key].add(decision)
            if decision.reason is Reason.LOOP_BREAKER:
                held_back = held_back or self._breaker(key, now) is None
        self._tell_of_skipped(plan, infeasible)
        if apart is not None:
            figures.publish(self._settings, self._metrics, plan, counts, now)
        if self._settings.rules.more_conditions:
            for key, one in by_vpa.items():
                self._put_conditions(key, one, surroundings, now)
        return held_back

    def without_pods(self, planned: Collection[VpaKey], vpas: Mapping[VpaKey, VerticalPodAutoscaler]) -> None:
        """VPAs that were not planned for have nothing to be blocked: what they still say is no longer so."""
        for key, vpa in vpas.items():
            present = (vpa.status.conditions if vpa.status is not None else None) or ()
            if key not in planned and any(one.type in standing.OWNED for one in present):
                self._publisher.put(vpa, dict.fromkeys(standing.OWNED))

    def forget(self, vpas: Mapping[VpaKey, object], uids: Collection[str]) -> None:
        """Drop what belongs to others than these VPAs and these pods."""
        self._lasting.forget(vpas)
        self._publisher.forget(vpas)
        for uid in [uid for uid in self._skipped if uid not in uids]:
            del self._skipped[uid]
        self._metrics.forget(vpas)

    def _put_conditions(self, key: VpaKey, one: Standing, surroundings: Surroundings, now: datetime) -> None:
        claims: list[hpas.Claim] = []
        if surroundings.hpas and not self._settings.updating.ignore_hpa:
            found = hpas.claims(one.vpa, surroundings.hpas.get(key[0], ()))
            claims = standing.relevant(found, one.vpa)
        wanted = standing.conditions(
            one,
            self._lasting.update(key, one.left_alone, now),
            breaker=self._breaker(key, now),
            claims=claims,
        )
        self._publisher.put(one.vpa, wanted)

    def _breaker(self, key: VpaKey, now: datetime) -> Refusal | None:
        """Why evictions of this VPA's pods are stopped for a time; None if they are not."""
        watched = self._memory.breakers.watched.get(key)
        if watched is None or watched.until is None or watched.until <= now:
            return None
        return self._memory.breakers.refusal(key, planned=0, open_in_all=0, now=now)

    def _tell_of_skipped(self, plan: Plan, decisions: Iterable[Decision]) -> None:
        """Resizes in mode InPlace that are known to be infeasible; upstream tells of them in every pass."""
        once = self._settings.rules.remember_refusals
        sizes = {one.managed.key: size(one) for one in plan.passes}
        skipped = [(one.pod, one.vpa, one.target) for one in decisions] if once else _known_infeasible(plan)
        for pod, vpa, target in skipped:
            self._metrics.loop.infeasible_skips.inc(1, **sizes[key_of(vpa)], **name(vpa))
            if once and self._skipped.get(pod.metadata.uid) == target:
                continue
            self._skipped[pod.metadata.uid] = target
            self._emit(pod, vpa, outcomes.resize_skipped())

    def _failed_eviction(self, decision: Decision, reason: str) -> None:
        labels = size(decision.vpa_pass) | mode(decision.vpa) | name(decision.vpa)
        self._metrics.loop.failed_evictions.inc(1, reason=reason, **labels)

    def _failed_update(self, decision: Decision, reason: str) -> None:
        labels = size(decision.vpa_pass) | name(decision.vpa)
        self._metrics.loop.failed_updates.inc(1, reason=reason, **labels)

    def _emit(self, pod: Pod, vpa: VerticalPodAutoscaler, events: Iterable[outcomes.Event]) -> None:
        for event in events:
            about = (
                Reference.of(PODS, pod.metadata)
                if event.about == outcomes.POD
                else Reference.of(VERTICAL_AUTOSCALERS, vpa.metadata)
            )
            self._recorder.emit(about, event.reason, event.message, type=event.type)


def _is_known_infeasible(decision: Decision) -> bool:
    """Is a resize in mode InPlace not tried because it failed before?"""
    return decision.reason is Reason.RESIZE_INFEASIBLE and modes.update_mode(decision.vpa) == modes.IN_PLACE


def _known_infeasible(plan: Plan) -> Iterator[tuple[Pod, VerticalPodAutoscaler, Target]]:
    """The same as upstream finds it: before it asks whether the pod is due at all."""
    known = plan.memory.attempts.infeasible
    for one in plan.passes:
        permissions = one.trials.permissions
        if permissions.mode != modes.IN_PLACE or not known:
            continue
        for index, pod in enumerate(one.managed.pods):
            if pod.metadata.uid not in known or _is_settled_as(one, index, figures.NOT_LIVE):
                continue
            if permissions.resize(pod).permission is Permission.INFEASIBLE_CACHED:
                yield pod, one.managed.vpa, {}


def _is_settled_as(one: VpaPass, index: int, reasons: Collection[Reason]) -> bool:
    return index in one.settled and one.settled[index][0].reason in reasons


def _facts(decision: Decision) -> dict[str, str]:
    metadata = decision.pod.metadata
    return {
        "pod": f"{metadata.namespace}/{metadata.name}",
        "vpa": decision.vpa.metadata.name,
        "why": decision.reason.value,
        "what": decision.message,
    }
