"""One honest line about long work: what is being done, how far it is, how long it has taken."""

from __future__ import annotations

import sys
import time
from typing import TextIO

REDRAW_SECONDS = 0.2
PLAIN_LINE_SECONDS = 15.0


class Progress:
    """A line that is redrawn on a terminal; elsewhere a plain line at each new step and every 15 seconds."""

    def __init__(self, subject: str, *, stream: TextIO | None = None) -> None:
        self._subject = subject
        self._stream = stream if stream is not None else sys.stderr
        self._terminal = self._stream.isatty()
        self._started = time.monotonic()
        self._shown = float("-inf")
        self._step = self._count = ""

    def show(self, step: str, done: int | None = None, total: int | None = None) -> None:
        """Report *step*; *done* of *total* is left out where nobody knows it."""
        is_new, self._step = step != self._step, step
        self._count = "" if done is None else f" {done}" if total is None else f" {done} of {total}"
        self._draw(at_once=is_new)

    def tick(self) -> None:
        """Nothing new, but time has passed."""
        self._draw(at_once=False)

    def finish(self, outcome: str) -> None:
        """End the line with *outcome*; nothing more is shown after it."""
        self._write(outcome, time.monotonic(), end="\n")

    def _draw(self, *, at_once: bool) -> None:
        now = time.monotonic()
        pause = REDRAW_SECONDS if self._terminal else PLAIN_LINE_SECONDS
        if at_once or now - self._shown >= pause:
            self._shown = now
            self._write(f"{self._step}{self._count}", now, end="" if self._terminal else "\n")

    def _write(self, text: str, now: float, *, end: str) -> None:
        elapsed = int(now - self._started)
        start = "\r\x1b[2K" if self._terminal else ""
        print(
            f"{start}{self._subject}: {text} ({elapsed // 60}:{elapsed % 60:02d})",
            end=end,
            file=self._stream,
            flush=True,
        )
