"""What a running service is busy with: call stacks sampled from outside, and the list of its tasks.

It is Python's place of Go's pprof, served under the same paths with ``--profiling``. Stacks are "folded" text
(frames joined by ``;``, then a count), which flamegraph.pl, speedscope.app and inferno draw as they are.
"""

from __future__ import annotations

import asyncio
import io
import sys
import threading
import time
from collections import Counter
from types import FrameType

LONGEST = 120.0
"""Seconds that one profile may take."""


def sample(thread: int, *, seconds: float, interval: float = 0.01) -> str:
    """Folded stacks of the thread with the identifier *thread*; blocks, so call it from another thread."""
    stacks: Counter[str] = Counter()
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        frame = sys._current_frames().get(thread)
        if frame is not None:
            stacks[_folded(frame)] += 1
        time.sleep(interval)
    return "".join(f"{stack} {count}\n" for stack, count in sorted(stacks.items()))


async def profile(*, seconds: float, interval: float = 0.01) -> str:
    """Folded stacks of the thread that runs the event loop, which goes on meanwhile."""
    here = threading.get_ident()
    return await asyncio.to_thread(sample, here, seconds=min(seconds, LONGEST), interval=interval)


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
