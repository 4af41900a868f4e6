"""The control groups of nodes: version 1, each controller in its place, and version 2, one tree.

A node gets groups of its own below the one this process is in (version 2: below the nearest that may have
some). They are noted in the run's folder before they are made, so that a watchdog finds them.
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from pathlib import Path

from tests.testbed import watchdog

ROOT = Path("/sys/fs/cgroup")

NEEDED = ("cpu", "memory", "pids")
"""What a kubelet doesn't start without, in both versions."""
NEEDED_V1 = (*NEEDED, "cpuset", "cpuacct", "devices", "freezer")
WELCOME_V2 = ("cpuset",)
"""What kernels without a second CPU don't have."""


class CgroupError(Exception):
    """This machine's control groups are of no use for nodes; the message says why."""


@dataclass(frozen=True)
class Hierarchy:
    """One mounted tree of groups."""

    options: str
    """What to mount it with again: its controllers, or the name of one without any. Empty: version 2."""
    parent: Path
    """The group that the groups of nodes are made in."""

    @property
    def controllers(self) -> tuple[str, ...]:
        """The controllers of version 1 that are in it."""
        return tuple(self.options.split(","))


@dataclass(frozen=True)
class Groups:
    """The groups of one node."""

    version: int
    hierarchies: tuple[Hierarchy, ...]
    name: str

    @classmethod
    def make(cls, name: str, run: Path) -> Groups:
        """Make the groups called *name* for the run in the folder *run*. Raises `CgroupError`."""
        version, hierarchies = survey()
        groups = cls(version, hierarchies, name)
        with (run / watchdog.CGROUPS).open("a") as note:
            note.writelines(f"{folder}\n" for folder in groups.folders)
        for hierarchy, folder in zip(hierarchies, groups.folders, strict=True):
            folder.mkdir(exist_ok=True)
            if "cpuset" in hierarchy.controllers:  # empty in a new group of version 1, and then of no use
                for file in ("cpuset.cpus", "cpuset.mems"):
                    (folder / file).write_text((folder.parent / file).read_text())
        if version == 2:
            groups.init.mkdir(exist_ok=True)
        return groups

    @property
    def folders(self) -> list[Path]:
        """Its group in each hierarchy."""
        return [hierarchy.parent / self.name for hierarchy in self.hierarchies]

    @property
    def init(self) -> Path:
        """Version 2: where the node's own processes are, since a group with groups in it may have none."""
        return self.folders[0] / "init"

    def folder(self, controller: str) -> Path:
        """Its group in the hierarchy that has *controller*."""
        if self.version == 2:
            return self.folders[0]
        return next(
            folder
            for hierarchy, folder in zip(self.hierarchies, self.folders, strict=True)
            if controller in hierarchy.controllers
        )

    def limit_memory(self, size: int) -> None:
        """Let the kernel hold the whole node to *size* bytes."""
        file = "memory.max" if self.version == 2 else "memory.limit_in_bytes"
        (self.folder("memory") / file).write_text(str(size))

    def weigh(self, *, shares: int, weight: int) -> None:
        """How much CPU the whole node gets beside others: `cpu.shares`, or in version 2 `cpu.weight`."""
        file, value = ("cpu.weight", weight) if self.version == 2 else ("cpu.shares", shares)
        (self.folder("cpu") / file).write_text(str(value))

    def settle(self) -> None:
        """Version 2, once the namespace stands: move the processes aside, give the node the controllers."""
        if self.version != 2:
            return
        top = self.folders[0]
        while pids := (top / "cgroup.procs").read_text().split():  # more may be forked meanwhile
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    (self.init / "cgroup.procs").write_text(pid)
        wanted = sorted(_controllers(top))
        (top / "cgroup.subtree_control").write_text(" ".join(f"+{controller}" for controller in wanted))

    def clear(self) -> None:
        """Remove the groups inside, once the node has no processes: with its power a machine loses them.

        Otherwise the kubelet, started again, would look for the containers of each for seconds.
        """
        for folder in self.folders:
            for inner in folder.iterdir():
                if inner.is_dir() and not (self.version == 2 and inner == self.init):
                    watchdog.remove_group(inner)
        if self.version == 2:  # or no process could enter it again
            control = self.folders[0] / "cgroup.subtree_control"
            control.write_text(" ".join(f"-{controller}" for controller in control.read_text().split()))

    def pod(self, uid: str, container: str = "") -> Values:
        """What the kernel holds for a pod, or for one of its containers (by its id).

        Raises `LookupError` when there is no such group.
        """
        return Values(self, f"pod{uid}/{container}".rstrip("/"))


