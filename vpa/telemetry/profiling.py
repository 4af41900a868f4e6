"""What a running service is busy with: call stacks sampled while it burns CPU, and the list of its tasks.

It is Python's place of Go's pprof, served under the same paths with ``--profiling``. Stacks are "folded" text
(frames joined by ``;``, then a count), which flamegraph.pl, speedscope.app and inferno draw as they are.
"""

from __future__ import annotations

import asyncio
import io
import signal
from collections import Counter
from types import FrameType

LONGEST = 120.0
"""Seconds that one profile may take."""

_one_at_a_time = asyncio.Lock()


async def profile(*, seconds: float, interval: float = 0.01) -> str:
    """Folded stacks of the main thread, which must run the event loop; it goes on meanwhile.

    A stack is taken after each *interval* of CPU time. The kernel's timer interrupts the interpreter wherever
    it is; a thread that looked from outside would see it only where it lets go of the interpreter lock.
    """
    stacks: Counter[str] = Counter()

    def sample(_: int, frame: FrameType | None) -> None:
        stacks[_folded(frame)] += 1

    async with _one_at_a_time:
        before = signal.signal(signal.SIGPROF, sample)
        signal.setitimer(signal.ITIMER_PROF, interval, interval)
        try:
            await asyncio.sleep(min(seconds, LONGEST))
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
            signal.signal(signal.SIGPROF, before)
    return "".join(f"{stack} {count}\n" for stack, count in sorted(stacks.items()))


def tasks() -> str:
    """Every task of the event loop with its name and where it waits."""
    out = io.StringIO()
    every = sorted(asyncio.all_tasks(), key=lambda task: task.get_name())
    out.write(f"{len(every)} tasks\n")
    for task in every:
        out.write("\n")
        task.print_stack(file=out)
    return out.getvalue()


def _folded(frame: FrameType | None) -> str:
    names = []
    while frame is not None:
        code = frame.f_code
        names.append(f"{frame.f_globals.get('__name__', '?')}.{code.co_qualname}")
        frame = frame.f_back
    return ";".join(reversed(names))
