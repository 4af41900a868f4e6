"""The updater's plan: for each pod what is done to it, or why not.

    plan = disruptions.plan(managed, surroundings, memory, now=now, options=options)
    for decision in plan.acted: …                         # send it, then tell the plan what came of it:
        plan.accepted(decision, now)                      # or
        more = plan.refused(decision, answer, now)        # what to do now instead

The plan counts each change as made when it hands it out, so its decisions may be carried out side by side.
Before each plan `observe` looks at new pods, for the loop breaker. Nothing here reads a clock.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime

from vpa import modes
from vpa.objects.autoscalers import VerticalPodAutoscaler
from vpa.objects.pods import Pod
from vpa.reasons import Reason, Refusal
from vpa.updates import answers
from vpa.updates.answers import Answer, Meaning, Scope
from vpa.updates.attempts import Target
from vpa.updates.breakers import Finding
from vpa.updates.budgets import group_of
from vpa.updates.candidates import Action, Candidate, Judge, describe
from vpa.updates.passes import Managed, Tally, VpaPass
from vpa.updates.permissions import restarted
from vpa.updates.priorities import Priority
from vpa.updates.resize_patches import ResizePatch, changes
from vpa.updates.surroundings import Memory, Options, Surroundings

__all__ = [
    "Action",
    "Decision",
    "Managed",
    "Memory",
    "Options",
    "Plan",
    "Surroundings",
    "forget",
    "observe",
    "plan",
]


@dataclass(frozen=True, kw_only=True, slots=True)
class Decision:
    """What is done to one pod, or why nothing is."""

    pod: Pod
    vpa: VerticalPodAutoscaler
    action: Action
    reason: Reason
    message: str
    """What is done; or what would have to change for something to be done."""
    priority: Priority | None = None
    """None where no recommendation applies."""
    patch: ResizePatch | None = None
    candidate: Candidate | None = None
    vpa_pass: VpaPass | None = None

    @property
    def target(self) -> Target:
        """The values that the pod is to have."""
        return self.candidate.target if self.candidate is not None else {}


class Plan:
    """The decisions about all pods, and what has come of them so far."""

    def __init__(self, passes: Sequence[VpaPass], memory: Memory, options: Options) -> None:
        self.passes = passes
        self.memory = memory
        self.options = options
        self.acted: list[Decision] = []
        """What was handed out to be done, in order."""

    def advance(self) -> None:
        """Hand out all that the budgets allow, VPA by VPA."""
        for one in self.passes:
            self._hand_out(one)

    def _hand_out(self, one: VpaPass) -> list[Decision]:
        new = [_acting(candidate, one) for candidate in one.advance()]
        self.acted.extend(new)
        return new

    def others(self) -> Iterator[Decision]:
        """Why nothing is done to the other pods, in the order in which they were given."""
        for one in self.passes:
            for index, pod in enumerate(one.managed.pods):
                candidate = one.candidates.get(index)
                if candidate is None:
                    refusal, judged = one.settled[index]
                    priority = judged.priority if judged is not None and judged.priority.applies else None
                    yield _idle(pod, one, refusal, priority)
                elif not candidate.acted and candidate.refusal is not None:
                    yield _idle(pod, one, _explained(candidate), candidate.priority, candidate)

    def accepted(self, decision: Decision, now: datetime, *, generation: int = 0) -> None:
        """The API server took it; *generation* is the pod's ``metadata.generation`` after a resize."""
        candidate, one = _parts(decision)
        uid = decision.pod.metadata.uid
        attempts = self.memory.attempts
        if decision.action is Action.EVICT:
            attempts.accepted(attempts.evictions, uid, decision.target, now)
            self.memory.breakers.evicted(one.managed.key, decision.pod, now)
        else:
            attempts.accepted(attempts.resizes, uid, decision.target, now, generation=generation)
            self._remember_infeasible(candidate, one)
        one.accepted(candidate)

    def refused(self, decision: Decision, answer: Answer, now: datetime) -> list[Decision]:
        """The API server did not take it: what to do now, instead or with the budget that became free."""
        candidate, one = _parts(decision)
        uid = decision.pod.metadata.uid
        attempts = self.memory.attempts
        evicting = decision.action is Action.EVICT
        where = attempts.evictions if evicting else attempts.resizes
        failures = attempts.failures(where, uid)
        meaning = (answers.eviction if evicting else answers.resize)(answer, failures=failures)
        rules = self.options.rules
        if rules.remember_refusals and meaning.pause != answers.NEVER:
            attempts.refused(where, uid, decision.target, now, refusal=meaning.refusal, pause=meaning.pause)
        if not evicting:
            self._remember_infeasible(candidate, one, asked=meaning.infeasible)
        happened = not meaning.refused and rules.count_open_attempts
        evict = not evicting and self._evict_instead(candidate, one, meaning)
        one.taken_back(candidate, meaning.refusal, happened=happened, evict=evict)
        self._spread(decision, one, meaning)
        return self._hand_out(one)

    def withdrawn(self, decision: Decision, refusal: Refusal) -> None:
        """It was not sent after all, for *refusal*: the pass is over, or the pod was found changed."""
        candidate, one = _parts(decision)
        one.taken_back(candidate, refusal, happened=False, evict=False)

    def _evict_instead(self, candidate: Candidate, one: VpaPass, meaning: Meaning) -> bool:
        """A failed resize leads to eviction where the mode allows it; never the failed end of a boost."""
        if candidate.expired or not one.trials.permits.by_eviction:
            return False
        if not self.options.rules.fall_back_only_when_refused:
            return True
        return meaning.refused and meaning.refusal.reason is not Reason.QUOTA_EXCEEDED

    def _remember_infeasible(self, candidate: Candidate, one: VpaPass, *, asked: bool = False) -> None:
        """Upstream's memory of mode InPlace: what was recommended when a resize was found infeasible."""
        known = self.memory.attempts.infeasible
        uid = candidate.pod.metadata.uid
        if self.options.rules.remember_refusals:
            known.pop(uid, None)
            return
        recommendation = one.trials.permissions.recommendation(candidate.pod)
        in_place = one.trials.permissions.mode == modes.IN_PLACE
        if recommendation is not None and in_place and (candidate.infeasible or asked):
            known[uid] = tuple(recommendation.container_recommendations or ())

    def _spread(self, decision: Decision, one: VpaPass, meaning: Meaning) -> None:
        """Whom else the answer concerns in this pass."""
        if not self.options.rules.remember_refusals:
            return
        if meaning.feature_missing:
            for other in self.passes:
                other.trials.resize_missing = meaning.refusal
        elif meaning.scope is Scope.CLUSTER:
            for other in self.passes:
                other.trials.stopped = meaning.refusal
        elif meaning.scope is Scope.GROUP:
            group = group_of(decision.pod)
            tried_before = group in one.trials.hindered
            one.trials.hindered.add(group)
            if tried_before or meaning.misconfigured:
                one.trials.blocked[group] = meaning.refusal


