"""How long history lives, which kills shape it, and what of it survives a restart."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from recommender import knowledge
from recommender.knowledge import Knowledge
from recommender.lifetimes import Known
from recommender.peaks import Peaks
from recommender.schedule import Schedule, spread
from tests.core.recommending import MIB, World, pod_view, vpa
from vpa import checkpoints
from vpa.histograms import NEVER
from vpa.matching import TargetKey
from vpa.quantities import Quantity
from vpa.usage import Usage

HOUR = 3600
DAY = 24 * HOUR
WEB = TargetKey("shop", "Deployment", "web")


def memory(text: str) -> int:
    """Bytes of a target, margin taken off."""
    return int(Quantity.parse(text).value() / 1.15)


def world(*args: str, containers: tuple[str, ...] = ("web",), pods: int = 1) -> World:
    made = World(*args)
    for number in range(pods):
        made.put_pod(pod_view(f"web-1-{number}", *containers, memory="500Mi"))
    made.put_vpa(vpa())
    return made


def save(made: World, container: str = "web") -> tuple[dict[str, Any], str]:
    """Status and annotation of a checkpoint as the service would write it now, as text would carry it."""
    usage, tracker = made.engine.usage, made.engine.tracker
    (group,) = tracker.at(WEB)
    instances = dict(tracker.feeding(group, container))
    row = group.rows[container]
    status = checkpoints.save(usage, row, now=made.now, instances=instances.values())
    peaks = checkpoints.encode_peaks(checkpoints.running_peaks(usage, instances, made.now), status)
    return json.loads(json.dumps(status)), peaks


def load(made: World, status: dict[str, Any], peaks: str | None, container: str = "web") -> bool:
    """Bring a checkpoint in, as the service does."""
    tracker = made.engine.tracker
    group = tracker.group(next(iter(tracker.at(WEB))).key)
    row = tracker.row(group, container, made.now)
    annotations = {checkpoints.PEAKS_ANNOTATION: peaks} if peaks is not None else None
    return knowledge.adopt(
        made.engine.usage,
        row,
        checkpoints.decode(status),
        checkpoints.decode_peaks(annotations, status),
        dict(tracker.feeding(group, container)),
        now=made.now,
    )


def restarted(
    old: World, *args: str, with_peaks: bool = True, containers: tuple[str, ...] = ("web",)
) -> World:
    """Another process that finds the pods of *old* and its checkpoints."""
    made = world(*args, containers=containers)
    made.time = old.time
    for container in containers:
        status, peaks = save(old, container)
        assert load(made, status, peaks if with_peaks else None, container)
    return made


# Which containers count


def test_only_the_present_container_is_recommended_with_the_whole_minimum() -> None:
    """Field case 19: one container, renamed twice."""
    made = World()
    made.put_vpa(vpa())
    for number, name in enumerate("abc"):
        made.put_pod(pod_view(f"web-1-{name}", name))
        if number:
            made.drop_pod(f"web-1-{'abc'[number - 1]}")
        served = made.engine.autoscalers.served["shop", "web"]
        made.resolve(served, made.target(served.vpa, name))
        made.run(600, (f"web-1-{name}", name, 0.001, 10))
    assert made.targets() == {"c": {"cpu": "25m", "memory": "250Mi"}}


def test_during_a_rollout_old_and_new_containers_count() -> None:
    made = World()
    made.put_vpa(vpa())
    made.put_pod(pod_view("web-1-a", "old"))
    made.put_pod(pod_view("web-2-a", "new", owner=("ReplicaSet", "web-2")))
    served = made.engine.autoscalers.served["shop", "web"]
    made.resolve(served, made.target(served.vpa, "new"))
    made.tick()
    assert set(made.targets()) == {"old", "new"}


def test_upstream_recommends_removed_containers_on() -> None:
    made = World("--compatibility=upstream")
    made.put_vpa(vpa())
    made.put_pod(pod_view("web-1-a", "a"))
    made.run(600, ("web-1-a", "a", 0.1, 100))
    made.drop_pod("web-1-a")
    made.put_pod(pod_view("web-1-b", "b"))
    made.run(600, ("web-1-b", "b", 0.1, 100))
    assert set(made.targets()) == {"a", "b"}


def test_a_wildcard_policy_with_memory_alone_recommends_no_cpu() -> None:
    """Field case 34, first half."""
    made = world()
    policy = {"containerPolicies": [{"containerName": "*", "controlledResources": ["memory"]}]}
    made.put_vpa(vpa(resourcePolicy=policy))
    made.run(600, ("web-1-0", "web", 0.5, 400))
    assert set(made.targets()["web"]) == {"memory"}


# Lifetimes


def collect(made: World, *, times_: int = 1) -> None:
    for _ in range(times_):
        made.pass_time(HOUR)
        made.engine.collect(made.now)


def rows(made: World) -> int:
    return len(made.engine.tracker.rows())


def test_history_survives_a_scale_down_to_zero_and_goes_when_its_controller_is_missed_twice() -> None:
    made = world()
    made.run(600, ("web-1-0", "web", 0.5, 400))
    before = made.targets()
    made.controllers[WEB] = Known(gone=False, template=frozenset({"web"}))
    made.drop_pod("web-1-0")
    made.tick()
    collect(made, times_=3)
    assert made.targets() == before
    made.controllers[WEB] = Known(gone=True, template=None)
    collect(made)
    assert rows(made) == 1, "deleted and made anew within the hour is not gone"
    collect(made)
    assert rows(made) == 0
    made.tick()
    assert made.targets() == {}
    assert made.conditions()["NoPodsMatched"]["status"] == "True"


def test_a_controller_that_returns_finds_its_history() -> None:
    made = world()
    made.run(600, ("web-1-0", "web", 0.5, 400))
    made.controllers[WEB] = Known(gone=True, template=None)
    made.drop_pod("web-1-0")
    made.tick()
    collect(made)
    made.controllers[WEB] = Known(gone=False, template=frozenset({"web"}))
    collect(made, times_=3)
    assert rows(made) == 1


def test_a_row_goes_when_neither_pod_nor_template_names_its_container() -> None:
    made = world(containers=("web", "log"))
    made.controllers[WEB] = Known(gone=False, template=frozenset({"web"}))
    served = made.engine.autoscalers.served["shop", "web"]
    made.resolve(served, made.target(served.vpa, "web"))
    collect(made)
    assert rows(made) == 2, "the pod still names it"
    made.put_pod(pod_view("web-1-0", "web"))
    made.tick()
    collect(made)
    assert rows(made) == 1


def test_history_that_saw_nothing_for_eight_days_expires_while_others_live() -> None:
    made = world()
    made.put_pod(pod_view("api-1-0", "api", owner=("ReplicaSet", "api-1"), labels={"app": "api"}))
    made.run(600, ("web-1-0", "web", 0.5, 400), ("api-1-0", "api", 0.5, 400))
    made.drop_pod("web-1-0")
    made.tick()
    made.pass_time(8 * DAY - HOUR - 60)
    made.read(("api-1-0", "api", 0.5, 400))
    collect(made)
    assert rows(made) == 2
    made.read(("api-1-0", "api", 0.5, 400))
    made.pass_time(60)
    made.read(("api-1-0", "api", 0.5, 400))
    collect(made)
    made.read(("api-1-0", "api", 0.5, 400))
    collect(made)
    assert rows(made) == 1


def test_while_no_usage_comes_at_all_nothing_expires() -> None:
    made = world()
    made.run(600, ("web-1-0", "web", 0.5, 400))
    made.pass_time(30 * DAY)
    collect(made)
    made.tick()
    assert made.targets()["web"]["cpu"] == "587m"
    assert made.engine.usage.sample_count[made.engine.tracker.rows()].tolist() == [10]


@pytest.mark.parametrize("phase", ["Running", "Succeeded"])
def test_upstream_drops_empty_history_of_finished_pods_whose_controller_is_gone(phase: str) -> None:
    """Facts 11.8, case 112."""
    made = World("--compatibility=upstream")
    made.put_pod(pod_view("job-1", "job", owner=("Job", "job"), phase=phase, labels={"app": "job"}))
    collect(made)
    assert rows(made) == (1 if phase == "Running" else 0)


def test_upstream_keeps_empty_history_while_the_target_exists() -> None:
    made = World("--compatibility=upstream")
    made.put_pod(pod_view("job-1", "job", owner=("Job", "job"), phase="Succeeded", labels={"app": "job"}))
    made.put_vpa(vpa("job", target="job", kind="Job"))
    made.tick()
    collect(made)
    assert rows(made) == 1
    collect(made, times_=9 * 24)
    assert rows(made) == 1, "expired, and found anew because the pod is still there"


# Targets that cannot be read


def unreadable(made: World, *, temporary: bool = True) -> None:
    served = made.engine.autoscalers.served["shop", "web"]
    target = made.target(served.vpa)
    problem = "Cannot read targetRef. Reason: unhandled targetRef v1 / Rollout / web, last error timeout"
    made.resolve(served, type(target)(target.key, problem=problem, temporary=temporary))
    made.tick()


def test_a_target_that_is_briefly_unreadable_changes_nothing_but_a_condition() -> None:
    """Field case 29."""
    made = world()
    made.run(600, ("web-1-0", "web", 0.5, 400))
    before = made.status()
    unreadable(made)
    during = made.status()
    assert during["recommendation"] == before["recommendation"]
    assert made.conditions().keys() - {"ConfigUnsupported"} == {c["type"] for c in before["conditions"]}
    served = made.engine.autoscalers.served["shop", "web"]
    made.resolve(served, made.target(served.vpa, "web"))
    made.run(600, ("web-1-0", "web", 0.5, 400))
    assert "ConfigUnsupported" not in made.conditions()
    assert made.engine.usage.sample_count[made.engine.tracker.rows()].tolist() == [20]


def test_a_target_that_is_unreadable_at_the_start_keeps_what_is_in_the_status() -> None:
    made = World()
    status = {
        "conditions": [{"type": "RecommendationProvided", "status": "True"}],
        "recommendation": {
            "containerRecommendations": [{"containerName": "web", "target": {"cpu": "1", "memory": "1Gi"}}]
        },
    }
    made.put_vpa(vpa(kind="Rollout", status=status))
    unreadable(made)
    assert made.targets() == {"web": {"cpu": "1", "memory": "1Gi"}}
    assert made.conditions()["RecommendationProvided"]["status"] == "True"
    assert "NoPodsMatched" not in made.conditions()


def test_upstream_wipes_the_recommendation_of_an_unreadable_target() -> None:
    made = world("--compatibility=upstream")
    made.run(600, ("web-1-0", "web", 0.5, 400))
    unreadable(made)
    assert made.targets() == {}
    assert made.conditions()["NoPodsMatched"]["status"] == "True"
    assert made.conditions()["RecommendationProvided"]["status"] == "False"


# Kills for lack of memory


def test_a_kill_right_after_the_start_is_enough_for_a_recommendation() -> None:
    """Field case 23."""
    made = world()
    assert made.kill("web-1-0", "web", 500) == {("shop", "web")}
    made.tick()
    assert memory(made.targets()["web"]["memory"]) >= 600 * MIB


def test_a_kill_seen_just_after_a_sample_opened_a_new_window_is_accepted() -> None:
    """Field case 25."""
    made = world()
    made.read(("web-1-0", "web", 0.1, 400))
    made.pass_time(DAY)
    made.read(("web-1-0", "web", 0.1, 400))
    made.pass_time(2)
    made.kill("web-1-0", "web", 500, ago=36)
    assert made.metrics.own.ooms.value(result="recorded") == 1
    made.tick()
    assert memory(made.targets()["web"]["memory"]) >= 600 * MIB


def test_repeated_kills_at_one_size_do_not_inflate_and_decay_after_quiet_days() -> None:
    """Field case 26: bump ratio 2, kills every few days at the same capped request."""
    made = world("--oom-bump-up-ratio=2")
    policy = {"containerPolicies": [{"containerName": "web", "maxAllowed": {"memory": "700Mi"}}]}
    made.put_vpa(vpa(resourcePolicy=policy))
    seen = set()
    for _ in range(5):
        made.kill("web-1-0", "web", 700)
        made.run(3 * DAY, ("web-1-0", "web", 0.1, 600), step=HOUR)
        made.kill("web-1-0", "web", 700)
        made.tick()
        (entry,) = made.status()["recommendation"]["containerRecommendations"]
        assert entry["target"]["memory"] == "700Mi"
        seen.add(entry["uncappedTarget"]["memory"])
    assert len(seen) == 1, "the same evidence gives the same number each time"
    assert 1400 * MIB <= memory(seen.pop()) < 1540 * MIB
    made.put_vpa(vpa())
    made.run(7 * DAY, ("web-1-0", "web", 0.1, 900), step=HOUR)
    assert memory(made.targets()["web"]["memory"]) < 1000 * MIB


def test_when_every_replica_is_killed_the_target_rises_at_once() -> None:
    made = world(pods=5)
    lines = [(f"web-1-{number}", "web", 0.1, 300.0) for number in range(5)]
    made.run(3 * DAY, *lines, step=HOUR)
    before = memory(made.targets()["web"]["memory"])
    keys = set()
    for number in range(5):
        keys |= made.kill(f"web-1-{number}", "web", 500)
    assert made.tick(sorted(keys)) != {}, "written without waiting for the tick"
    assert memory(made.targets()["web"]["memory"]) >= 600 * MIB > before


def test_settings_of_a_policy_hold_for_kills_and_end_with_it() -> None:
    made = world("--feature-gates=PerVPAConfig=true")
    policy = {"containerName": "*", "oomBumpUpRatio": "3", "oomMinBumpUp": "0"}
    made.put_vpa(vpa(resourcePolicy={"containerPolicies": [policy]}))
    made.tick()
    (row,) = made.engine.tracker.rows().tolist()
    assert (made.engine.usage.bump_ratio[row], made.engine.usage.min_bump[row]) == (3.0, 0.0)
    made.put_vpa(vpa())
    made.tick()
    assert made.engine.usage.bump_ratio[row] == 1.2


def test_upstream_keeps_settings_after_their_policy() -> None:
    made = world("--feature-gates=PerVPAConfig=true", "--compatibility=upstream")
    policy = {"containerName": "*", "oomBumpUpRatio": "3"}
    made.put_vpa(vpa(resourcePolicy={"containerPolicies": [policy]}))
    made.tick()
    made.put_vpa(vpa())
    made.tick()
    (row,) = made.engine.tracker.rows().tolist()
    assert made.engine.usage.bump_ratio[row] == 3.0


def test_of_two_vpas_the_settings_of_the_oldest_hold() -> None:
    made = world("--feature-gates=PerVPAConfig=true")
    for name, ratio, day in (("old", "2", "01"), ("new", "3", "02")):
        policy = {"containerName": "*", "oomBumpUpRatio": ratio}
        created = f"2026-06-{day}T00:00:00Z"
        made.put_vpa(vpa(name, created=created, resourcePolicy={"containerPolicies": [policy]}))
    made.put_vpa(vpa("web", created="2026-07-30T00:00:00Z"))
    made.tick()
    (row,) = made.engine.tracker.rows().tolist()
    assert made.engine.usage.bump_ratio[row] == 2.0


# Restarts


def test_a_restart_keeps_numbers_and_counts() -> None:
    """Field case 28, without a cluster."""
    old = world()
    old.run(DAY + HOUR, ("web-1-0", "web", 0.5, 400))
    new = restarted(old)
    new.tick()
    assert new.targets() == old.targets()
    count = [made.engine.usage.sample_count[made.engine.tracker.rows()].tolist() for made in (old, new)]
    assert count[0] == count[1]


@pytest.mark.parametrize("with_peaks", [True, False])
def test_a_restart_each_day_loses_the_days_peak_only_without_the_annotation(with_peaks: bool) -> None:
    """Field case 33: the window and the restarts have the same period."""
    made = world()
    for _ in range(4):
        made.run(DAY - HOUR, ("web-1-0", "web", 0.1, 300), step=HOUR)
        made.read(("web-1-0", "web", 0.1, 800))
        made.pass_time(60)
        made = restarted(made, with_peaks=with_peaks)
        made.run(HOUR, ("web-1-0", "web", 0.1, 300), step=HOUR)
    found = memory(made.targets()["web"]["memory"])
    assert (found >= 800 * MIB) == with_peaks


def test_a_pod_that_lives_on_goes_on_with_its_window_after_a_restart() -> None:
    old = world()
    old.read(("web-1-0", "web", 0.1, 500))
    new = restarted(old)
    new.pass_time(60)
    new.read(("web-1-0", "web", 0.1, 900))
    usage, row = new.engine.usage, int(new.engine.tracker.rows()[0])
    heaviest = usage.memory.save(row).weights
    assert len(heaviest) == 1, "the larger peak took the place of the smaller one"


def test_a_memory_peak_without_any_cpu_sample_survives_a_restart() -> None:
    """Field case 21: a CronJob that is killed each time, before anything is measured."""
    old = world()
    old.kill("web-1-0", "web", 32)
    old.tick()
    new = restarted(old)
    new.tick()
    assert new.targets() == old.targets()
    assert new.engine.usage.sample_count[new.engine.tracker.rows()].tolist() == [0]


def test_what_a_checkpoint_tells_of_an_earlier_time_is_added() -> None:
    old = world()
    old.run(DAY, ("web-1-0", "web", 0.5, 400), step=600)
    status, _ = save(old)
    late = world()
    late.time = old.time + HOUR
    late.run(HOUR, ("web-1-0", "web", 0.5, 400), step=600)
    assert load(late, status, None)
    count = late.engine.usage.sample_count[late.engine.tracker.rows()].tolist()
    assert count == [144 + 6]


def test_two_tellings_of_the_same_time_do_not_add_up() -> None:
    made = world()
    made.run(DAY, ("web-1-0", "web", 0.5, 400), step=600)
    status, _ = save(made)
    assert not load(made, status, None), "what is known already is no news"
    fresh = world()
    fresh.time = made.time - HOUR
    fresh.run(HOUR, ("web-1-0", "web", 0.5, 700), step=600)
    assert load(fresh, status, None)
    row = int(fresh.engine.tracker.rows()[0])
    assert fresh.engine.usage.sample_count[row] == 144
    fresh.pass_time(60)
    fresh.read(("web-1-0", "web", 0.5, 900))
    weights = fresh.engine.usage.memory.weights(row)
    assert weights.min() >= 0, "the running peak was there to be replaced"
    assert weights.sum() == pytest.approx(fresh.engine.usage.memory.total[row])


def test_a_broken_checkpoint_leaves_the_row_as_it_was() -> None:
    made = world()
    made.run(HOUR, ("web-1-0", "web", 0.5, 400), step=600)
    status, _ = save(made)
    before = made.engine.usage.cpu.weights(int(made.engine.tracker.rows()[0]))
    status["cpuHistogram"]["bucketWeights"] = {"500": 1}
    with pytest.raises(checkpoints.CheckpointError, match="exceeding histogram buckets"):
        load(made, status, None)
    np.testing.assert_array_equal(before, made.engine.usage.cpu.weights(int(made.engine.tracker.rows()[0])))


def test_knowledge_is_less_with_fewer_samples_or_an_empty_half() -> None:
    much = Knowledge(10, 5, True, True)
    assert Knowledge(9, 9, True, True).is_less_than(much)
    assert not Knowledge(11, 9, False, False).is_less_than(much)
    assert Knowledge(10, 9, True, False).is_less_than(much)
    assert not much.is_less_than(much)
    assert knowledge.of_row(Usage(capacity=4), 0) == knowledge.NOTHING == Knowledge(0, NEVER, False, False)


# When checkpoints are written


def test_due_times_are_spread_over_the_period() -> None:
    schedule = Schedule(600)
    keys = [("shop", f"vpa-{number}", "web") for number in range(2000)]
    for key in keys:
        schedule.add(key, 0.0)
    a_minute = [sum(60 * m <= spread(key) * 600 < 60 * (m + 1) for key in keys) for m in range(10)]
    assert min(a_minute) > 150
    assert max(a_minute) < 250


def test_the_longest_due_comes_first_and_each_within_the_period() -> None:
    schedule = Schedule(600)
    keys = [("shop", f"vpa-{number}", "web") for number in range(50)]
    for key in keys:
        schedule.add(key, 0.0)
    written: dict[tuple[str, str, str], list[float]] = {key: [] for key in keys}
    for second in range(3000):
        while (due := schedule.take(float(second))) is not None:
            written[due].append(float(second))
            schedule.done(due, float(second))
    for times_written in written.values():
        gaps = np.diff([0.0, *times_written])
        assert gaps.max() <= 601
    assert schedule.next_due() is not None


def test_what_is_urgent_goes_to_the_front_and_what_is_dropped_never_comes() -> None:
    schedule = Schedule(600)
    for name in "abc":
        schedule.add(("shop", name, "web"), 0.0)
    schedule.drop(("shop", "b", "web"))
    schedule.hurry(("shop", "c", "web"), 1.0)
    schedule.hurry(("shop", "b", "web"), 1.0)
    assert schedule.take(1.0) == ("shop", "c", "web")
    assert schedule.take(1.0) is None
    assert schedule.in_order() == sorted(schedule.in_order(), key=lambda key: key != ("shop", "c", "web"))


def test_a_peak_in_a_higher_bucket_than_before_is_news_and_a_first_one_is_not() -> None:
    peaks = Peaks()
    key = ("shop", "web", "web")
    high = np.zeros(4, dtype=np.int16)
    peaks.link([(2, key)], 4)
    assert peaks.risen(high) == set()
    high[2] = 5
    assert peaks.risen(high) == set(), "until now nothing was known at all"
    high[2] = 7
    assert peaks.risen(high) == {key}
    high[2] = 6
    assert peaks.risen(high) == set()
    peaks.link([(2, key), (3, ("shop", "web", "log"))], 8)
    high = np.array([0, 0, 7, 3, 0, 0, 0, 0], dtype=np.int16)
    assert peaks.risen(high) == set()
