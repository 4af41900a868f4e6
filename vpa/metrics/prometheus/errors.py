"""What can go wrong with a query, by what helps: wait, ask for less, mend the configuration.

The text of each error names the query and the address, and says what to do.
"""

from __future__ import annotations

from collections.abc import Sequence

SHOWN = 240
"""Characters of a query or of a foreign answer that a message repeats."""


class PrometheusError(Exception):
    """A query without a usable answer."""

    transient = True
    """Whether the same query may succeed later."""
    too_much = False
    """Whether the same answer in smaller pieces may succeed."""

    def __init__(self, *, query: str, address: str, reason: str) -> None:
        super().__init__(f"Prometheus query {shortened(query)} at {address}: {reason}")
        self.query = query
        self.address = address
        self.reason = reason


class UnreachableError(PrometheusError):
    """No connection, a broken one, or an answer that says that the server is not well."""


class TimedOutError(PrometheusError):
    """The answer took longer than the time for one query."""

    too_much = True


class TooMuchError(PrometheusError):
    """The server, or we, refuse an answer of this size."""

    transient = False
    too_much = True


class RefusedError(PrometheusError):
    """The server does not know who we are, or does not let us."""

    transient = True  # tokens rotate, and permissions are granted


class RejectedError(PrometheusError):
    """The server finds the query itself wrong."""

    transient = False


class GarbledError(PrometheusError):
    """An answer that is none of Prometheus'."""


class NoAddressError(PrometheusError):
    """All addresses failed; *causes* has one error for each that was tried."""

    def __init__(self, *, query: str, address: str, reason: str, causes: Sequence[PrometheusError]) -> None:
        super().__init__(query=query, address=address, reason=reason)
        self.causes = tuple(causes)
        self.transient = any(cause.transient for cause in causes) or not causes
        self.too_much = any(cause.too_much for cause in causes)


def shortened(text: str, length: int = SHOWN) -> str:
    """One line of at most *length* characters, in quotes where it is a query."""
    line = " ".join(text.split())
    return line if len(line) <= length else f"{line[: length - 1]}…"