class Values:
    """The settings and figures of one group, in the units of both versions alike."""

    def __init__(self, groups: Groups, path: str) -> None:
        self._groups = groups
        self._path = path
        self._cpu = self._find("cpu")
        self._memory = self._find("memory")

    @property
    def cpu_limit(self) -> int | None:
        """Millicores; None: no limit."""
        if self._groups.version == 2:
            quota, period = (self._cpu / "cpu.max").read_text().split()
        else:
            quota = (self._cpu / "cpu.cfs_quota_us").read_text().strip()
            period = (self._cpu / "cpu.cfs_period_us").read_text()
        return None if quota in ("max", "-1") else int(quota) * 1000 // int(period)

    @property
    def cpu_weight(self) -> int:
        """`cpu.shares`, or `cpu.weight`: what a request becomes."""
        file = "cpu.weight" if self._groups.version == 2 else "cpu.shares"
        return int((self._cpu / file).read_text())

    @property
    def memory_limit(self) -> int | None:
        """Bytes; None: no limit."""
        if self._groups.version == 2:
            text = (self._memory / "memory.max").read_text().strip()
            return None if text == "max" else int(text)
        size = int((self._memory / "memory.limit_in_bytes").read_text())
        return None if size >= 1 << 62 else size

    @property
    def memory(self) -> int:
        """Bytes in use, the page cache included."""
        file = "memory.current" if self._groups.version == 2 else "memory.usage_in_bytes"
        return int((self._memory / file).read_text())

    def _find(self, controller: str) -> Path:
        # kubepods/POD, kubepods/burstable/POD or kubepods/besteffort/POD
        top = self._groups.folder(controller) / "kubepods"
        for found in (*top.glob(self._path), *top.glob(f"*/{self._path}")):
            return found
        raise LookupError(f"no group {self._path} below {top}")


def survey(*, process: Path = Path("/proc/self"), root: Path = ROOT) -> tuple[int, tuple[Hierarchy, ...]]:
    """The version in use, and where nodes' groups can be made. Raises `CgroupError` with the reason.

    *process* is the folder that says what this process sees, *root* is where control groups are mounted.
    """
    mounts = _mounts(process)
    if any(kind == "cgroup2" and point == str(root) for kind, point, _, _ in mounts):
        return 2, (Hierarchy("", _parent_v2(process, root)),)
    own = _own_groups(process)
    hierarchies = []
    for kind, point, within, options in mounts:
        if kind != "cgroup":
            continue
        name = ",".join(option for option in options if option in own)
        if name:
            inner = "/" + os.path.relpath(own[name.split(",")[0]], within)
            hierarchies.append(Hierarchy(name, Path(os.path.normpath(f"{point}{inner}"))))
    there = {controller for hierarchy in hierarchies for controller in hierarchy.controllers}
    missing = [controller for controller in NEEDED_V1 if controller not in there]
    if missing:
        raise CgroupError(f"no cgroup controller {', '.join(missing)} is mounted below {root}")
    return 1, tuple(hierarchies)


def _mounts(process: Path) -> list[tuple[str, str, str, list[str]]]:
    """(type, mount point, root, options of the filesystem) of all mounts of control groups."""
    found = []
    for line in (process / "mountinfo").read_text().splitlines():
        before, _, after = line.partition(" - ")
        kind, _, options = after.split(" ", 2)
        if kind.startswith("cgroup"):
            root, point = before.split()[3:5]
            found.append((kind, point, root, options.split(",")))
    return found


def _own_groups(process: Path) -> dict[str, str]:
    """Controller (or ``name=…``) → the group of version 1 that this process is in."""
    groups: dict[str, str] = {}
    for line in (process / "cgroup").read_text().splitlines():
        _, controllers, group = line.split(":", 2)
        groups |= dict.fromkeys(filter(None, controllers.split(",")), group)
    return groups


def _parent_v2(process: Path, root: Path) -> Path:
    """The nearest group upwards whose children have the controllers."""
    own = (process / "cgroup").read_text().splitlines()[-1].split(":", 2)[2]
    here = Path(os.path.normpath(f"{root}{own}"))
    if not here.exists():  # a container that sees only its part of the tree
        here = root
    for group in (here, *here.parents):
        if set(NEEDED) <= set((group / "cgroup.subtree_control").read_text().split()):
            return group
        if group == root:
            break
    there = _controllers(root)
    missing = [each for each in NEEDED if each not in there]
    if missing:
        raise CgroupError(f"no cgroup controller {', '.join(missing)} in {root}, which is of version 2")
    chosen = [*NEEDED, *(each for each in WELCOME_V2 if each in there)]
    try:
        (root / "cgroup.subtree_control").write_text(" ".join(f"+{each}" for each in chosen))
    except OSError as error:
        wanted = ", ".join(NEEDED)
        raise CgroupError(
            f"no cgroup hands {wanted} on to those inside it, nor can {root}: {error}"
        ) from error
    return root


def _controllers(group: Path) -> set[str]:
    return set((group / "cgroup.controllers").read_text().split())
