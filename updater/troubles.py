"""Lasting trouble is said when it begins, when it becomes another, and when it is over, not each minute."""

from __future__ import annotations

import logging
from collections.abc import Callable

log = logging.getLogger(__name__)


class Troubles:
    """Troubles by subject, such as "The admission controller's lease"."""

    def __init__(self, tell: Callable[[str], None] = lambda text: None) -> None:
        """*tell* gets each new trouble as a sentence too, for an event."""
        self._present: dict[str, str] = {}
        self._tell = tell

    def bad(self, subject: str, problem: object) -> bool:
        """Say that *subject* is in trouble, unless it is in the same kind of trouble already; was it said?"""
        kind = problem if isinstance(problem, str) else type(problem).__name__
        if self._present.get(subject) == kind:
            return False
        self._present[subject] = kind
        log.warning("%s: %s", subject, problem)
        self._tell(f"{subject}: {problem}")
        return True

    def good(self, subject: str) -> None:
        """Say that *subject* is well again, if it was not."""
        if self._present.pop(subject, None) is not None:
            log.info("%s: well again", subject)
