"""What is kept of pods, which kills they show, and whose history their containers feed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from recommender.ooms import EventView, evictions, new_kills, standing_kills
from recommender.records import PodRecord, PodView, Records
from recommender.tracking import GroupKey
from tests.core.recommending import MIB, World, container_status, oom_killed, pod_view, vpa
from vpa import times
from vpa.cluster.owners import OwnerError
from vpa.histograms import NEVER
from vpa.matching import TargetKey
from vpa.metrics.usage import Usage
from vpa.objects import meta
from vpa.rules import UPSTREAM, Rules, preset
from vpa.scopes import ABSENT

AT = "2026-08-01T10:00:00Z"


def record(*containers: str, **fields: Any) -> PodRecord:
    return Records().record(pod_view("web-1-a", *containers, **fields))


# Records


def test_replicas_share_their_shape_and_labels() -> None:
    records = Records()
    first, second = (records.record(pod_view(name, "web", memory="1Gi")) for name in ("web-1-a", "web-1-b"))
    assert first.shape is second.shape
    assert first.labels is second.labels
    other = records.record(pod_view("web-1-c", "web", memory="2Gi"))
    assert other.shape is not first.shape


def test_the_kubelets_word_on_requests_wins_over_the_spec_even_when_it_names_none() -> None:
    resized = container_status("web", resources={"requests": {"memory": "512Mi"}})
    bare = container_status("web", resources={})
    assert record("web", memory="1Gi").shape.memory == (1024 * MIB,)
    assert record("web", memory="1Gi", statuses=[resized]).shape.memory == (512 * MIB,)
    assert record("web", memory="1Gi", statuses=[bare]).shape.memory == (0,)
    assert record("web").shape.memory == (0,)


def test_the_sources_of_resources_are_counted_as_upstream_counts_them() -> None:
    records = Records()
    records.record(pod_view("a", "web", "log", init=["setup"], memory="1Gi"))
    resized = container_status("web", resources={"requests": {"memory": "512Mi"}})
    records.record(pod_view("b", "web", memory="1Gi", statuses=[resized]))
    assert records.sources["Pod.Spec.Containers"] == 2
    assert records.sources["Pod.Status.ContainerStatuses"] == 1
    assert records.sources["Pod.Spec.InitContainers"] == 1


def test_a_shape_gives_the_pod_back_for_those_who_size_pods() -> None:
    resized = container_status("web", resources={"requests": {"memory": "512Mi"}})
    sized = {"requests": {"memory": "1Gi"}, "limits": {"cpu": "2"}}
    found = record("web", "log", resources=sized, statuses=[resized])
    pod = found.shape.pod(found)
    assert [container.name for container in pod.spec.containers or ()] == ["web", "log"]
    assert meta.to_builtins(pod)["spec"]["containers"][0]["resources"] == sized
    assert [status.name for status in pod.status.container_statuses or ()] == ["web"]


# Kills (facts 2.5)


def killed_now(restarts: int = 0) -> dict[str, Any]:
    return container_status("web", restartCount=restarts, state=oom_killed(AT))


def killed_before(restarts: int = 1) -> dict[str, Any]:
    return container_status("web", restartCount=restarts, lastState=oom_killed(AT))


def waiting(restarts: int) -> dict[str, Any]:
    state = {"waiting": {"reason": "CrashLoopBackOff"}}
    return container_status("web", restartCount=restarts, state=state, lastState=oom_killed(AT))


def kills(old: dict[str, Any], new: dict[str, Any], **fields: Any) -> list[tuple[int, int]]:
    before = record("web", memory=fields.get("old_memory"), statuses=[old])
    after = record("web", memory=fields.get("new_memory"), statuses=[new])
    return [(kill.time, kill.memory) for kill in new_kills(before, after)]


def test_a_running_container_that_lies_killed_now_was_killed_with_its_present_request() -> None:
    assert kills(container_status("web"), killed_now(), new_memory="1Ki") == [(times.parse(AT), 1024)]


def test_a_container_that_runs_again_was_killed_with_its_former_request() -> None:
    found = kills(container_status("web"), killed_before(), old_memory="2Ki", new_memory="4Ki")
    assert found == [(times.parse(AT), 2048)]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (waiting(3), killed_before(4)),  # counted already when it was killed
        (killed_now(1), killed_now(1)),
        (killed_before(1), killed_before(1)),
        (container_status("web"), container_status("web", restartCount=1)),
    ],
)
def test_what_was_counted_or_was_no_kill_counts_no_more(old: dict[str, Any], new: dict[str, Any]) -> None:
    assert kills(old, new) == []


def test_a_second_kill_between_two_looks_counts() -> None:
    assert len(kills(killed_now(1), killed_now(2))) == 1


def test_init_containers_are_not_looked_at() -> None:
    old = record("web", init=["setup"], statuses=[container_status("web")])
    new = record("web", init=["setup"], statuses=[container_status("web")])
    assert list(new_kills(old, new)) == []


def test_a_pods_status_tells_of_the_newest_kill_of_each_container() -> None:
    found = record("web", memory="1Ki", statuses=[killed_before()])
    assert [(kill.time, kill.memory) for kill in standing_kills(found)] == [(times.parse(AT), 1024)]
    assert list(standing_kills(record("web"))) == []


def evicted(containers: str, usage: str, starved: str, rules: Rules | None = None) -> list[int]:
    annotations = {
        "offending_containers": containers,
        "offending_containers_usage": usage,
        "starved_resource": starved,
    }
    event = {
        "metadata": {"name": "e", "creationTimestamp": AT, "annotations": annotations},
        "involvedObject": {"kind": "Pod", "namespace": "shop", "name": "web-1-a"},
    }
    found = evictions(meta.convert(event, EventView), rules or Rules())
    assert all(kill.time == times.parse(AT) and kill.pod == "web-1-a" for kill in found)
    return [kill.memory for kill in found]


def test_evictions_for_lack_of_memory_are_kills_with_the_usage_that_the_kubelet_saw() -> None:
    assert evicted("a,b", "1024Ki,2048Ki", "memory,memory") == [2**20, 2**21]
    assert evicted("a,b", "1024Ki,2048Ki", "memory,evictable") == [2**20]
    assert evicted("a", "lots", "memory") == []


def test_a_starved_resource_named_once_holds_for_all_containers_but_not_for_upstream() -> None:
    assert evicted("a,b", "1024Ki,2048Ki", "memory") == [2**20, 2**21]
    assert evicted("a,b", "1024Ki,2048Ki", "memory", preset(UPSTREAM)) == []


def test_events_about_other_things_are_no_evictions() -> None:
    event = {"metadata": {"creationTimestamp": AT}, "involvedObject": {"kind": "Node", "name": "n"}}
    assert evictions(meta.convert(event, EventView), Rules()) == []


# Groups


def group_of(world: World, pod: str) -> GroupKey:
    return world.engine.tracker.pods["shop", pod].group.key


def test_the_controller_of_many_pods_is_looked_up_once() -> None:
    world = World()
    views = [pod_view(f"web-1-{number}", "web") for number in range(20)]
    for view in views:
        world.put_pod(view)
    assert len(world.owners.asked) == 1
    assert {group_of(world, f"web-1-{n}") for n in range(20)} == {GroupKey("shop", "Deployment", "web")}
    assert len(world.engine.tracker.rows()) == 1


def test_two_stateful_sets_with_the_same_labels_are_not_mixed() -> None:
    """Field case 50."""
    world = World()
    for name, container in (("s0", "db"), ("s1", "cache")):
        world.put_pod(pod_view(f"{name}-0", container, owner=("StatefulSet", name), labels={"app": "s"}))
        world.put_vpa(vpa(name, target=name, kind="StatefulSet"))
    world.run(120, ("s0-0", "db", 0.5, 300), ("s1-0", "cache", 2.0, 900))
    assert set(world.targets("s0")) == {"db"}
    assert set(world.targets("s1")) == {"cache"}
    assert world.targets("s0")["db"]["cpu"] != world.targets("s1")["cache"]["cpu"]


def test_upstream_mixes_them_because_it_looks_at_labels() -> None:
    world = World("--compatibility=upstream")
    for name in ("s0", "s1"):
        owner = ("StatefulSet", name)
        world.put_pod(pod_view(f"{name}-0", f"c{name}", owner=owner, labels={"app": "s"}))
    first = vpa("s0", target="s", kind="StatefulSet")
    world.put_vpa(first)
    world.tick()
    assert set(world.targets("s0")) == {"cs0", "cs1"}


def test_a_controller_that_cannot_be_looked_up_now_is_tried_again() -> None:
    world = World()
    world.owners.failures["web-1"] = OwnerError("the server is busy", temporary=True)
    world.put_pod(pod_view("web-1-a", "web"))
    assert world.engine.tracker.pods == {}
    del world.owners.failures["web-1"]
    world.settle()
    assert group_of(world, "web-1-a") == GroupKey("shop", "Deployment", "web")


def test_a_controller_that_is_gone_leaves_its_pods_to_themselves() -> None:
    world = World()
    world.owners.failures["web-1"] = OwnerError("ReplicaSet shop/web-1 does not exist")
    world.put_pod(pod_view("web-1-a", "web"))
    assert group_of(world, "web-1-a") == GroupKey("shop", "ReplicaSet", "web-1")


def test_pods_without_a_controller_go_by_their_labels_to_targets_of_unknown_kinds_only() -> None:
    world = World()
    world.put_pod(pod_view("bare", "web", owner=None, labels={"app": "web"}))
    world.put_vpa(vpa("web"))
    world.put_vpa(vpa("custom", target="web", kind="Rollout"))
    world.tick()
    assert world.targets("web") == {}
    assert set(world.targets("custom")) == {"web"}


def test_a_pod_that_returns_under_its_name_before_the_tick_ends_goes_on_with_its_window() -> None:
    world = World()
    view = pod_view("db-0", "db", owner=("StatefulSet", "db"))
    world.put_pod(view)
    world.read(("db-0", "db", 0.1, 500))
    instance = world.engine.tracker.find("shop", "db-0", "db")
    world.drop_pod("db-0")
    world.put_pod(view)
    world.tick()
    assert world.engine.tracker.find("shop", "db-0", "db") == instance
    world.drop_pod("db-0")
    world.tick()
    assert world.engine.tracker.find("shop", "db-0", "db") is None
    world.put_pod(view)
    found = world.engine.tracker.find("shop", "db-0", "db")
    assert found is not None
    assert world.engine.usage.window_end[found] == NEVER


def test_the_last_sample_and_the_kill_of_a_deleted_pod_still_count() -> None:
    world = World()
    world.put_pod(pod_view("web-1-a", "web"))
    world.put_vpa(vpa())
    world.drop_pod("web-1-a")
    world.read(("web-1-a", "web", 0.5, 400))
    assert world.kill("web-1-a", "web", 500) == {("shop", "web")}
    assert world.engine.usage.sample_count[world.engine.tracker.rows()].tolist() == [1]


def test_a_resized_pod_keeps_its_instances_and_a_new_container_gets_one() -> None:
    world = World()
    world.put_pod(pod_view("web-1-a", "web", memory="1Gi"))
    before = world.engine.tracker.find("shop", "web-1-a", "web")
    world.put_pod(pod_view("web-1-a", "web", memory="2Gi"))
    assert world.engine.tracker.find("shop", "web-1-a", "web") == before
    world.put_pod(pod_view("web-1-a", "debug", "web", memory="2Gi"))
    assert world.engine.tracker.find("shop", "web-1-a", "web") == before
    assert world.engine.tracker.find("shop", "web-1-a", "debug") not in (None, before)


def test_memory_saver_tracks_only_pods_that_a_vpa_sees() -> None:
    world = World("--memory-saver")
    world.put_pod(pod_view("web-1-a", "web"))
    world.put_pod(pod_view("api-1-a", "api", owner=("ReplicaSet", "api-1"), labels={"app": "api"}))
    assert world.engine.tracker.pods == {}
    world.put_vpa(vpa())
    assert set(world.engine.tracker.pods) == {("shop", "web-1-a")}


def test_without_memory_saver_history_is_there_when_the_vpa_comes() -> None:
    world = World()
    world.put_pod(pod_view("web-1-a", "web"))
    world.run(3600, ("web-1-a", "web", 0.5, 400))
    world.put_vpa(vpa())
    world.tick()
    assert world.targets()["web"] == {"cpu": "587m", "memory": "511772986"}


# Samples


def test_samples_of_init_containers_unknown_pods_and_the_future_are_none() -> None:
    world = World()
    world.put_pod(pod_view("web-1-a", "web", init=["setup"]))
    world.read(("web-1-a", "setup", 1.0, 100), ("other", "web", 1.0, 100), ("web-1-a", "web", 0.1, 100))
    dropped = world.metrics.own.dropped_samples
    assert dropped.value(reason="unknown") == 1
    rows = world.engine.tracker.rows()
    assert world.engine.usage.sample_count[rows].tolist() == [1]
    world.time += 3600
    reading_time = world.now
    world.time -= 3600
    ahead = Usage(
        namespaces=["shop"],
        pods=["web-1-a"],
        containers=["web"],
        times=np.array([reading_time]),
        cpu=np.array([100]),
        memory=np.array([MIB]),
    )
    world.engine.feed(ahead, world.now)
    assert dropped.value(reason="ahead") == 1
    world.pass_time(60)
    world.read(("web-1-a", "web", 0.1, 100))
    assert world.engine.usage.sample_count[rows].tolist() == [2], (
        "no sample in the future locks out later ones"
    )


# Deckhouse: a DaemonSet split by a node label


def scoped(label: str) -> World:
    world = World()
    world.nodes.update({"n1": {"pool": "small"}, "n2": {"pool": "large"}, "n3": {}, "n4": {"pool": ""}})
    world.put_vpa(vpa("agent", target="agent", kind="DaemonSet", scope=label))
    for node in world.nodes:
        owner = ("DaemonSet", "agent")
        world.put_pod(pod_view(f"agent-{node}", "agent", owner=owner, node=node, labels={"app": "agent"}))
    cores = {"n1": 0.1, "n2": 2.0, "n3": 0.5, "n4": 0.7}
    world.run(300, *((f"agent-{node}", "agent", used, 300.0) for node, used in cores.items()))
    return world


def test_a_scope_gives_one_recommendation_for_each_value_of_the_label() -> None:
    world = scoped("pool")
    groups = {one.get("scopeValue", ""): one for one in world.status("agent")["groups"]}
    assert set(groups) == {"small", "large", "", ABSENT}
    cpu = {value: one["containerRecommendations"][0]["target"]["cpu"] for value, one in groups.items()}
    assert cpu["small"] == "126m"
    assert cpu["large"] == "2406m"
    assert world.targets("agent") == {}, "with groups, the common recommendation stays empty"
    assert world.conditions("agent")["RecommendationProvided"]["status"] == "True"


def test_until_the_labels_of_nodes_are_known_no_pod_is_put_into_a_wrong_group() -> None:
    world = World()
    world.nodes_known = False
    world.put_vpa(vpa("agent", target="agent", kind="DaemonSet", scope="pool"))
    world.put_pod(pod_view("agent-n1", "agent", owner=("DaemonSet", "agent"), labels={"app": "agent"}))
    assert world.engine.tracker.pods == {}
    world.nodes["n1"] = {"pool": "small"}
    world.nodes_known = True
    world.placement.consider_again()
    assert group_of(world, "agent-n1") == GroupKey("shop", "DaemonSet", "agent", "small")


def test_the_scope_of_host_names_needs_no_labels() -> None:
    world = scoped("kubernetes.io/hostname")
    assert [one["scopeValue"] for one in world.status("agent")["groups"]] == ["n1", "n2", "n3", "n4"]


def test_without_its_scope_the_vpa_sees_all_groups_as_one() -> None:
    world = scoped("pool")
    world.put_vpa(vpa("agent", target="agent", kind="DaemonSet"))
    world.placement.rescope(TargetKey("shop", "DaemonSet", "agent"))
    world.tick()
    assert "groups" not in world.status("agent")
    assert set(world.targets("agent")) == {"agent"}


def test_poison_in_a_pods_resources_is_an_error_of_that_pod() -> None:
    with pytest.raises(Exception, match="lots"):
        record("web", memory="lots")


def test_a_pod_needs_nothing_but_a_name() -> None:
    found = Records().record(PodView())
    assert found.shape.names == ()
    assert found.states == ()
