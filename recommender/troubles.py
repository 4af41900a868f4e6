"""What goes wrong for long: said when it begins and when it is over, and never waited for without end."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any

log = logging.getLogger(__name__)


class Troubles:
    """Troubles by subject, such as "the Metrics API"."""

    def __init__(self) -> None:
        self._present: dict[str, tuple[str, int]] = {}

    def bad(self, subject: str, problem: object, *, kind: str = "") -> bool:
        """Say that *subject* is in trouble, unless it is in the same trouble already; whether it was said.

        Problems are the same if their *kind* is, by default their type.
        """
        same = kind or type(problem).__name__
        before, times = self._present.get(subject, ("", 0))
        if before == same:
            self._present[subject] = (same, times + 1)
            return False
        self._present[subject] = (same, 1)
        log.warning("%s: %s", subject, problem)
        return True

    def good(self, subject: str) -> None:
        """Say that *subject* is well again, if it was not."""
        found = self._present.pop(subject, None)
        if found is not None:
            log.info("%s: well again after %d failures", subject, found[1])


class Patience:
    """Work that others wait for, but only for a while; it goes on meanwhile, and never twice at once."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._task: asyncio.Task[None] | None = None

    async def wait_for(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Begin *work*, unless it is going on already, and wait for its end as long as we have patience."""
        task = self._task
        if task is None or task.done():
            task = self._task = asyncio.create_task(work())
        done, _ = await asyncio.wait({task}, timeout=self._seconds)
        if done:
            task.result()

    def give_up(self) -> None:
        """Cancel what is going on."""
        if self._task is not None:
            self._task.cancel()
