"""Processes that compete for a lease while they are paused, killed, cut off, or their clocks jump.

What they write lies in the store in the order in which it was accepted: a write of an earlier leader after
one of a later leader would show that two led at once.
"""

from __future__ import annotations

import contextlib
import json
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.cluster.clients import operator
from tests.testbed.cluster import Cluster
from tests.testbed.processes import Process, attempts

QUICK = (3.0, 2.0, 0.4)
DEFAULT = (15.0, 10.0, 2.0)
SLACK = 4.0
"""Seconds that a busy machine may add to a takeover."""


@dataclass
class Race:
    """Candidates for one lease in one namespace."""

    cluster: Cluster
    namespace: str
    durations: tuple[float, float, float] = QUICK

    @contextlib.contextmanager
    def candidate(
        self, name: str, *, kubeconfig: Path | None = None, wall_clock: float = 0.0
    ) -> Iterator[Process]:
        kubeconfig = kubeconfig or operator(self.cluster).kubeconfig
        command = [
            sys.executable,
            "-m",
            "tests.faults.candidate",
            f"--kubeconfig={kubeconfig}",
            f"--namespace={self.namespace}",
            "--lease=lock",
            f"--identity={name}",
            "--durations",
            *map(str, self.durations),
            f"--wall-clock={wall_clock}",
        ]
        with self.cluster.spawn(f"{self.namespace}-{name}", command) as process:
            yield process

    def writes(self) -> list[tuple[str, int]]:
        """(who, term) of all writes, in the order in which the store accepted them."""
        found = self.cluster.api.list("ConfigMap", self.namespace, labelSelector="written=true")
        found.sort(key=lambda item: int(item["metadata"]["resourceVersion"]))
        return [(item["data"]["who"], int(item["data"]["term"])) for item in found]

    def wait_for_writer(self, name: str, *, after: int = 0, seconds: float = 30.0) -> float:
        """Wait for a write of *name* beyond the first *after* writes; the time it took."""
        started = time.monotonic()
        for _ in attempts(seconds, f"{name} to write"):
            if any(who == name for who, _ in self.writes()[after:]):
                break
        return time.monotonic() - started

    def never_two_at_once(self) -> int:
        """The number of terms; fails if a write of one came after a write of a later one."""
        terms = [term for _, term in self.writes()]
        assert terms == sorted(terms)
        assert len({*self.writes()}) == len({*terms})  # one writer in each term
        return len({*terms})


def said(process: Process) -> list[str]:
    return [json.loads(line)["what"] for line in process.logs().splitlines() if line.startswith("{")]


def wait_until_said(process: Process, what: str) -> None:
    """Wait for a line that begins with *what*."""
    for _ in attempts(30, f"{process.name} to say {what!r}", process):
        if any(line.startswith(what) for line in said(process)):
            return


def test_a_paused_leader_writes_nothing_after_its_successor(cluster: Cluster, namespace: str) -> None:
    race = Race(cluster, namespace)
    with race.candidate("a") as a, race.candidate("b") as b:
        processes = {"a": a, "b": b}
        for process in processes.values():
            wait_until_said(process, "sees ")
        for _ in attempts(20, "a first write"):
            if race.writes():
                break
        leader = race.writes()[-1][0]
        for _ in range(3):
            follower = "b" if leader == "a" else "a"
            processes[leader].pause()
            before = len(race.writes())
            took = race.wait_for_writer(follower, after=before)
            print(f"paused leader: takeover after {took:.2f} s (lease {race.durations[0]:g} s)")
            assert race.durations[0] - race.durations[2] * 1.2 - 0.5 <= took <= race.durations[0] + SLACK
            processes[leader].resume()
            for _ in attempts(20, "the paused leader to notice", processes[leader]):
                if said(processes[leader])[-1].startswith("lost: "):
                    break
            leader = follower
    assert race.never_two_at_once() == 4


def test_a_leader_that_stops_in_order_hands_over_at_once(cluster: Cluster, namespace: str) -> None:
    race = Race(cluster, namespace, DEFAULT)
    with race.candidate("a") as a:
        race.wait_for_writer("a")
        with race.candidate("b") as b:
            wait_until_said(b, "sees a")
            started = time.monotonic()
            assert a.stop() == 0
            race.wait_for_writer("b")
            took = time.monotonic() - started
            print(f"orderly stop: takeover after {took:.2f} s (15 s lease, tries every 2.0–2.4 s)")
            assert took < 2.4 + SLACK
    assert race.never_two_at_once() == 2


def test_a_killed_leader_is_replaced_after_the_lease_with_the_default_durations(
    cluster: Cluster, namespace: str
) -> None:
    race = Race(cluster, namespace, DEFAULT)
    with race.candidate("a") as a:
        race.wait_for_writer("a")
        with race.candidate("b") as b:
            wait_until_said(b, "sees a")
            a.kill()
            before = len(race.writes())
            took = race.wait_for_writer("b", after=before)
            print(f"killed leader: takeover after {took:.2f} s (15 s lease, tries every 2.0–2.4 s)")
            assert 15.0 - 2.4 - 0.5 <= took <= 15.0 + 2.4 + SLACK
    assert race.never_two_at_once() == 2


def test_a_leader_that_is_cut_off_stops_before_another_begins(cluster: Cluster, namespace: str) -> None:
    race = Race(cluster, namespace)
    with cluster.fault_proxy() as proxy:
        kubeconfig = operator(cluster).kubeconfig_to(proxy.url)
        with race.candidate("a", kubeconfig=kubeconfig) as a:
            race.wait_for_writer("a")
            with race.candidate("b") as b:
                wait_until_said(b, "sees a")
                proxy.stall()
                before = len(race.writes())
                took = race.wait_for_writer("b", after=before)
                print(f"cut-off leader: takeover after {took:.2f} s (lease {race.durations[0]:g} s)")
                wait_until_said(a, "lost: ")
                proxy.heal()
                time.sleep(1.0)
                assert race.writes()[-1][0] == "b"
    assert race.never_two_at_once() == 2


def test_wall_clocks_that_jump_by_a_day_change_nothing(cluster: Cluster, namespace: str) -> None:
    race = Race(cluster, namespace)
    with race.candidate("a", wall_clock=86400.0):
        race.wait_for_writer("a")
        with race.candidate("b", wall_clock=-86400.0) as b:
            wait_until_said(b, "sees a")
            time.sleep(4.0)
            assert "leading" not in said(b)
            assert race.writes()[-1][0] == "a"
    assert race.never_two_at_once() == 1
