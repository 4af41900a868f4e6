"""A process of the testbed: started in its own session, logged, stopped, killed, paused, started again."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

STOP_SECONDS = 15.0

PATIENCE = "VPA_TESTBED_PATIENCE"


class ProcessError(Exception):
    """A process ended by itself; the message has the end of its log."""


class Process:
    """A command that can be started, ended in several ways, and started again with the same arguments.

    As a context manager it is killed at the end of the block.
    """

    def __init__(
        self, name: str, command: Sequence[str | Path], *, log: Path, env: Mapping[str, str], cwd: Path
    ) -> None:
        self.name = name
        self.command = [str(part) for part in command]
        self.log = log
        self._env = dict(env)
        self._cwd = cwd
        self._process: subprocess.Popen[bytes] | None = None
        self.started_at = 0.0
        """`time.time` of the latest start."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()

    @property
    def pid(self) -> int:
        """The process id of the latest start."""
        return self._popen().pid

    @property
    def running(self) -> bool:
        """Whether it has been started and has not ended."""
        return self._process is not None and self._process.poll() is None

    @property
    def exit_code(self) -> int | None:
        """What it ended with, minus the signal's number when one killed it; None while it runs."""
        return self._popen().poll()

    def start(self) -> Self:
        """Start it; the log is continued."""
        if self.running:
            raise ProcessError(f"{self.name} runs already")
        self.started_at = time.time()
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                self.command,
                cwd=self._cwd,
                env=self._env,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C is for the tests; they end us in their own time
            )
        return self

    def stop(self, *, timeout: float = STOP_SECONDS) -> int:
        """Ask it to end (SIGTERM), kill it when it does not within *timeout*; the exit code."""
        process = self._popen()
        if process.poll() is None:
            self.signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                return process.wait(timeout)
        self.kill()
        return process.wait()

    def kill(self) -> None:
        """SIGKILL; nothing happens when it has ended already."""
        if self._process is not None and self._process.poll() is None:
            self.signal(signal.SIGKILL)
            self._process.wait()

    def pause(self) -> None:
        """SIGSTOP: it stands still, its connections stay open."""
        self.signal(signal.SIGSTOP)

    def resume(self) -> None:
        """SIGCONT after `pause`."""
        self.signal(signal.SIGCONT)

    def signal(self, number: int) -> None:
        """Send any signal."""
        os.kill(self.pid, number)

    def wait(self, timeout: float) -> int:
        """Wait until it ends by itself; the exit code. Raises `subprocess.TimeoutExpired`."""
        return self._popen().wait(timeout)

    def logs(self) -> str:
        """All that it has printed so far, over all starts."""
        return self.log.read_text(errors="replace") if self.log.exists() else ""

    def tail(self, lines: int = 20) -> str:
        """The last *lines* of the log."""
        return "\n".join(self.logs().splitlines()[-lines:])

    def check(self) -> None:
        """Raise `ProcessError` when it has ended."""
        if not self.running:
            raise ProcessError(f"{self.name} ended with {self.exit_code}; its log says:\n{self.tail()}")

    def _popen(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            raise ProcessError(f"{self.name} was never started")
        return self._process


def patience() -> float:
    """How much longer than usual everything takes on this machine."""
    return float(os.environ.get(PATIENCE, "1"))


def attempts(seconds: float, what: str, *processes: Process, pause: float = 0.05) -> Iterator[None]:
    """For polling: yields until *seconds* have passed, then raises `TimeoutError` naming *what*.

    It waits longer with more `patience`. Raises `ProcessError` as soon as one of *processes* has ended.
    """
    seconds *= patience()
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        for process in processes:
            process.check()
        yield
        time.sleep(pause)
    tails = "".join(f"\n{process.name}:\n{process.tail()}" for process in processes)
    raise TimeoutError(f"after {seconds:g} s still waiting for {what}{tails}")
