"""A machine that can't have real nodes runs all other tests, and says why these are left out."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence

import pytest

from tests.testbed.runs import REPOSITORY

LESS: dict[str, tuple[list[str], str]] = {
    "another user": (["unshare", "--user", "--map-user=1000"], "they need root"),
    "root of a container": (["unshare", "--user", "--map-root-user"], "they need the machine's own root"),
    "less capabilities": (
        ["setpriv", "--bounding-set=-sys_admin,-net_admin", "--inh-caps=-sys_admin,-net_admin"],
        "root lacks CAP_NET_ADMIN, CAP_SYS_ADMIN here",
    ),
    "no control groups": (
        ["unshare", "--mount", "sh", "-c", 'umount -R /sys/fs/cgroup && exec "$@"', "sh"],
        "is mounted below /sys/fs/cgroup",
    ),
}
"""Commands that run another with less than it needs; the words that say so."""


def possible() -> dict[str, tuple[list[str], str]]:
    """Those that this user may run; without root nothing has to be taken away."""
    if os.geteuid() != 0:
        return {"this user": ([], "they need root")}
    found = {name: case for name, case in LESS.items() if run(case[0], "true").returncode == 0}
    return found or {"this machine": ([], "")}  # where nothing can be taken away there is not enough


def run(prefix: Sequence[str], *command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*prefix, *command], cwd=REPOSITORY, capture_output=True, text=True, check=False, timeout=120
    )


POSSIBLE = possible()


@pytest.mark.parametrize(("prefix", "words"), POSSIBLE.values(), ids=POSSIBLE)
def test_only_the_tests_on_real_nodes_are_left_out_and_say_why(prefix: list[str], words: str) -> None:
    chosen = ["tests/node", "tests/core/test_quantities.py"]
    pytest_command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *chosen]
    done = run(prefix, *pytest_command)
    assert done.returncode == 0, done.stdout
    lines = done.stdout.splitlines()
    assert " passed, " in lines[-1]
    left_out = [line for line in lines if line.startswith("SKIPPED")]
    assert left_out
    assert all(" tests/node/" in line for line in left_out)
    assert all("real nodes are left out: " in line and words in line for line in left_out), left_out[0]


def test_whoever_asks_for_real_nodes_is_told_why_there_are_none() -> None:
    prefix, words = next(iter(POSSIBLE.values()))
    for command in (("tests.testbed", "--name=never", "up", "--nodes=1"), ("tests.demo.node",)):
        done = run(prefix, sys.executable, "-m", *command)
        assert done.returncode == 1
        assert words in done.stderr.splitlines()[-1]
        assert "Traceback" not in done.stderr
