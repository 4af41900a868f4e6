"""The status that a recommender writes: recommendation, its own conditions, and what others put there."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

import msgspec

from vpa import conditions, scopes
from vpa.objects.autoscalers import Condition, GroupRecommendation, Recommendation, Status
from vpa.objects.meta import to_builtins


def compose(
    current: Status | None,
    recommendation: Recommendation,
    wanted: Mapping[str, Condition | None],
    *,
    groups: list[GroupRecommendation] | None = None,
    generation: int,
    now: datetime,
) -> Status:
    """*current* with this recommendation and the wanted conditions (type → condition, None: not there).

    *groups* are what a scoped VPA has instead. Conditions of other owners and unknown ones stay as they are.
    """
    return msgspec.structs.replace(
        current or Status(),
        recommendation=recommendation,
        groups=groups,
        conditions=conditions.merge((current or Status()).conditions, wanted, now),
        observed_generation=generation,
    )


def as_data(status: Status) -> dict[str, Any]:
    """The status as plain data."""
    data: dict[str, Any] = to_builtins(status)
    return data | ({"groups": scopes.shown(status.groups)} if status.groups else {})
