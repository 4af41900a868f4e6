"""Control groups of version 2, whatever this machine has: on user-mode Linux, which has nothing else."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.node.figures import Figures
from tests.testbed import folders, watchdog
from tests.testbed.processes import attempts
from tests.testbed.realnodes import usermode
from tests.testbed.runs import REPOSITORY

pytestmark = pytest.mark.builds("prometheus")  # which is built for such a machine as well

LOOK = """
import pathlib
from tests.testbed.realnodes import cgroups, requirements
print(cgroups.survey()[0], requirements.obstacle())
pathlib.Path("README.md").write_text("changed")
raise SystemExit(7)
"""
CHOSEN = (
    "tests/node/test_oom.py",
    *(
        f"tests/node/test_resize.py::test_{name}"
        for name in (
            "a_resize_up_and_down_is_in_the_cgroups_and_restarts_nothing",
            "a_container_that_asks_for_it_is_restarted_by_a_resize_which_is_said",
        )
    ),
    "tests/node/test_kinds.py::test_burstable_and_guaranteed_pods_are_resized_and_keep_their_class",
)


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "tests.testbed.realnodes.usermode", *arguments]


def test_a_machine_of_version_2_can_have_nodes_and_changes_nothing_here() -> None:
    before = (REPOSITORY / "README.md").read_bytes()
    done = subprocess.run(
        command(sys.executable, "-c", LOOK), cwd=REPOSITORY, capture_output=True, text=True, check=False
    )
    assert done.returncode == 7, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1] == "2 None"
    assert (REPOSITORY / "README.md").read_bytes() == before


def test_nothing_is_left_of_such_a_machine_when_its_process_is_killed() -> None:
    runs = set(folders.runs().glob("run-*"))
    script = f"from {usermode.__name__} import run; run(['sh', '-c', 'echo up; sleep 600'], memory=1024)"
    with subprocess.Popen(
        [sys.executable, "-c", script], cwd=REPOSITORY, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n"
        new = [run for run in set(folders.runs().glob("run-*")) - runs if holds_kernel(run)]
        assert new
        os.kill(process.pid, signal.SIGKILL)
    for _ in attempts(30, "its watchdog to remove everything", pause=0.1):
        if not any(run.exists() or watchdog.marked(run) for run in new):
            break


def holds_kernel(run: Path) -> bool:
    return any(process.name() == "linux.uml" for process in watchdog.marked(run))


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_resizes_and_oom_kills_end_alike_under_version_2(figures: Figures) -> None:
    one = ["env", "VPA_TESTBED_ONE_NODE=1"]
    pytest_command = command(*one, sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *CHOSEN)
    done = subprocess.run(pytest_command, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    for line in done.stdout.splitlines():
        if line.startswith("measured by "):
            name, _, found = line.removeprefix("measured by ").partition(": ")
            figures(name, found)
    assert " passed" in done.stdout.splitlines()[-1]
