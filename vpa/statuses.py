"""The status that a recommender writes: recommendation, its own conditions, and what others put there."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

import msgspec

from vpa import conditions
from vpa.objects.autoscalers import Condition, Recommendation, Status


def compose(
    current: Status | None,
    recommendation: Recommendation,
    wanted: Mapping[str, Condition | None],
    *,
    generation: int,
    now: datetime,
) -> Status:
    """*current* with this recommendation and the wanted conditions (type → condition, None: not there).

    Conditions of other owners and unknown ones stay as they are.
    """
    return msgspec.structs.replace(
        current or Status(),
        recommendation=recommendation,
        conditions=conditions.merge((current or Status()).conditions, wanted, now),
        observed_generation=generation,
    )
