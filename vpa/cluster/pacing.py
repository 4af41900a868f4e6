"""How fast we may go: the client-side rate limit, and the delays between attempts."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable

Clock = Callable[[], float]
Sleep = Callable[[float], Awaitable[None]]


def monotonic() -> float:
    """Seconds that never jump and that go on while the machine is suspended (where the system can tell).

    A paused machine must find its deadlines passed when it wakes up; ``time.monotonic`` stands still
    meanwhile.
    """
    return time.clock_gettime(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic()


class TokenBucket:
    """*qps* requests a second, *burst* at once; ``qps <= 0`` means no limit. Waiters are served in order."""

    def __init__(
        self, *, qps: float, burst: float, clock: Clock = monotonic, sleep: Sleep = asyncio.sleep
    ) -> None:
        self._qps = qps
        self._burst = max(1.0, burst)
        self._clock = clock
        self._sleep = sleep
        self._tokens = self._burst
        self._filled = clock()

    def reserve(self) -> float:
        """Take one token and say how many seconds to wait before using it."""
        if self._qps <= 0:
            return 0.0
        now = self._clock()
        self._tokens = min(self._burst, self._tokens + (now - self._filled) * self._qps) - 1.0
        self._filled = now
        return max(0.0, -self._tokens / self._qps)

    def try_take(self) -> bool:
        """Take a token if one is there now."""
        if self.reserve() > 0:
            self._tokens += 1.0
            return False
        return True

    async def take(self) -> None:
        """Wait for a token; a cancelled waiter gives its token back."""
        delay = self.reserve()
        if delay > 0:
            try:
                await self._sleep(delay)
            except BaseException:
                self._tokens += 1.0
                raise


class Backoff:
    """Growing delays with jitter: each is drawn from [½, 1] of *base* × *factor* ⁿ, never above *cap*
    seconds.
    """

    def __init__(
        self,
        *,
        base: float,
        cap: float,
        factor: float = 2.0,
        uniform: Callable[[float, float], float] = random.uniform,
    ) -> None:
        self._base = base
        self._cap = cap
        self._factor = factor
        self._uniform = uniform
        self._next = base

    def delay(self) -> float:
        """The next delay in seconds."""
        delay = self._next
        self._next = min(self._cap, self._next * self._factor)
        return delay * self._uniform(0.5, 1.0)

    def reset(self) -> None:
        """Things work again: start from *base*."""
        self._next = self._base
