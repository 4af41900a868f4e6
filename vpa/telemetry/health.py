"""Whether a service's loop is alive, as ``/health-check`` tells it to the kubelet."""

from __future__ import annotations

import time
from collections.abc import Callable

from vpa.durations import SECOND, Duration


class Health:
    """Healthy while the loop gave a sign of life within *timeout*, and before it was started at all.

    A standby that waits for its lease never starts its loop and must not be restarted for that.
    """

    def __init__(self, timeout: Duration, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._timeout = timeout
        self._clock = clock
        self._last: float | None = None

    def start(self) -> None:
        """From now on silence counts."""
        self.alive()

    def alive(self) -> None:
        """The loop made a round."""
        self._last = self._clock()

    def stop(self) -> None:
        """Silence counts no more, for example while the lease is with another."""
        self._last = None

    def error(self) -> str | None:
        """Why the service is unhealthy, in upstream's words; None when it is healthy."""
        if self._last is None or self._clock() - self._last <= self._timeout.seconds:
            return None
        # Upstream prints the time since the last activity in Go's syntax.
        silence = Duration((self._clock() - self._last) * SECOND)
        return f"Error: last activity more than {silence} ago"
