"""Whether this machine can have real nodes, and if not, why not, in one sentence."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.testbed import folders
from tests.testbed.realnodes import cgroups

_CAPABILITIES = {
    "CAP_CHOWN": 0,
    "CAP_NET_ADMIN": 12,
    "CAP_SYS_CHROOT": 18,
    "CAP_SYS_PTRACE": 19,
    "CAP_SYS_ADMIN": 21,
    "CAP_MKNOD": 27,
}
_RESOURCE = 24  # CAP_SYS_RESOURCE
_ALL_USERS = ["0", "0", str(2**32 - 1)]
_PROGRAMS = {"ip": "iproute2", "mount": "mount", "nsenter": "util-linux", "unshare": "util-linux"}

UNSHARE = (
    *("unshare", "--mount", "--net", "--pid", "--fork", "--uts", "--ipc", "--cgroup"),
    *("--propagation", "private", "--kill-child=KILL", "--"),
)
"""Put before a command, it is process 1 in namespaces of its own, and ends with the one that waits for it."""


@functools.cache
def obstacle() -> str | None:
    """Why this machine cannot have real nodes; None where it can."""
    for check in (_system, _rights, _programs, _cgroups, _namespaces):
        reason = check()
        if reason is not None:
            return f"real nodes are left out: {reason}"
    return None


def may_raise_priority() -> bool:
    """Whether this process may make others less likely to be OOM-killed."""
    return bool(_effective() & 1 << _RESOURCE)


def _system() -> str | None:
    if sys.platform != "linux" or os.uname().machine != "x86_64":
        return f"they need Linux on x86-64, and this is {sys.platform} on {os.uname().machine}"
    return None


def _rights() -> str | None:
    if os.geteuid() != 0:
        return "they need root, to make namespaces, mounts and control groups"
    if Path("/proc/self/uid_map").read_text().split() != _ALL_USERS:
        return "they need the machine's own root, and this is the root of a user namespace"
    missing = [name for name, bit in _CAPABILITIES.items() if not _effective() & 1 << bit]
    return f"root lacks {', '.join(missing)} here" if missing else None


def _programs() -> str | None:
    missing = [program for program in _PROGRAMS if shutil.which(program) is None]
    packages = sorted({_PROGRAMS[program] for program in missing})
    if missing:
        return f"{', '.join(missing)} not found on PATH (Debian: {' '.join(packages)})"
    return None


def _cgroups() -> str | None:
    try:
        cgroups.survey()
    except cgroups.CgroupError as error:
        return str(error)
    return None


def _namespaces() -> str | None:
    """Try what a node does: namespaces, and an overlay where its images will be."""
    with tempfile.TemporaryDirectory(dir=folders.runs()) as folder:
        for name in ("lower", "upper", "work", "merged"):
            (Path(folder) / name).mkdir()
        options = ",".join(f"{name}dir={folder}/{name}" for name in ("lower", "upper", "work"))
        overlay = ["mount", "-t", "overlay", "-o", options, "overlay", f"{folder}/merged"]
        for what, command in (("namespaces", ["true"]), (f"an overlay mount in {folder}", overlay)):
            done = subprocess.run([*UNSHARE, *command], capture_output=True, text=True, check=False)
            if done.returncode != 0:
                return f"{what}: not permitted here ({done.stderr.strip()})"
    return None


def _effective() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("CapEff:"):
            return int(line.split()[1], 16)
    return 0
