"""How a VPA stands after a pass: why its pods are left alone, as conditions. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final

from vpa.conditions import TRUE, find
from vpa.disruptions import Decision
from vpa.objects.autoscalers import Condition, VerticalPodAutoscaler
from vpa.reasons import Reason, Refusal
from vpa.scopes import all_entries
from vpa.updates import hpas
from vpa.updates.breakers import FIRST_PAUSE
from vpa.updates.hpas import Claim

UPDATES_BLOCKED: Final = "UpdatesBlocked"
LOOP_BREAKER: Final = "LoopBreaker"
HPA_CONFLICT: Final = "HPAConflict"

OWNED: Final = (UPDATES_BLOCKED, LOOP_BREAKER, HPA_CONFLICT)
"""The condition types that the updater writes, and nobody else."""

PATIENCE: Final = timedelta(minutes=5)
"""What is part of any update is no trouble before it has lasted for so long."""

QUIET: Final = frozenset(
    {
        Reason.UP_TO_DATE,
        Reason.WITHIN_BOUNDS,
        Reason.TOO_YOUNG,
        Reason.BELOW_THRESHOLD,
        Reason.BOOST_ACTIVE,
        Reason.POD_FINISHED,
        Reason.POD_TERMINATING,
        Reason.POD_GONE,
        Reason.NO_VPA,
        Reason.NO_RECOMMENDATION,
        Reason.MODE_OFF,
        Reason.MODE_INITIAL,
        Reason.CONTAINER_OPTED_OUT,
        Reason.RESOURCE_NOT_CONTROLLED,
        Reason.HPA_CONFLICT,
    }
)
"""Nothing is wrong, the user said so, or another condition tells it."""

PASSING: Final = frozenset(
    {
        Reason.BUDGET_SPENT,
        Reason.POD_PENDING,
        Reason.DISRUPTION_BUDGET_BLOCKED,
        Reason.RESIZE_IN_PROGRESS,
        Reason.RESIZE_DEFERRED,
        Reason.WEBHOOK_NOT_READY,
        Reason.LOOP_BREAKER,
        Reason.SERVER_BUSY,
        Reason.POD_CHANGED,
        Reason.NEXT_PASS,
    }
)
"""Told only when it lasts."""

_RANK: Final = {reason: place for place, reason in enumerate(Reason)}
_LONGEST: Final = 1000


@dataclass(slots=True)
class Group:
    """The pods that are left alone for one reason."""

    count: int
    message: str


@dataclass(slots=True)
class Standing:
    """What a pass decided about the pods of one VPA."""

    vpa: VerticalPodAutoscaler
    pods: int = 0
    left_alone: dict[Reason, Group] = field(default_factory=dict)

    def add(self, decision: Decision) -> None:
        """Count a pod that is left alone."""
        group = self.left_alone.get(decision.reason)
        if group is None:
            self.left_alone[decision.reason] = Group(1, decision.message)
        else:
            group.count += 1


class Lasting:
    """Since when each VPA has pods that are left alone for a reason."""

    def __init__(self) -> None:
        self._since: dict[tuple[str, str], dict[Reason, datetime]] = {}

    def update(self, key: tuple[str, str], reasons: Iterable[Reason], now: datetime) -> set[Reason]:
        """Take note of the present *reasons*; those that are trouble by now."""
        before = self._since.get(key, {})
        since = {reason: before.get(reason, now) for reason in reasons if reason in PASSING}
        if since:
            self._since[key] = since
        else:
            self._since.pop(key, None)
        return {reason for reason, begun in since.items() if now - begun >= PATIENCE}

    def forget(self, alive: Mapping[tuple[str, str], object]) -> None:
        """Drop VPAs that are gone."""
        for key in [key for key in self._since if key not in alive]:
            del self._since[key]


def conditions(
    standing: Standing,
    lasting: Iterable[Reason],
    *,
    breaker: Refusal | None,
    claims: Sequence[Claim],
) -> dict[str, Condition | None]:
    """All conditions that the updater owns, with None for those that do not hold.

    *lasting* are the passing reasons that have lasted; *breaker* is why this VPA's evictions are stopped.
    """
    told = set(lasting)
    if breaker is not None:
        told.discard(Reason.LOOP_BREAKER)
    blocked = {
        reason: group
        for reason, group in standing.left_alone.items()
        if reason not in QUIET and (reason not in PASSING or reason in told)
    }
    return {
        UPDATES_BLOCKED: _blocked(blocked, standing.pods) if blocked else None,
        LOOP_BREAKER: loop_breaker(breaker) if breaker is not None else None,
        HPA_CONFLICT: _true(HPA_CONFLICT, HPA_CONFLICT, hpas.describe(claims)) if claims else None,
    }


def loop_breaker(refusal: Refusal) -> Condition:
    """Evictions are stopped because replacements came without their target."""
    return _true(LOOP_BREAKER, refusal.reason, refusal.message)


def stopped_until(vpa: VerticalPodAutoscaler) -> datetime | None:
    """Until when the VPA's loop breaker stops evictions at least, as its condition tells a new process."""
    found = find(vpa.status.conditions if vpa.status is not None else None, LOOP_BREAKER)
    if found is None or found.status != TRUE or found.last_transition_time is None:
        return None
    return found.last_transition_time + FIRST_PAUSE


def relevant(claims: Iterable[Claim], vpa: VerticalPodAutoscaler) -> list[Claim]:
    """The *claims* on resources that the VPA has a target for."""
    entries = all_entries(vpa)
    return [
        claim
        for claim in claims
        if any(
            claim.resource in (entry.target or {}) and claim.container in ("", entry.container_name)
            for entry in entries
        )
    ]


def _blocked(blocked: Mapping[Reason, Group], pods: int) -> Condition:
    """The reason is that of most pods; the message tells them all."""
    ordered = sorted(blocked.items(), key=lambda item: (-item[1].count, _RANK[item[0]]))
    parts = [f"{group.count} of {pods} pods: {group.message}" for _, group in ordered]
    return _true(UPDATES_BLOCKED, ordered[0][0], "; ".join(parts)[:_LONGEST])


def _true(kind: str, reason: str, message: str) -> Condition:
    return Condition(type=kind, status=TRUE, reason=str(reason), message=message)
