"""Process 1 of a machine of user-mode Linux: its own files above the host's, then one command, then off.

    python usermode_init.py PLAN.json

It is run by path and needs the standard library alone.
"""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

MODULES = (
    *("overlay", "bridge", "veth"),
    *("iptable_nat", "iptable_filter", "iptable_mangle", "ipt_REJECT"),
    *("xt_addrtype", "xt_comment", "xt_conntrack", "xt_mark", "xt_MASQUERADE", "xt_nat", "xt_REDIRECT"),
    *("xt_statistic", "xt_tcpudp"),
)
"""What overlays, the pods' network and kube-proxy need; those that the kernel has no file of are built in."""
HOST = "host"
SCRATCH = "/scratch"
"""Its folder for temporary files: those of nodes can't be on an overlay, nor below /run."""
SYS_FINIT_MODULE, SYS_PIVOT_ROOT = 313, 155
_LIBC = ctypes.CDLL(None, use_errno=True)


def mount(kind: str, target: str, *options: str) -> None:
    """Mount a filesystem of the kernel's own, or an overlay."""
    chosen = ["-o", ",".join(options)] if options else []
    subprocess.run(["mount", "-t", kind, *chosen, kind, target], check=True)


def call(number: int, *arguments: object) -> None:
    """A system call that Python has no function for."""
    if _LIBC.syscall(number, *arguments) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), str(arguments))


def load_modules(folder: Path) -> None:
    """Load `MODULES` and what they need from the files in *folder*."""
    needs = {}
    for line in (folder / "modules.dep").read_text().splitlines():
        file, _, others = line.partition(":")
        needs[Path(file).stem.replace("-", "_")] = [*reversed(others.split()), file]
    for name in MODULES:
        for file in needs.get(name, ()):
            with (folder / file).open("rb") as module:
                try:
                    call(SYS_FINIT_MODULE, module.fileno(), b"", 0)
                except FileExistsError:
                    continue


def own_root() -> None:
    """Files of its own above the host's, which stay as they are."""
    mount("tmpfs", "/mnt", "mode=755")
    for name in ("upper", "work", "root"):
        Path("/mnt", name).mkdir()
    mount("overlay", "/mnt/root", "lowerdir=/", "upperdir=/mnt/upper", "workdir=/mnt/work")
    Path("/mnt/root", HOST).mkdir()
    os.chdir("/mnt/root")
    call(SYS_PIVOT_ROOT, b".", HOST.encode())
    os.chroot(".")


def furnish(plan: dict[str, Any]) -> None:
    """What a machine has that has just been started, control groups of version 2 in their place."""
    for kind, target in (("proc", "/proc"), ("sysfs", "/sys"), ("devtmpfs", "/dev")):
        mount(kind, target)
    for name in ("pts", "shm"):
        Path("/dev", name).mkdir(exist_ok=True)
    mount("devpts", "/dev/pts")
    for target in ("/dev/shm", "/run"):
        mount("tmpfs", target)
    Path(SCRATCH).mkdir()
    mount("tmpfs", SCRATCH, "size=90%")  # of the machine's memory: images are unpacked in here
    mount("cgroup2", "/sys/fs/cgroup")
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    Path(plan["result"]).mkdir(parents=True, exist_ok=True)
    mount("hostfs", plan["result"], plan["result"])


def main() -> None:
    """Everything, and the power off."""
    plan = json.loads(Path(sys.argv[1]).read_text())
    os.environ |= {**plan["env"], "TMPDIR": SCRATCH}
    code = 1
    try:
        load_modules(Path(plan["modules"]))
        own_root()
        furnish(plan)
        result = Path(plan["result"])
        with (result / "output").open("ab") as output:
            code = subprocess.run(
                plan["command"], cwd=plan["folder"], stdout=output, stderr=subprocess.STDOUT, check=False
            ).returncode
        (result / "code").write_text(str(code))
    finally:
        os.sync()
        Path("/proc/sysrq-trigger").write_text("o")


if __name__ == "__main__":
    main()
