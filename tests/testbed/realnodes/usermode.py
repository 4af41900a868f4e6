"""A machine of its own whose control groups are of version 2 only: user-mode Linux, a kernel as a process.

    python -m tests.testbed.realnodes.usermode [--memory MIB] COMMAND…

runs COMMAND in this repository on such a machine, on this machine's files, which it sees but cannot change,
and ends with its exit code. The kernel is Debian's, unpacked into the cache; it needs neither root nor
hardware of its own, has one CPU, no network to the outside, and is gone with the command.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from tests.testbed import builds, components, debian, folders
from tests.testbed.processes import PATIENCE
from tests.testbed.realnodes import images, packets, project_image
from tests.testbed.runs import REPOSITORY, Run

PACKAGE = "user-mode-linux"
MEMORY = 7168
"""MiB."""
SLOWNESS = "4"
"""How much longer than elsewhere things may take: one CPU, and system calls that cost tenfold."""
_KEPT = ("HOME", "LANG", "PATH", "XDG_CACHE_HOME")
BUILT = (*components.CLUSTER, *components.REAL_NODES, "helm", "prometheus")


def run(command: Sequence[str], *, memory: int = MEMORY) -> int:
    """Run *command* and show what it prints; its exit code."""
    root = debian.unpacked(PACKAGE)
    own = Run()
    try:
        folder = own.folder
        result = folder / "result"
        result.mkdir()
        output = result / "output"
        output.touch()
        plan = {
            "command": list(command),
            "folder": str(REPOSITORY),
            "modules": str(next(root.glob("usr/lib/uml/modules/*"))),
            "env": {name: os.environ[name] for name in _KEPT if name in os.environ} | {PATIENCE: SLOWNESS},
            "result": str(result),
        }
        file = folder / "plan.json"
        file.write_text(json.dumps(plan))
        kernel: list[str | Path] = [
            root / "usr/bin/linux.uml",
            f"mem={memory}M",
            f"uml_dir={folder}",
            "umid=machine",
            *("root=/dev/root", "rootfstype=hostfs", "rootflags=/", "ro", "loglevel=0"),
            *("con=null", "con0=null,fd:1"),
            f"init={Path(sys.executable).resolve()}",
            *("--", "-I", "-S", str(folders.HERE / "realnodes" / "usermode_init.py"), str(file)),
        ]
        machine = own.add("machine", kernel, **_memory_file(memory, folder)).start()
        with output.open(errors="replace") as words:
            while machine.running:
                sys.stdout.write(words.read())
                sys.stdout.flush()
                time.sleep(0.2)
            sys.stdout.write(words.read())
        code = result / "code"
        if code.exists():
            return int(code.read_text())
        print(f"the machine ended before its command; its last words:\n{machine.tail()}", file=sys.stderr)
        return 1
    finally:
        own.close()


def _memory_file(memory: int, folder: Path) -> dict[str, str]:
    """The variable that says where the machine's memory is: in this one's, where there is room for it."""
    shared = Path("/dev/shm")
    if shared.is_dir() and shutil.disk_usage(shared).free > memory * 2**20:
        return {"TMPDIR": str(shared)}
    return {"TMPDIR": str(folder)}


def main(arguments: Sequence[str]) -> int:
    """Build here what a cluster there needs, and run the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--memory", type=int, default=MEMORY, help="MiB that the machine has")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    options = parser.parse_args(arguments)
    builds.ensure(*(components.COMPONENTS[name] for name in BUILT))
    project_image.archive()
    images.basic()
    for packages in (packets.NFT, packets.IPTABLES):
        debian.unpacked(*packages)
    return run(options.command, memory=options.memory)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
