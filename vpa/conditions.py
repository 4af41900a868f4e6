"""Conditions of a VPA: pure changes of the list in its status.

Each condition type has one owner. A writer replaces only the types it owns and keeps every other entry, known
to it or not. Changing an entry keeps ``lastTransitionTime`` while its status stays the same.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from datetime import UTC, datetime

from vpa.objects.autoscalers import Condition

RECOMMENDATION_PROVIDED = "RecommendationProvided"
LOW_CONFIDENCE = "LowConfidence"
NO_PODS_MATCHED = "NoPodsMatched"
FETCHING_HISTORY = "FetchingHistory"
CONFIG_DEPRECATED = "ConfigDeprecated"
CONFIG_UNSUPPORTED = "ConfigUnsupported"
CONFLICT = "Conflict"

TRUE = "True"
FALSE = "False"

NO_PODS_MESSAGE = "No pods match this VPA object"


def find(conditions: Iterable[Condition] | None, kind: str) -> Condition | None:
    """The condition of that type."""
    return next((condition for condition in conditions or () if condition.type == kind), None)


def is_true(conditions: Iterable[Condition] | None, kind: str) -> bool:
    """Whether the condition of that type exists with status True."""
    found = find(conditions, kind)
    return found is not None and found.status == TRUE


def merge(
    current: Iterable[Condition] | None, wanted: Mapping[str, Condition | None], now: datetime
) -> list[Condition]:
    """*current* with the wanted entries: type → condition, or None to remove it. Sorted by type.

    ``lastTransitionTime`` of a wanted entry is the present one's where the status is the same, else *now*,
    whatever it says itself.
    """
    result = {condition.type: condition for condition in current or ()}
    moment = now.astimezone(UTC).replace(microsecond=0)
    for kind, condition in wanted.items():
        present = result.pop(kind, None)
        if condition is None:
            continue
        same = present is not None and present.status == condition.status
        since = present.last_transition_time if present is not None and same else moment
        result[kind] = Condition(
            type=kind,
            status=condition.status,
            last_transition_time=since,
            reason=condition.reason,
            message=condition.message,
        )
    return [result[kind] for kind in sorted(result)]


def of_recommendation(*, provided: bool, pods: int) -> dict[str, Condition | None]:
    """The recommender's basic conditions: is there a recommendation, and do pods match."""
    none = Condition(type=NO_PODS_MATCHED, status=TRUE, reason=NO_PODS_MATCHED, message=NO_PODS_MESSAGE)
    if provided:
        state = Condition(type=RECOMMENDATION_PROVIDED, status=TRUE)
    elif pods:
        state = Condition(type=RECOMMENDATION_PROVIDED, status=FALSE)
    else:
        state = Condition(
            type=RECOMMENDATION_PROVIDED, status=FALSE, reason=NO_PODS_MATCHED, message=NO_PODS_MESSAGE
        )
    return {RECOMMENDATION_PROVIDED: state, NO_PODS_MATCHED: None if pods else none}


def low_confidence(days: float) -> dict[str, Condition | None]:
    """``LowConfidence`` while less than a day is known; *days* is the least confidence of a container."""
    if days >= 1:
        return {LOW_CONFIDENCE: None}
    return {
        LOW_CONFIDENCE: Condition(
            type=LOW_CONFIDENCE,
            status=TRUE,
            reason="LessThanADay",
            message="Less than a day of usage is known, so the bounds are still wide",
        )
    }


def conflict(name: str, rivals: Collection[str]) -> dict[str, Condition | None]:
    """``Conflict`` where several VPAs match the same pods; *rivals*: all their names, the winner first."""
    if not rivals:
        return {CONFLICT: None}
    winner = next(iter(rivals))
    others = ", ".join(sorted(set(rivals) - {name}))
    holds = "this one is the oldest and holds" if winner == name else f"{winner} is the oldest and holds"
    return {
        CONFLICT: Condition(
            type=CONFLICT,
            status=TRUE,
            reason=CONFLICT,
            message=f"The same pods are matched by {others}; {holds}. Delete one, or change its target",
        )
    }


def unsupported(message: str | None) -> dict[str, Condition | None]:
    """``ConfigUnsupported`` with upstream's message, or its removal; ``ConfigDeprecated`` always goes."""
    condition = message and Condition(type=CONFIG_UNSUPPORTED, status=TRUE, message=message)
    return {CONFIG_UNSUPPORTED: condition or None, CONFIG_DEPRECATED: None}
