"""What a VPA's status is to say, from what a recommender knows, and whether that is worth a write. Pure."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import msgspec

from vpa import conditions, scopes
from vpa.capped import capped
from vpa.objects.autoscalers import (
    Condition,
    ContainerRecommendation,
    GroupRecommendation,
    Recommendation,
    Status,
    VerticalPodAutoscaler,
)
from vpa.objects.meta import ResourceList, to_builtins
from vpa.objects.pods import Pod
from vpa.rules import Rules
from vpa.sizes.limit_ranges import NO_RANGES, Ranges

HISTORY_LOADING = "HistoryLoading"


class Difference(enum.IntEnum):
    """How far a status is from what it is to say."""

    NONE = 0
    DRIFT = 1
    """Only bounds differ, and none by the threshold."""
    CLEAR = 2


@dataclass(frozen=True, slots=True)
class Wanted:
    """A status as it is to be.

    *recommendation* None: what is there stays, because it is better than anything we know. *groups* None: the
    VPA has none. *conditions*: the types that we own → the condition, or None for its removal.
    """

    generation: int
    recommendation: Recommendation | None
    groups: list[GroupRecommendation] | None = None
    conditions: Mapping[str, Condition | None] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """What a recommender knows of one VPA when it decides what the status is to say.

    *recommendation* is for all its pods; a VPA with a scope has *groups* instead, one for each value. *days*
    of usage are known of the least known container. *problem*: why the target cannot be used; *unreadable*:
    that says nothing about the target itself. *awaited*: sources of history that are still to deliver.
    *rivals*: all VPAs of the target, this one included, the one that pods follow first. *pod*: one that
    runs, if any does. *ranges*: the namespace's LimitRanges.
    """

    recommendation: Recommendation
    groups: list[GroupRecommendation] | None
    pods: int
    days: float
    problem: str = ""
    unreadable: bool = False
    awaited: Sequence[str] = ()
    rivals: Sequence[str] = ()
    pod: Pod | None = None
    ranges: Ranges = NO_RANGES


def by_scope(parts: Iterable[tuple[str | None, Recommendation]]) -> list[GroupRecommendation]:
    """What a VPA with a scope recommends for each value that has containers."""
    return [
        GroupRecommendation(scope_value=scope or "", container_recommendations=found)
        for scope, part in parts
        if (found := part.container_recommendations)
    ]


def wanted(vpa: VerticalPodAutoscaler, known: Known, *, rules: Rules) -> Wanted:
    """What the status of *vpa* is to say."""
    generation = vpa.metadata.generation
    recommendation, groups = known.recommendation, known.groups
    told = conditions.unsupported(known.problem or None)
    if known.unreadable and rules.unreadable_targets_keep and _says_something(vpa.status):
        return Wanted(generation, recommendation if known.pods else None, groups, told)
    provided = bool(recommendation.container_recommendations or groups)
    told |= conditions.of_recommendation(provided=provided, pods=known.pods)
    if rules.more_conditions:
        told |= conditions.low_confidence(known.days)
        told |= fetching(known.awaited, meanwhile=True)
        told |= conditions.conflict(vpa.metadata.name, known.rivals if len(known.rivals) > 1 else ())
        told |= capped(vpa, recommendation, known.pod, known.ranges, rules=rules)
    return Wanted(generation, recommendation, groups, told)


def _says_something(status: Status | None) -> bool:
    return status is not None and bool(
        status.conditions
        or status.groups
        or (status.recommendation or Recommendation()).container_recommendations
    )


def fetching(sources: Iterable[str], *, meanwhile: bool = False) -> dict[str, Condition | None]:
    """``FetchingHistory`` while *sources* have not delivered; *meanwhile* something else serves."""
    names = " and ".join(sorted(sources))
    if not names:
        return {conditions.FETCHING_HISTORY: None}
    until = "rests on checkpoints and present usage" if meanwhile else "stays as it is"
    return {
        conditions.FETCHING_HISTORY: Condition(
            type=conditions.FETCHING_HISTORY,
            status=conditions.TRUE,
            reason=HISTORY_LOADING,
            message=f"History is still to come from {names}; the recommendation {until} until then",
        )
    }


def difference(status: Status | None, wanted: Wanted, *, threshold: float, now: datetime) -> Difference:
    """How far *status* is from *wanted*; *threshold* is the share by which a bound must move to matter."""
    present = status or Status()
    if present.observed_generation != wanted.generation:
        return Difference.CLEAR
    if merged(present, wanted, now) != _sorted(present.conditions):
        return Difference.CLEAR
    if wanted.recommendation is None:
        return Difference.NONE
    if present.recommendation is None:
        return Difference.CLEAR
    found = between(_containers(present.recommendation), _containers(wanted.recommendation), threshold)
    mine, theirs = present.groups or [], wanted.groups or []
    if [group.scope_value for group in mine] != [group.scope_value for group in theirs]:
        return Difference.CLEAR
    for one, other in zip(mine, theirs, strict=True):
        found = max(found, between(_containers(one), _containers(other), threshold))
    return found


def between(
    old: list[ContainerRecommendation], new: list[ContainerRecommendation], threshold: float
) -> Difference:
    """How far two lists of recommendations are apart."""
    if [entry.container_name for entry in old] != [entry.container_name for entry in new]:
        return Difference.CLEAR
    found = Difference.NONE
    for before, after in zip(old, new, strict=True):
        if (before.target or {}) != (after.target or {}):
            return Difference.CLEAR
        if (before.uncapped_target or {}) != (after.uncapped_target or {}):
            return Difference.CLEAR
        for one, other in (
            (before.lower_bound or {}, after.lower_bound or {}),
            (before.upper_bound or {}, after.upper_bound or {}),
        ):
            found = max(found, _bounds(one, other, threshold))
    return found


def _bounds(old: ResourceList, new: ResourceList, threshold: float) -> Difference:
    if old == new:
        return Difference.NONE
    if old.keys() != new.keys():
        return Difference.CLEAR
    far = any(
        abs(new[name].nanos - old[name].nanos) >= threshold * old[name].nanos
        for name in new
        if old[name] != new[name]
    )
    return Difference.CLEAR if far else Difference.DRIFT


def merged(status: Status | None, wanted: Wanted, now: datetime) -> list[Condition]:
    """All conditions of *status* with ours as wanted."""
    return conditions.merge((status and status.conditions) or (), wanted.conditions, now)


def compose(status: Status | None, wanted: Wanted, now: datetime) -> Status:
    """*status* as it is once *wanted* is written; what others put there stays."""
    present = status or Status()
    recommendation, groups = wanted.recommendation, wanted.groups or None
    if recommendation is None:
        recommendation, groups = present.recommendation, present.groups
    return msgspec.structs.replace(
        present,
        recommendation=recommendation,
        groups=groups,
        conditions=merged(status, wanted, now),
        observed_generation=wanted.generation,
    )


def merge_patch(status: Status | None, wanted: Wanted, now: datetime) -> dict[str, Any]:
    """The fields of the status to replace; lists as wholes, None removes."""
    patch: dict[str, Any] = {
        "conditions": to_builtins(merged(status, wanted, now)),
        "observedGeneration": wanted.generation,
    }
    if wanted.recommendation is not None:
        containers = to_builtins(wanted.recommendation.container_recommendations)
        patch["recommendation"] = {"containerRecommendations": containers}
        if wanted.groups is not None or (status is not None and status.groups):
            patch["groups"] = None if wanted.groups is None else scopes.shown(wanted.groups)
    return patch


def whole_status(status: Status | None, wanted: Wanted, now: datetime) -> dict[str, Any]:
    """The whole status as upstream writes it, conditions of others as they were when it was read."""
    recommendation = wanted.recommendation or (status and status.recommendation) or Recommendation()
    return {
        "recommendation": to_builtins(recommendation),
        "conditions": to_builtins(merged(status, wanted, now)),
        "observedGeneration": wanted.generation,
    } | ({"groups": scopes.shown(wanted.groups)} if wanted.groups else {})


def ours(status: Status | None, owned: Iterable[str]) -> tuple[Any, ...]:
    """What of a status only we write, for comparison."""
    if status is None:
        return (None, None, ())
    kinds = frozenset(owned)
    known = tuple(
        (condition.type, condition.status, condition.reason, condition.message)
        for condition in _sorted(status.conditions)
        if condition.type in kinds
    )
    return (status.recommendation, status.groups or None, known)


def as_data(status: Status) -> dict[str, Any]:
    """The status as plain data."""
    data: dict[str, Any] = to_builtins(status)
    return data | ({"groups": scopes.shown(status.groups)} if status.groups else {})


def _containers(of: Recommendation | GroupRecommendation) -> list[ContainerRecommendation]:
    return of.container_recommendations or []


def _sorted(present: Iterable[Condition] | None) -> list[Condition]:
    return sorted(present or (), key=lambda condition: condition.type)
