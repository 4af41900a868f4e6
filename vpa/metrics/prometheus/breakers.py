"""A circuit breaker: an address that fails again and again is left in peace for a while. Pure."""

from __future__ import annotations

from dataclasses import dataclass

TOLERATED = 3
"""Failures in a row that open the circuit."""

SHORTEST_REST = 5.0
LONGEST_REST = 300.0
"""Seconds of rest after the first and after many openings."""


@dataclass(slots=True)
class Breaker:
    """State of one address. Times are seconds of a monotonic clock, given by the caller."""

    failures: int = 0
    openings: int = 0
    rests_until: float = 0.0
    trying: bool = False
    last_error: str = ""

    def allows(self, now: float) -> bool:
        """Whether a request may go there; after a rest one at a time, until one succeeds."""
        if self.failures < TOLERATED:
            return True
        return now >= self.rests_until and not self.trying

    def begin(self) -> None:
        """A request goes out."""
        if self.failures >= TOLERATED:
            self.trying = True

    def succeed(self) -> None:
        """The address answered, be it that it does not like the query."""
        self.failures = self.openings = 0
        self.trying = False
        self.last_error = ""

    def fail(self, now: float, error: str, *, jitter: float) -> None:
        """The address did not answer as it should; *jitter* is in [0, 1)."""
        self.failures += 1
        self.trying = False
        self.last_error = error
        if self.failures >= TOLERATED:
            rest = min(SHORTEST_REST * 2.0**self.openings, LONGEST_REST)
            self.rests_until = now + rest * (0.5 + jitter)
            self.openings += 1

    def give_up(self) -> None:
        """The request was abandoned, which says nothing of the address."""
        self.trying = False

    def rest(self, now: float) -> float:
        """Seconds until the next request may go there; 0 when it may now."""
        return 0.0 if self.failures < TOLERATED else max(self.rests_until - now, 0.0)
