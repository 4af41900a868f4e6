"""One pass over the pods of one VPA: a state machine that says which to change now, and why not the others.

It counts each change as made when it hands it out. `taken_back` returns what the API server refused, and
`advance` then hands out what the budget has become free for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from vpa import modes
from vpa.objects.autoscalers import VerticalPodAutoscaler
from vpa.objects.pods import Pod
from vpa.reasons import Reason, Refusal
from vpa.sizes.footprints import resized
from vpa.sizes.sizing import wanted_resources
from vpa.updates import priorities, resizing
from vpa.updates.budgets import is_boosted
from vpa.updates.candidates import Action, Candidate, Judge, Judged, not_live
from vpa.updates.permissions import Permissions, restarts
from vpa.updates.resize_patches import changes
from vpa.updates.safety import Safety, history_loading
from vpa.updates.surroundings import Memory, Options, Surroundings
from vpa.updates.trials import WEBHOOK_NOT_READY, Trials


@dataclass(frozen=True, kw_only=True, slots=True)
class Managed:
    """A VPA and all pods that are its own."""

    vpa: VerticalPodAutoscaler
    pods: Sequence[Pod]
    rivals: tuple[str, ...] = ()
    """Names of other VPAs that match these pods, too."""

    @property
    def key(self) -> tuple[str, str]:
        return self.vpa.metadata.namespace, self.vpa.metadata.name


@dataclass(slots=True)
class Tally:
    """What the passes over all VPAs share."""

    open_evictions: int
    """Evictions whose replacements were not seen yet, planned ones too."""


class VpaPass:
    """The pass over one VPA's pods."""

    def __init__(
        self,
        managed: Managed,
        surroundings: Surroundings,
        memory: Memory,
        *,
        now: datetime,
        options: Options,
        tally: Tally,
    ) -> None:
        self.managed = managed
        self.surroundings = surroundings
        self.memory = memory
        self.now = now
        self.options = options
        self.tally = tally
        self.planned = 0
        """Evictions that were handed out and neither accepted nor refused yet."""
        self.judge = Judge(managed.vpa, surroundings, now=now, options=options)
        self.settled: dict[int, tuple[Refusal, Judged | None]] = {}
        """Index of a pod → why nothing is tried."""
        self.candidates: dict[int, Candidate] = {}
        """Index of a pod → what is tried; ended boosts first, then the most urgent."""
        live = self._live()
        behaviour = options.behaviour
        self.trials = Trials(
            vpa=managed.vpa,
            permissions=Permissions.of(
                managed.vpa,
                [managed.pods[index] for index in live],
                replicas=surroundings.replicas,
                attempts=memory.attempts,
                now=now,
                behaviour=behaviour,
                updating=options.updating,
                rules=options.rules,
                nodes=surroundings.nodes,
            ),
            permits=modes.permits(
                managed.vpa, behaviour.feature_gates, default=behaviour.default_update_mode
            ),
            safety=Safety(surroundings, options.rules),
            surroundings=surroundings,
            memory=memory,
            now=now,
            rules=options.rules,
            loading=history_loading(managed.vpa) if options.rules.wait_for_history else None,
            breaker=self._breaker,
        )
        self._sort_out(live)

    def _live(self) -> list[int]:
        live = []
        for index, pod in enumerate(self.managed.pods):
            refusal = not_live(pod, self.memory, self.now, options=self.options)
            if refusal is None:
                live.append(index)
            else:
                self.settled[index] = refusal, None
        return live

    def _sort_out(self, live: list[int]) -> None:
        """Which pods are tried, and in which order; the others are settled."""
        idle = self._idle()
        way = Action.RESIZE if self.trials.permits.in_place else Action.EVICT
        boosts: dict[int, Candidate] = {}
        due: dict[int, Candidate] = {}
        for index in live:
            pod = self.managed.pods[index]
            judged = self.judge.judge(pod)
            expired = self.judge.expired(pod)
            if idle is WEBHOOK_NOT_READY:
                self.settled[index] = idle, judged
            elif expired:
                boosts[index] = _candidate(pod, judged, Reason.BOOST_EXPIRED, Action.RESIZE, expired)
            elif self.judge.boosting and is_boosted(pod):
                self.settled[index] = _BOOST_ACTIVE, judged
            elif (refusal := idle or self._not_due(pod, judged)) is not None:
                self.settled[index] = refusal, judged
            elif isinstance(judged.verdict, Reason):
                due[index] = _candidate(pod, judged, judged.verdict, way, ())
        self.candidates = boosts | dict(sorted(due.items(), key=lambda item: item[1].priority.rank))

    def _idle(self) -> Refusal | None:
        """Why running pods are left alone altogether."""
        if not self.options.rules.resize_apart_from_eviction and not self.surroundings.webhook_ready:
            return WEBHOOK_NOT_READY
        behaviour, vpa = self.options.behaviour, self.managed.vpa
        refusal = modes.idle(vpa, behaviour.feature_gates, default=behaviour.default_update_mode)
        if refusal is None or not self.managed.rivals:
            return refusal
        return Refusal(
            Reason.CONFLICT,
            f"several VPAs match the pod; {vpa.metadata.name} is the oldest and decides ({refusal.message}), "
            f"not {', '.join(self.managed.rivals)}: keep one of them",
        )

    def _not_due(self, pod: Pod, judged: Judged) -> Refusal | None:
        """Why the pod need not change, or may not whatever its group's state."""
        if isinstance(judged.verdict, Refusal):
            held_up = (
                resizing.held_up(pod, rules=self.options.rules)
                if judged.verdict.reason in _NOT_DUE and self.trials.permits.in_place
                else None
            )
            return held_up or judged.verdict
        if self.trials.permissions.mode == modes.IN_PLACE and not self.options.rules.remember_refusals:
            known = self.memory.attempts.infeasible.get(pod.metadata.uid)
            if not priorities.worth_another_try(judged.desired.recommendations, known):
                return _INFEASIBLE_BEFORE
        if self.options.rules.resize_apart_from_eviction:
            return None
        return self.trials.requirements(pod, judged)

    def _breaker(self) -> Refusal | None:
        if not self.options.rules.break_eviction_loops:
            return None
        return self.memory.breakers.refusal(
            self.managed.key, planned=self.planned, open_in_all=self.tally.open_evictions, now=self.now
        )

    def advance(self) -> list[Candidate]:
        """The changes to make now; each is counted as made."""
        acted = [
            candidate
            for candidate in self.candidates.values()
            if candidate.open and candidate.way is Action.RESIZE and self._try(candidate)
        ]
        return acted + [
            candidate
            for candidate in self.candidates.values()
            if candidate.open and candidate.way is Action.EVICT and self._try(candidate)
        ]

    def _try(self, candidate: Candidate) -> bool:
        if self.trials.stopped is not None:
            candidate.refusal = self.trials.stopped
        elif candidate.way is Action.EVICT:
            candidate.refusal = self.trials.evict(candidate)
        elif candidate.expired:
            candidate.refusal = self.trials.unboost(candidate)
        else:
            candidate.refusal = self.trials.resize(candidate)
        if candidate.refusal is not None:
            return False
        candidate.acted = True
        self._count(candidate, back=False)
        return True

    def _count(self, candidate: Candidate, *, back: bool) -> None:
        """Take what the change needs from budget and quota, or give it back."""
        pod, budget = candidate.pod, self.trials.permissions.budget
        pdbs, quotas = self.surroundings.disruption_budgets, self.surroundings.quotas
        if candidate.way is Action.EVICT:
            (budget.not_evicted if back else budget.evicted)(pod)
            wanted = wanted_resources(pod, candidate.desired.containers)
            interrupts = True
        else:
            (budget.not_resized if back else budget.resized)(pod)
            wanted = candidate.patch.wanted if candidate.patch is not None else {}
            interrupts = restarts(pod, changes(pod, wanted))
        if pdbs is not None and interrupts:
            pdbs.take(pod, back=back)
        if quotas:
            quotas.take(pod, resized(pod, wanted), back=back)
        if candidate.way is Action.EVICT:
            self.planned += -1 if back else 1
            self.tally.open_evictions += -1 if back else 1

    def accepted(self, candidate: Candidate) -> None:
        """The API server took the change."""
        if candidate.way is Action.EVICT:
            self.planned -= 1
        candidate.final = True

    def taken_back(self, candidate: Candidate, refusal: Refusal, *, happened: bool, evict: bool) -> None:
        """The API server did not take the change.

        *happened* keeps it counted: the pod is gone all the same, or nobody knows. With *evict* the pod is
        evicted instead when `advance` finds it permitted.
        """
        if not happened:
            self._count(candidate, back=True)
        elif candidate.way is Action.EVICT:
            self.planned -= 1
            self.tally.open_evictions -= 1
        candidate.acted = False
        candidate.refusal = refusal
        if evict:
            candidate.way = Action.EVICT
            candidate.fell_back = refusal
        else:
            candidate.final = True


def _candidate(pod: Pod, judged: Judged, why: Reason, way: Action, expired: tuple[str, ...]) -> Candidate:
    return Candidate(pod, judged.priority, why, judged.desired, judged.actual, way, expired)


_NOT_DUE = frozenset({Reason.UP_TO_DATE, Reason.WITHIN_BOUNDS, Reason.TOO_YOUNG, Reason.BELOW_THRESHOLD})
_BOOST_ACTIVE = Refusal(
    Reason.BOOST_ACTIVE, "the startup boost of the pod is not over; the pod is sized when it ends"
)
_INFEASIBLE_BEFORE = Refusal(
    Reason.RESIZE_INFEASIBLE,
    "the node found the last resize infeasible; it is tried again when the target is lower",
)