def plan(
    managed: Iterable[Managed],
    surroundings: Surroundings,
    memory: Memory,
    *,
    now: datetime,
    options: Options,
) -> Plan:
    """Decide about all pods of *managed*, VPA by VPA in the order of their names.

    Of *memory* it changes only when a resize was first seen.
    """
    surroundings = surroundings.fresh()
    ordered = sorted(managed, key=lambda one: one.key)
    tally = Tally(memory.breakers.unproven())
    passes = [VpaPass(one, surroundings, memory, now=now, options=options, tally=tally) for one in ordered]
    result = Plan(passes, memory, options)
    result.advance()
    return result


def observe(
    managed: Managed, surroundings: Surroundings, memory: Memory, *, now: datetime, options: Options
) -> list[Finding]:
    """Look at the VPA's new pods: do they carry their target? Call it before each plan."""
    if not options.rules.break_eviction_loops:
        return []
    judge = Judge(managed.vpa, surroundings, now=now, options=options)
    return memory.breakers.look(managed.key, managed.pods, judge.carries, now)


def forget(memory: Memory, managed: Sequence[Managed]) -> None:
    """Drop what is remembered of pods and VPAs that are gone; *managed* is all that there is."""
    memory.attempts.forget({pod.metadata.uid for one in managed for pod in one.pods})
    memory.breakers.forget({one.key for one in managed})


def _parts(decision: Decision) -> tuple[Candidate, VpaPass]:
    if decision.candidate is None or decision.vpa_pass is None:
        raise ValueError(f"nothing is done to pod {decision.pod.metadata.name}, so nothing can come of it")
    return decision.candidate, decision.vpa_pass


def _acting(candidate: Candidate, one: VpaPass) -> Decision:
    change = describe(candidate)
    if candidate.way is Action.EVICT and candidate.fell_back is not None:
        reason = Reason.RESIZE_FELL_BACK
        message = f"evicted because it cannot be resized: {candidate.fell_back.message} ({change})"
    elif candidate.expired:
        reason = Reason.BOOST_EXPIRED
        message = f"the startup boost of {', '.join(candidate.expired)} is over"
    else:
        reason = candidate.why
        message = f"{_WHY[reason]} ({change})"
    return Decision(
        pod=candidate.pod,
        vpa=one.managed.vpa,
        action=candidate.way,
        reason=reason,
        message=message + _restarting(candidate),
        priority=candidate.priority if candidate.priority.applies else None,
        patch=candidate.patch if candidate.way is Action.RESIZE else None,
        candidate=candidate,
        vpa_pass=one,
    )


def _restarting(candidate: Candidate) -> str:
    """What a resize interrupts, as the end of a message."""
    if candidate.way is not Action.RESIZE or candidate.patch is None:
        return ""
    names = restarted(candidate.pod, changes(candidate.pod, candidate.patch.wanted))
    return f"; by resizePolicy this restarts {', '.join(names)}" if names else ""


def _idle(
    pod: Pod,
    one: VpaPass,
    refusal: Refusal,
    priority: Priority | None,
    candidate: Candidate | None = None,
) -> Decision:
    return Decision(
        pod=pod,
        vpa=one.managed.vpa,
        action=Action.NONE,
        reason=refusal.reason,
        message=refusal.message,
        priority=priority,
        candidate=candidate,
    )


def _explained(candidate: Candidate) -> Refusal:
    """A refused eviction tells also why there was no resize."""
    refusal, before = candidate.refusal, candidate.fell_back
    if refusal is None or before is None or before == refusal:
        return refusal or Refusal(candidate.why, "")
    return Refusal(refusal.reason, f"{before.message}; and as for eviction: {refusal.message}")


_WHY = {
    Reason.OUTSIDE_BOUNDS: "a request is outside its recommended bounds",
    Reason.QUICK_OOM: "a container was OOM-killed soon after its start",
    Reason.DRIFT: "the pod is old enough and far enough from its target",
}
