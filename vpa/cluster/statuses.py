"""The status of a VPA has several writers; each replaces only the conditions that it owns."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

from vpa import conditions
from vpa.cluster.connection import Connection
from vpa.cluster.resources import VERTICAL_AUTOSCALERS
from vpa.cluster.writes import update
from vpa.objects.autoscalers import Condition, VerticalPodAutoscaler
from vpa.objects.meta import to_builtins


async def write_status(
    connection: Connection,
    vpa: VerticalPodAutoscaler,
    change: Callable[[VerticalPodAutoscaler], Mapping[str, Any] | None],
) -> VerticalPodAutoscaler:
    """Patch ``status`` with what *change* makes of the VPA as it is; asked again after each conflict.

    *change* returns the fields of the status to replace (a merge patch: lists as a whole, None removes), or
    None for nothing. A list of conditions must come from ``conditions.merge`` on the VPA that it is given.
    """

    def wrapped(current: VerticalPodAutoscaler) -> Mapping[str, Any] | None:
        status = change(current)
        return None if status is None else {"status": status}

    return await update(
        connection,
        VERTICAL_AUTOSCALERS,
        vpa,
        wrapped,
        kind=VerticalPodAutoscaler,
        subresource="status",
    )


async def write_conditions(
    connection: Connection,
    vpa: VerticalPodAutoscaler,
    wanted: Mapping[str, Condition | None],
    *,
    now: datetime,
) -> VerticalPodAutoscaler:
    """Set or remove (None) exactly the conditions of *wanted*; every other type stays as it is found.

    Nothing is sent if all of them are as wanted already.
    """

    def change(current: VerticalPodAutoscaler) -> Mapping[str, Any] | None:
        present = (current.status.conditions if current.status else None) or []
        merged = conditions.merge(present, wanted, now)
        if sorted(present, key=lambda condition: condition.type) == merged:
            return None
        return {"conditions": to_builtins(merged)}

    return await write_status(connection, vpa, change)
