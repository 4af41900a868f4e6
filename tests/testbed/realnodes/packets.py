"""The programs by which kube-proxy tells the kernel of Services: nft, or iptables for kernels without."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.testbed import debian

NFT = (
    *("libbsd0", "libedit2", "libgmp10", "libjansson4", "libmd0", "libmnl0"),
    *("libnftables1", "libnftnl11", "libxtables12", "nftables"),
)
IPTABLES = ("iptables", "libip4tc2", "libip6tc2", "libxtables12")
"""Packages of Debian."""


@dataclass(frozen=True)
class Tools:
    """kube-proxy's mode, and the folder of the programs that it needs for that."""

    mode: str
    folder: Path


def tools(folder: Path) -> Tools:
    """Those that this kernel understands: the machine's own, or Debian's, which are not installed.

    What has to be written to find them is written into *folder*.
    """
    nft = _nft(folder)
    table = ["unshare", "--net", "--", str(nft), "add table ip probe"]
    if subprocess.run(table, capture_output=True, check=False).returncode == 0:
        return Tools("nftables", nft.parent)
    return Tools("iptables", _iptables(folder))


def _nft(folder: Path) -> Path:
    installed = shutil.which("nft")
    if installed:
        return Path(installed)
    root = debian.unpacked(*NFT)
    libraries = next(root.glob("usr/lib/*/libnftables.so.1")).parent
    return _script(folder / "nft", {"LD_LIBRARY_PATH": libraries}, f"{root}/usr/sbin/nft")


def _iptables(folder: Path) -> Path:
    root = debian.unpacked(*IPTABLES)
    libraries = next(root.glob("usr/lib/*/libxtables.so.12")).parent
    env = {"LD_LIBRARY_PATH": libraries, "XTABLES_LIBDIR": libraries / "xtables"}
    for command in ("iptables", "iptables-save", "iptables-restore"):
        _script(folder / command, env, f"{root}/usr/sbin/xtables-legacy-multi {command}")
    return folder


def _script(path: Path, env: Mapping[str, Path], command: str) -> Path:
    path.parent.mkdir(exist_ok=True)
    variables = " ".join(f"{name}={value}" for name, value in env.items())
    path.write_text(f'#!/bin/sh\n{variables} exec {command} "$@"\n')
    path.chmod(0o755)
    return path
