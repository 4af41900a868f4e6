"""The loop breaker: no pod is evicted in vain twice."""

from __future__ import annotations

import itertools
from datetime import datetime, timedelta
from typing import Any

import msgspec

from tests.core.updater_kit import HOUR, NOW, SAFE, make_options, make_pod, make_vpa
from vpa import disruptions
from vpa.disruptions import Managed, Memory, Options, Surroundings
from vpa.objects.autoscalers import VerticalPodAutoscaler
from vpa.objects.pods import Pod
from vpa.updates.breakers import PROBES
from vpa.updates.budgets import GroupKey

MINUTE = HOUR / 60
TARGET = {"cpu": "200m", "memory": "400Mi"}
MARK = {"vpaObservedContainers": "main"}


class World:
    """Workloads whose controllers replace evicted pods at once, through a webhook that works or not."""

    def __init__(self, workloads: int = 1, replicas: int = 3, options: Options | None = None) -> None:
        self.options = options or make_options()
        self.memory = Memory()
        self.replicas = replicas
        self.works = True
        self.now: datetime = NOW
        self.evicted: list[str] = []
        self.made = 0
        self.vpas: dict[str, VerticalPodAutoscaler] = {}
        self.pods: dict[str, list[Pod]] = {}
        for index in range(workloads):
            name = f"w{index}"
            vpa = make_vpa()
            self.vpas[name] = msgspec.structs.replace(
                vpa, metadata=msgspec.structs.replace(vpa.metadata, name=name)
            )
            self.pods[name] = [self.old_pod(name) for _ in range(replicas)]

    def old_pod(self, workload: str) -> Pod:
        return self.pod(workload, {"cpu": "100m", "memory": "200Mi"}, None)

    def new_pod(self, workload: str) -> Pod:
        if self.works:
            return self.pod(workload, TARGET, MARK)
        return self.old_pod(workload)

    def pod(self, workload: str, requests: dict[str, str], annotations: Any) -> Pod:
        self.made += 1
        return make_pod(
            f"{workload}-{self.made}",
            requests=requests,
            annotations=annotations,
            owner=("ReplicaSet", workload),
        )

    def managed(self) -> list[Managed]:
        return [Managed(vpa=vpa, pods=self.pods[name]) for name, vpa in self.vpas.items()]

    def around(self) -> Surroundings:
        return Surroundings(replicas={GroupKey("n", "ReplicaSet", name): self.replicas for name in self.vpas})

    def tick(self, *, replace: bool = True) -> int:
        """One pass, whose evictions all succeed; then the controllers act. Returns the evictions."""
        managed = self.managed()
        for one in managed:
            disruptions.observe(one, self.around(), self.memory, now=self.now, options=self.options)
        plan = disruptions.plan(managed, self.around(), self.memory, now=self.now, options=self.options)
        for decision in plan.acted:
            plan.accepted(decision, self.now)
            name = decision.vpa.metadata.name
            self.evicted.append(name)
            self.pods[name].remove(decision.pod)
            if replace:
                self.pods[name].append(self.new_pod(name))
        self.now += MINUTE
        return len(plan.acted)

    def reasons(self) -> set[str]:
        plan = disruptions.plan(
            self.managed(), self.around(), self.memory, now=self.now, options=self.options
        )
        return {one.reason.value for one in plan.others()}


def test_a_webhook_that_is_off_for_an_hour_costs_at_most_one_pod_of_each_group() -> None:
    world = World(workloads=5, replicas=4)
    world.works = False
    for _ in range(60):
        world.tick()
    assert max(world.evicted.count(name) for name in world.vpas) == 1
    assert world.reasons() == {"LoopBreaker"}


def test_without_the_rule_the_same_hour_costs_a_pod_in_each_minute() -> None:
    world = World(options=make_options(SAFE.override(break_eviction_loops=False)))
    world.works = False
    for _ in range(60):
        world.tick()
    assert len(world.evicted) >= 60


def test_a_webhook_that_works_is_found_out_with_the_first_pod_and_all_goes_on() -> None:
    world = World(workloads=30, replicas=4)
    assert world.tick() == PROBES, "one of each group, and few in all"
    assert world.tick() > PROBES
    for _ in range(5):
        world.tick()
    assert len(world.evicted) == 30 * 4
    assert world.reasons() == {"UpToDate"}


def test_the_second_failure_pauses_twice_as_long() -> None:
    world = World()
    world.works = False
    acted = [minute for minute in range(8 * 60) if world.tick()]
    gaps = [round((after - before) / 60) for before, after in itertools.pairwise(acted)]
    assert gaps == [1, 2, 4][: len(gaps)]
    assert len(gaps) >= 2


def test_one_group_that_fails_does_not_stop_the_others() -> None:
    world = World(workloads=3)
    world.tick()
    world.tick()
    broken = next(iter(world.vpas))
    world.pods[broken] = [world.old_pod(broken) for _ in range(3)]
    key = ("n", broken)
    world.memory.breakers.evicted(key, world.pods[broken][0], world.now)
    world.pods[broken][0] = world.old_pod(broken)
    world.memory.breakers.watched[key].seen.update(pod.metadata.uid for pod in world.pods[broken][1:])
    before = len(world.evicted)
    for _ in range(6):
        world.tick()
    assert world.memory.breakers.watched[key].failures == 1
    assert world.evicted[before:].count(broken) == 0
    healthy = [name for name in world.vpas if name != broken]
    assert all(pod.metadata.annotations for name in healthy for pod in world.pods[name])


def test_many_groups_that_fail_stop_all_evictions() -> None:
    world = World(workloads=40)
    world.works = False
    for _ in range(10):
        world.tick()
    assert len(world.evicted) <= PROBES
    world.works = True
    assert world.tick() == 0


def test_when_the_webhook_works_again_one_new_pod_tells_and_the_stopped_groups_go_on() -> None:
    world = World(workloads=6)
    world.works = False
    for _ in range(5):
        world.tick()
    stopped = len(world.evicted)
    world.works = True
    rolled_out = list(world.vpas)[-1]
    world.pods[rolled_out] = [world.new_pod(rolled_out) for _ in range(3)]
    world.tick()
    world.tick()
    assert len(world.evicted) > stopped


def test_a_pod_that_has_its_target_from_its_template_proves_nothing_about_the_webhook() -> None:
    world = World()
    world.tick(replace=False)
    world.pods["w0"].append(world.pod("w0", TARGET, None))
    world.tick(replace=False)
    assert world.memory.breakers.proven is None


def test_a_replacement_that_never_comes_is_not_waited_for_for_ever() -> None:
    world = World()
    world.tick(replace=False)
    assert world.memory.breakers.unproven() == 1
    world.now += timedelta(minutes=11)
    world.tick(replace=False)
    assert world.memory.breakers.unproven() == 0


def test_what_is_gone_is_forgotten() -> None:
    world = World(workloads=2)
    world.tick()
    world.tick()
    gone = world.managed()[1:]
    disruptions.forget(world.memory, gone)
    assert set(world.memory.breakers.watched) == {("n", "w1")}
    assert all(uid.startswith("uid-w1") for uid in world.memory.attempts.evictions)
