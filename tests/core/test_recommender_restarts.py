"""What survives a restart, how two tellings of one past are joined, and when checkpoints are written."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from recommender.peaks import Peaks
from recommender.schedule import Schedule, spread
from tests.core.recommending import MIB, World, of_memory, web_shop
from vpa import checkpoints, knowledge
from vpa.histograms import NEVER
from vpa.knowledge import Knowledge
from vpa.matching import TargetKey
from vpa.usage import Usage

HOUR = 3600
DAY = 24 * HOUR
WEB = TargetKey("shop", "Deployment", "web")


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
    made = web_shop(*args, containers=containers)
    made.time = old.time
    for container in containers:
        status, peaks = save(old, container)
        assert load(made, status, peaks if with_peaks else None, container)
    return made


# Restarts


def test_a_restart_keeps_numbers_and_counts() -> None:
    """Field case 28, without a cluster."""
    old = web_shop()
    old.run(DAY + HOUR, ("web-1-0", "web", 0.5, 400))
    new = restarted(old)
    new.tick()
    assert new.targets() == old.targets()
    count = [made.engine.usage.sample_count[made.engine.tracker.rows()].tolist() for made in (old, new)]
    assert count[0] == count[1]


@pytest.mark.parametrize("with_peaks", [True, False])
def test_a_restart_each_day_loses_the_days_peak_only_without_the_annotation(with_peaks: bool) -> None:
    """Field case 33: the window and the restarts have the same period."""
    made = web_shop()
    for _ in range(4):
        made.run(DAY - HOUR, ("web-1-0", "web", 0.1, 300), step=HOUR)
        made.read(("web-1-0", "web", 0.1, 800))
        made.pass_time(60)
        made = restarted(made, with_peaks=with_peaks)
        made.run(HOUR, ("web-1-0", "web", 0.1, 300), step=HOUR)
    found = of_memory(made.targets()["web"]["memory"])
    assert (found >= 800 * MIB) == with_peaks


def test_a_pod_that_lives_on_goes_on_with_its_window_after_a_restart() -> None:
    old = web_shop()
    old.read(("web-1-0", "web", 0.1, 500))
    new = restarted(old)
    new.pass_time(60)
    new.read(("web-1-0", "web", 0.1, 900))
    usage, row = new.engine.usage, int(new.engine.tracker.rows()[0])
    heaviest = usage.memory.save(row).weights
    assert len(heaviest) == 1, "the larger peak took the place of the smaller one"


def test_a_memory_peak_without_any_cpu_sample_survives_a_restart() -> None:
    """Field case 21: a CronJob that is killed each time, before anything is measured."""
    old = web_shop()
    old.kill("web-1-0", "web", 32)
    old.tick()
    new = restarted(old)
    new.tick()
    assert new.targets() == old.targets()
    assert new.engine.usage.sample_count[new.engine.tracker.rows()].tolist() == [0]


def test_what_a_checkpoint_tells_of_an_earlier_time_is_added() -> None:
    old = web_shop()
    old.run(DAY, ("web-1-0", "web", 0.5, 400), step=600)
    status, _ = save(old)
    late = web_shop()
    late.time = old.time + HOUR
    late.run(HOUR, ("web-1-0", "web", 0.5, 400), step=600)
    assert load(late, status, None)
    count = late.engine.usage.sample_count[late.engine.tracker.rows()].tolist()
    assert count == [144 + 6]


def test_two_tellings_of_the_same_time_do_not_add_up() -> None:
    made = web_shop()
    made.run(DAY, ("web-1-0", "web", 0.5, 400), step=600)
    status, _ = save(made)
    assert not load(made, status, None), "what is known already is no news"
    fresh = web_shop()
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
    made = web_shop()
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
