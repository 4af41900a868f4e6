"""Lasting trouble is said when it begins, when it becomes another, and when it is over, not each minute."""

from __future__ import annotations

import logging

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
