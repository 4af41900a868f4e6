"""Ends what a run has started and removes its folder, as soon as the run itself is gone.

    python watchdog.py FOLDER

waits for the end of its standard input, which the kernel closes however the process at the other end dies.
Everything started for a run carries the run's folder in its environment (`MARK`), children included, so
nothing needs to be written down in time, and nothing else is ever touched.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import time
from pathlib import Path

import psutil

MARK = "VPA_TESTBED_RUN"
CGROUPS = "cgroups"
"""A file in the run's folder with the control groups that belong to it, one a line."""


def end(folder: Path) -> None:
    """Kill every process marked with *folder*; remove its control groups and the folder."""
    while found := marked(folder):
        for process in found:
            try:
                process.kill()
            except psutil.NoSuchProcess:
                continue
        psutil.wait_procs(found, timeout=10)
    note = folder / CGROUPS
    for line in note.read_text().splitlines() if note.exists() else ():
        remove_group(Path(line))
    shutil.rmtree(folder, ignore_errors=True)


def remove_group(group: Path) -> None:
    """Remove a control group and those inside it; the last processes may still be on their way out."""
    for _ in range(100):
        for inner in sorted(group.glob("**/"), reverse=True):
            try:
                inner.rmdir()
            except OSError:
                continue
        if not group.exists():
            return
        time.sleep(0.05)


def marked(folder: Path) -> list[psutil.Process]:
    """The live processes of *folder*, this one left out."""
    found = []
    for process in psutil.process_iter():
        try:
            if (
                process.pid != os.getpid()
                and process.status() != psutil.STATUS_ZOMBIE
                and process.environ().get(MARK) == str(folder)
            ):
                found.append(process)
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    return found


if __name__ == "__main__":
    for ignored in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(ignored, signal.SIG_IGN)
    sys.stdin.buffer.read()
    end(Path(sys.argv[1]))
