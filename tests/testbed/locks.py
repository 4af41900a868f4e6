"""Locks between processes, let go by the kernel when their holder ends."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Callable, Iterator
from pathlib import Path


@contextlib.contextmanager
def held(path: Path, *, on_wait: Callable[[str], None] | None = None) -> Iterator[None]:
    """Hold the lock file *path*; *on_wait* is told once who has it when it isn't free."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if on_wait:
                file.seek(0)
                on_wait(file.read().strip() or "another process")
            fcntl.flock(file, fcntl.LOCK_EX)
        file.truncate(0)
        file.write(f"process {os.getpid()}")
        file.flush()
        yield


def try_hold(path: Path) -> contextlib.ExitStack | None:
    """The lock file *path*, held until the returned stack is closed; None when another process holds it."""
    with contextlib.ExitStack() as stack:
        file = stack.enter_context(path.open("a+"))
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return None
        return stack.pop_all()
