"""Programs and libraries from Debian packages: fetched and unpacked into the cache, never installed."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from tests.testbed import folders, locks
from tests.testbed.progress import Progress


class PackageError(Exception):
    """A package could not be fetched; the message says what the package manager said."""


def unpacked(*names: str) -> Path:
    """A folder with the files of the packages *names* in it, as if it were ``/``; their scripts never ran.

    They are of the release that this machine has, checked by its own package manager. Raises `PackageError`.
    """
    key = hashlib.sha256("\0".join(sorted(names)).encode()).hexdigest()[:16]
    target = folders.cache() / "debian" / key
    if target.exists():
        return target
    with locks.held(target.with_suffix(".lock")):
        if not target.exists():
            _fetch(names, target)
    return target


def library_environment(root: Path) -> dict[str, str]:
    """Variables with which pkg-config finds the libraries of `unpacked` packages under *root*."""
    folders_of_libraries = sorted(root.glob("usr/lib/*/pkgconfig"))
    return {
        "PKG_CONFIG_LIBDIR": os.pathsep.join(map(str, folders_of_libraries)),
        "PKG_CONFIG_SYSROOT_DIR": str(root),
        # Below our own root these are not the system's folders, which pkg-config leaves out.
        "PKG_CONFIG_ALLOW_SYSTEM_CFLAGS": "1",
        "PKG_CONFIG_ALLOW_SYSTEM_LIBS": "1",
    }


def _fetch(names: tuple[str, ...], target: Path) -> None:
    missing = [tool for tool in ("apt-get", "dpkg-deb") if shutil.which(tool) is None]
    if missing:
        raise PackageError(f"{' and '.join(missing)} not found: a Debian or one of its kin is needed")
    progress = Progress(f"Debian packages {' '.join(names)}")
    progress.show("fetching")
    with tempfile.TemporaryDirectory(prefix="unfinished-", dir=target.parent) as temporary:
        download = ["apt-get", "download", "-q", *names]
        done = subprocess.run(download, cwd=temporary, capture_output=True, text=True, check=False)
        if done.returncode != 0:  # a fresh machine has no lists yet, or has some that are too old
            subprocess.run(["apt-get", "update", "-q"], capture_output=True, check=False)
            done = subprocess.run(download, cwd=temporary, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise PackageError(f"cannot fetch {' '.join(names)}: {done.stderr.strip()}")
        root = Path(temporary) / "root"
        for package in sorted(Path(temporary).glob("*.deb")):
            subprocess.run(["dpkg-deb", "-x", package, root], check=True)
        root.rename(target)
    progress.finish("ready")
