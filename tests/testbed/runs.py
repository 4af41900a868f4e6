"""A run: a folder and the processes that belong to it, of which nothing is ever left."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.testbed import folders, locks, watchdog
from tests.testbed.processes import Process, ProcessError

REPOSITORY = folders.HERE.parent.parent


class Run:
    """Processes in a new folder, all ended when this process calls `close` or ends in whatever way.

    A run *detached* into a given folder stays, until `watchdog.end`.
    """

    def __init__(self, detached: Path | None = None) -> None:
        self._processes: dict[str, Process] = {}
        self._detached = detached is not None
        self._holding = contextlib.ExitStack()
        if detached is not None:
            self.folder = detached
            self.folder.mkdir(parents=True)
        else:
            with locks.held(folders.runs() / "reaping.lock"):
                reap()
                self.folder = Path(tempfile.mkdtemp(prefix="run-", dir=folders.runs()))
                self._holding.enter_context(locks.held(self.folder / "alive.lock"))
            self._holding.callback(self._watch().communicate)
        (self.folder / "logs").mkdir()

    def close(self) -> None:
        """End every process and remove the folder; a second time does nothing."""
        for process in self._processes.values():
            process.kill()
        if self._detached:
            watchdog.end(self.folder)
        self._holding.close()

    def on_close(self, context: contextlib.AbstractContextManager[object]) -> None:
        """Enter *context* now and leave it when the run is closed."""
        self._holding.enter_context(context)

    def add(self, name: str, command: Sequence[str | Path], **env: str) -> Process:
        """A process of this run, not started yet; an earlier one of the same name has to have ended."""
        if name in self._processes and self._processes[name].running:
            raise ProcessError(f"{name} runs already")
        log = self.folder / "logs" / f"{name}.log"
        process = Process(name, command, log=log, env=self.environment(env), cwd=self.folder)
        self._processes[name] = process
        return process

    def process(self, name: str) -> Process:
        """The process that was added under *name*."""
        return self._processes[name]

    def processes(self) -> list[Process]:
        """All that were added."""
        return list(self._processes.values())

    def environment(self, changes: Mapping[str, str]) -> dict[str, str]:
        """The environment of the run's processes; its mark is how they are found at the end."""
        outside = {name: value for name, value in os.environ.items() if not name.startswith("KUBE")}
        own = {watchdog.MARK: str(self.folder), "KUBECACHEDIR": str(self.folder / "kubectl"), "KUBERC": "off"}
        return outside | own | dict(changes)

    def _watch(self) -> subprocess.Popen[bytes]:
        """Start the watchdog; the end of its input makes it end the run."""
        return subprocess.Popen(
            [sys.executable, folders.HERE / "watchdog.py", self.folder],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            start_new_session=True,
        )


def reap() -> None:
    """End the runs whose process is gone and whose watchdog was killed as well."""
    for folder in folders.runs().glob("run-*"):
        with contextlib.suppress(FileNotFoundError):  # its own watchdog is just removing it
            free = locks.try_hold(folder / "alive.lock")
            if free is not None:
                with free:
                    watchdog.end(folder)
