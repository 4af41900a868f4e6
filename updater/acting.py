"""Carries a plan out: many changes side by side, each looked at once more before it is sent."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Final, Protocol

from updater.features import Features
from updater.mirrors import Mirrors, Replicas
from updater.ownership import PodIndex
from updater.settings import Settings
from vpa.cluster import writes
from vpa.cluster.connection import Connection
from vpa.cluster.errors import ClusterError, Invalid, RequestError, StatusError
from vpa.cluster.pacing import TokenBucket, monotonic
from vpa.cluster.resources import PODS
from vpa.cluster.workloads import controller_of
from vpa.disruptions import Action, Decision, Memory, Plan
from vpa.objects.meta import PartialObject
from vpa.objects.pods import Pod
from vpa.reasons import Reason, Refusal
from vpa.telemetry import logs
from vpa.updates import answers
from vpa.updates.answers import Answer
from vpa.updates.budgets import GroupKey, group_of
from vpa.updates.candidates import not_live
from vpa.updates.passes import VpaPass
from vpa.updates.permissions import Permission, Permissions
from vpa.updates.resize_patches import changes

log = logging.getLogger(__name__)

AT_A_TIME: Final = 50
"""Changes that are under way at the same time, at most."""
FORBIDDEN: Final = 300.0
"""Seconds after which a permission that is missing is asked for again."""
_MAY_NOT_EVICT: Final = 'cannot create resource "pods/eviction"'
UID: Final = "/metadata/uid"
OVER: Final = Refusal(
    Reason.NEXT_PASS,
    "the pass was over before it was the pod's turn (--eviction-rate-limit, --kube-api-qps, a slow server); "
    "the next one goes on",
)
VPA_CHANGED: Final = Refusal(Reason.NEXT_PASS, "the VPA was changed meanwhile; the next pass looks again")
GONE: Final = Refusal(Reason.POD_GONE, "the pod no longer exists")
CHANGED: Final = Refusal(
    Reason.POD_CHANGED, "the pod was replaced or changed meanwhile; the next pass looks again"
)


class Reporter(Protocol):
    """Who is told what became of each change."""

    def done(self, decision: Decision) -> None: ...

    def refused(self, decision: Decision, answer: Answer, refusal: Refusal) -> None: ...

    def withdrawn(self, decision: Decision, refusal: Refusal) -> None: ...


class Actor:
    """Sends evictions and resizes."""

    def __init__(
        self,
        settings: Settings,
        connection: Connection,
        mirrors: Mirrors,
        index: PodIndex,
        features: Features,
        memory: Memory,
        reporter: Reporter,
        *,
        now: Callable[[], datetime],
        stopping: asyncio.Event,
    ) -> None:
        self._settings = settings
        self._connection = connection
        self._mirrors = mirrors
        self._index = index
        self._features = features
        self._memory = memory
        self._reporter = reporter
        self._now = now
        self._stopping = stopping
        loop = settings.loop
        self._buckets = {
            action: TokenBucket(qps=loop.eviction_rate_limit, burst=loop.eviction_rate_burst)
            for action in (Action.EVICT, Action.RESIZE)
        }
        self._under_way: dict[str, tuple[GroupKey, Decision]] = {}
        """Uid of a pod → its group, and what is being sent."""
        self._forbidden: dict[str, tuple[float, Refusal]] = {}
        """Namespace in which we may not evict → until when that is taken for granted, and the answer."""

    async def carry_out(self, plan: Plan, *, seconds: float) -> None:
        """Do what *plan* hands out, and what it hands out because of the answers, for at most *seconds*."""
        todo = deque(plan.acted)
        deadline = asyncio.get_running_loop().time() + seconds

        async def work() -> None:
            while todo:
                todo.extend(await self._do(plan, todo.popleft(), deadline))

        async with asyncio.TaskGroup() as workers:
            for _ in range(min(AT_A_TIME, len(todo))):
                workers.create_task(work())

    async def _do(self, plan: Plan, decision: Decision, deadline: float) -> list[Decision]:
        """One change: ask whether it still holds, send it, hear the answer."""
        if decision.action is Action.RESIZE and not self._features.can_resize and _has_resize(decision):
            return plan.refused(decision, NO_RESIZE, self._now())
        refusal = await self._wait_for_turn(decision, deadline) or self._stands_against(plan, decision)
        if refusal is not None:
            plan.withdrawn(decision, refusal)
            self._reporter.withdrawn(decision, refusal)
            return []
        uid = decision.pod.metadata.uid
        self._under_way[uid] = group_of(decision.pod), decision
        try:
            generation = await self._send(decision)
        except RequestError as error:
            return self._refused(plan, decision, error)
        except ClusterError:  # we lead no more: nothing was sent
            plan.withdrawn(decision, OVER)
            return []
        finally:
            del self._under_way[uid]
        plan.accepted(decision, self._now(), generation=generation)
        self._reporter.done(decision)
        return []

    async def _wait_for_turn(self, decision: Decision, deadline: float) -> Refusal | None:
        try:
            async with asyncio.timeout_at(deadline):
                await self._buckets[decision.action].take()
        except TimeoutError:
            return OVER
        if self._stopping.is_set() or asyncio.get_running_loop().time() >= deadline:
            return OVER
        return None

    # Does it still hold?

    def _stands_against(self, plan: Plan, decision: Decision) -> Refusal | None:
        """What has happened since the plan was made that forbids the change."""
        one, pod = decision.vpa_pass, decision.pod
        if one is None:
            return None
        stopped = one.trials.stopped
        if decision.action is Action.EVICT:
            until, refusal = self._forbidden.get(pod.metadata.namespace, (0.0, None))
            stopped = refusal if refusal is not None and monotonic() < until else stopped
        if stopped is None and decision.action is Action.EVICT:
            stopped = one.trials.blocked.get(group_of(pod)) or self._breaker(one.managed.key)
        if stopped is not None or not self._settings.rules.count_open_attempts:
            return stopped
        vpa = self._mirrors.vpas.get(one.managed.key)
        if vpa is None or vpa.metadata.generation != decision.vpa.metadata.generation:
            return VPA_CHANGED
        present = self._mirrors.pods.get((pod.metadata.namespace, pod.metadata.name))
        if present is None:
            return GONE
        if (present.metadata.uid, present.metadata.generation) != (pod.metadata.uid, pod.metadata.generation):
            return CHANGED
        leaving = not_live(present, self._memory, self._now(), options=plan.options)
        return leaving or self._no_room(plan, decision, one, present)

    def _breaker(self, key: tuple[str, str]) -> Refusal | None:
        """A replacement may have come without its target since the plan was made."""
        if not self._settings.rules.break_eviction_loops:
            return None
        breakers, now, open_in_all = self._memory.breakers, self._now(), 0
        watched = breakers.watched.get(key)
        if not breakers.trusts(now) or (watched is not None and watched.failures):  # else nobody counts them
            under_way = sum(one.action is Action.EVICT for _, one in self._under_way.values())
            open_in_all = breakers.unproven() + under_way
        return breakers.refusal(key, planned=0, open_in_all=open_in_all, now=now)

    def _no_room(self, plan: Plan, decision: Decision, one: VpaPass, present: Pod) -> Refusal | None:
        """Others disrupt pods too: count the group as it is at this moment, with all that is under way."""
        owner = controller_of(present.metadata)
        if owner is None:
            return None
        now, group = self._now(), group_of(present)
        pods = [
            pod
            for pod in self._index.of(owner)
            if not_live(pod, self._memory, now, options=plan.options) is None
        ]
        permissions = Permissions.of(
            decision.vpa,
            pods,
            replicas=Replicas(self._mirrors),
            attempts=self._memory.attempts,
            now=now,
            behaviour=self._settings.behaviour,
            updating=self._settings.updating,
            rules=self._settings.rules,
            nodes=one.surroundings.nodes,
        )
        for others, other in self._under_way.values():
            if others != group or group not in permissions.budget.groups:
                continue
            if other.action is Action.EVICT:
                permissions.budget.evicted(other.pod)
            else:
                permissions.budget.resized(other.pod)
        if decision.action is Action.EVICT:
            return permissions.evict(present)
        if decision.candidate is not None and decision.candidate.expired:
            return permissions.unboost(present)
        wanted = decision.patch.wanted if decision.patch is not None else {}
        verdict = permissions.resize(present, changes=changes(present, wanted), worth=True)
        return verdict.refusal if verdict.permission is Permission.DEFERRED else None

    # Send

    async def _send(self, decision: Decision) -> int:
        """Send it; the pod's generation after a resize."""
        metadata = decision.pod.metadata
        if decision.action is Action.EVICT:
            await writes.evict(
                self._connection, namespace=metadata.namespace, name=metadata.name, uid=metadata.uid
            )
            return 0
        patch = decision.patch
        if patch is None:
            raise ValueError("a resize without a patch")
        generation = 0
        if patch.resize:
            same_pod = [{"op": "test", "path": UID, "value": metadata.uid}]
            after = await writes.resize(
                self._connection,
                namespace=metadata.namespace,
                name=metadata.name,
                body=(same_pod if self._settings.rules.count_open_attempts else []) + patch.resize,
            )
            generation = after.metadata.generation
        if patch.annotations:
            await self._annotate(decision, alone=not patch.resize)
        return generation

    async def _annotate(self, decision: Decision, *, alone: bool) -> None:
        """Marks on the pod; only if there is nothing else to do for the pod does a failure matter."""
        metadata = decision.pod.metadata
        with contextlib.nullcontext() if alone else _logged(metadata.namespace, metadata.name):
            await writes.patch(
                self._connection,
                PODS,
                metadata.name,
                decision.patch.annotations if decision.patch is not None else [],
                kind=PartialObject,
                namespace=metadata.namespace,
                style="json",
            )

    def _refused(self, plan: Plan, decision: Decision, error: RequestError) -> list[Decision]:
        answer = answer_of(error)
        if _MAY_NOT_EVICT in answer.message:  # of this pod no less than of any other
            refusal = answers.eviction(answer).refusal
            self._forbidden[decision.pod.metadata.namespace] = monotonic() + FORBIDDEN, refusal
            plan.withdrawn(decision, refusal)
            self._reporter.refused(decision, answer, refusal)
            return []
        if decision.action is Action.RESIZE and answers.resize(answer).feature_missing:
            self._features.no_resize()
        more = plan.refused(decision, answer, self._now())
        meaning = (answers.eviction if decision.action is Action.EVICT else answers.resize)(answer)
        self._reporter.refused(decision, answer, meaning.refusal)
        return more


NO_RESIZE: Final = Answer(code=404, message="the server could not find the requested resource")


def answer_of(error: RequestError) -> Answer:
    """What the API server said, or that it said nothing."""
    if isinstance(error, Invalid) and not error.causes:  # the patch does not fit what is there now
        return Answer(code=409, reason="Conflict", message="the pod is another one by now")
    if isinstance(error, StatusError):
        return Answer(
            code=error.code,
            reason=error.reason,
            message=error.message,
            causes=tuple(cause.reason for cause in error.causes),
            retry_after=error.retry_after,
        )
    return Answer(code=0, message=error.message)


def _has_resize(decision: Decision) -> bool:
    return decision.patch is not None and bool(decision.patch.resize)


@contextlib.contextmanager
def _logged(namespace: str, name: str) -> Iterator[None]:
    try:
        yield
    except ClusterError as error:
        log.log(logs.V2, "Pod %s/%s was resized, but not marked: %s", namespace, name, error)
