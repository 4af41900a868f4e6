"""History from Prometheus joins checkpoints and present usage, and no sample counts twice."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from recommender.autoscalers import HistoryState, Served
from recommender.history import PATIENCE, HistoryReader
from recommender.merging import Join, settle
from tests.core.recommending import MIB, NOON, SECOND, World, pod_view, vpa
from vpa.histograms import NEVER
from vpa.metrics.history.attribution import CLUSTER, OWNER
from vpa.metrics.history.batches import COMPLETE, NEWEST, Container, HistoryBatch
from vpa.metrics.history.grids import Grid
from vpa.metrics.history.planning import Target
from vpa.metrics.history.tables import Counts, Points
from vpa.metrics.prometheus.access import Access
from vpa.metrics.prometheus.client import Client

HOUR = 3600
DAY = 86_400


def world(*args: str) -> tuple[World, Served]:
    """A pod with one container, and its VPA that waits for history."""
    made = World(*args)
    made.put_pod(pod_view("web-1-0", "web", memory="500Mi"))
    served = made.put_vpa(vpa())
    assert served is not None
    served.history = HistoryState.FIRST
    made.engine.refresh()
    return made, served


def batch(
    *pods: str, first: int, last: int = NOON, step: int = HOUR, cores: float = 1.0, memory: float = 400
) -> HistoryBatch:
    """The same usage in each step from *first* to *last* (seconds) in all *pods*; complete."""
    times = np.arange(first, last + 1, step, dtype=np.int64) * SECOND
    count = len(times)
    index = np.repeat(np.arange(len(pods)), count)

    def points(value: float) -> Points:
        ends = np.arange(1, len(pods) + 1) * count
        values = np.full(len(index), round(value), dtype=np.int64)
        return Points(index=index, times=np.tile(times, len(pods)), values=values, ends=ends)

    return HistoryBatch(
        stage=COMPLETE,
        targets=(Target(namespace="shop", kind="Deployment", name="web"),),
        containers=tuple(
            Container("shop", pod, "web", "Deployment", "web", CLUSTER if pod == "web-1-0" else OWNER)
            for pod in pods
        ),
        cpu=points(cores * 1000),
        memory=points(memory * MIB),
        grid=Grid(first, last, step),
        weight=0.1 * step / 60,
        count=step // 60,
        counts=Counts(),
        unknown_pods=0,
    )


def join(made: World, some: HistoryBatch, stage: str = COMPLETE) -> None:
    joining = Join(made.engine.tracker, made.engine.autoscalers, some, now=made.now)
    for _ in joining.feed():
        pass
    if stage == COMPLETE:
        joining.complete()
    else:
        joining.impress()
    joining.close()
    made.engine.refresh()


def checkpoint(made: World, served: Served, *, first: int, last: int, cores: float = 0.2) -> None:
    """What a checkpoint says, as it is kept while history is to come: a sample each minute."""
    usage = made.engine.usage
    row = int(usage.new_rows(1, made.now)[0])
    instance = usage.new_instances(np.array([row]))
    times = np.arange(first, last + 1, 60, dtype=np.int64) * SECOND
    amounts = np.full(len(times), round(cores * 1000), dtype=np.int64)
    usage.add_cpu(np.repeat(instance, len(times)), times, amounts)
    usage.free_instances(instance)
    served.initial["web"] = row


def row(made: World) -> int:
    (group,) = made.engine.tracker.groups.values()
    return group.rows["web"]


def count(made: World) -> int:
    return int(made.engine.usage.sample_count[row(made)])


def test_eight_days_of_hours_count_as_many_samples_as_minutes_lie_in_them() -> None:
    made, served = world()
    join(made, batch("web-1-0", first=NOON - 8 * DAY + HOUR))
    assert count(made) == 192 * 60
    assert served.history is HistoryState.SETTLED
    made.tick()
    assert made.targets()["web"]["cpu"] == "1168m"
    assert "LowConfidence" not in made.conditions()


def test_history_that_reaches_further_back_replaces_the_checkpoint() -> None:
    made, served = world()
    checkpoint(made, served, first=NOON - DAY, last=NOON)
    join(made, batch("web-1-0", first=NOON - 2 * DAY + HOUR))
    assert count(made) == 48 * 60
    assert not served.initial


def test_a_checkpoint_that_reaches_further_back_gets_only_what_is_newer() -> None:
    made, served = world()
    checkpoint(made, served, first=NOON - 9 * DAY, last=NOON - 3 * HOUR)
    before = int(made.engine.usage.sample_count[served.initial["web"]])
    join(made, batch("web-1-0", first=NOON - 8 * DAY))
    assert count(made) == before + 3 * 60
    assert not served.initial


def test_of_an_hour_that_the_checkpoint_knows_in_part_only_the_rest_counts() -> None:
    made, served = world()
    checkpoint(made, served, first=NOON - 9 * DAY, last=NOON - 15 * 60)
    before = int(made.engine.usage.sample_count[served.initial["web"]])
    join(made, batch("web-1-0", first=NOON - 8 * DAY))
    assert count(made) == before + 15


def test_what_the_process_saw_itself_is_not_read_again() -> None:
    made, _ = world()
    made.pass_time(-2 * HOUR + 60)
    for _ in range(120):
        made.read(("web-1-0", "web", 0.5, 300))
        made.pass_time(60)
    assert count(made) == 120
    join(made, batch("web-1-0", first=NOON - 8 * DAY + HOUR))
    assert count(made) == 120 + 190 * 60


def test_the_newest_days_are_seen_beside_the_row_until_all_is_there() -> None:
    made, served = world()
    join(made, batch("web-1-0", first=NOON - DAY), NEWEST)
    assert count(made) == 0
    made.tick()
    assert made.targets()["web"]["cpu"] == "1168m"
    join(made, batch("web-1-0", first=NOON - 8 * DAY + HOUR))
    assert count(made) == 192 * 60
    assert not served.initial


def test_a_pod_that_lives_goes_on_with_the_window_that_history_left_open() -> None:
    made, _ = world()
    some = batch("web-1-0", first=NOON - 2 * DAY - 2 * HOUR)
    join(made, some)
    usage, instance = made.engine.usage, made.engine.tracker.find("shop", "web-1-0", "web")
    assert instance is not None
    total = float(usage.memory.weights(row(made)).sum())
    made.pass_time(60)
    made.read(("web-1-0", "web", 1.0, 900))
    assert float(usage.memory.weights(row(made)).sum()) == pytest.approx(total)
    assert usage.memory_peak[instance] == 900 * MIB


def test_a_window_that_began_before_history_came_becomes_one_with_it() -> None:
    made, _ = world()
    made.read(("web-1-0", "web", 1.0, 900))
    join(made, batch("web-1-0", first=NOON - HOUR * 5, last=NOON - HOUR))
    assert np.count_nonzero(made.engine.usage.memory.weights(row(made))) == 1


def test_pods_of_the_past_count_and_containers_that_nobody_names_do_not() -> None:
    made, _ = world()
    some: Any = batch("web-1-0", "web-0-9", first=NOON - DAY + HOUR)
    join(made, some)
    assert count(made) == 2 * 24 * 60
    strangers = tuple(Container("shop", "web-0-9", "gone", "Deployment", "web", OWNER) for _ in range(1))
    made, served = world()
    made.resolve(served, made.target(served.vpa, "web"))
    alone = batch("web-0-9", first=NOON - DAY)
    object.__setattr__(alone, "containers", strangers)
    join(made, alone)
    assert "gone" not in {name for group in made.engine.tracker.groups.values() for name in group.rows}


def test_without_history_the_checkpoint_joins_the_row() -> None:
    made, served = world()
    checkpoint(made, served, first=NOON - 2 * DAY, last=NOON - 60)
    stored = int(made.engine.usage.sample_count[served.initial["web"]])
    made.read(("web-1-0", "web", 0.2, 300))
    settle(made.engine.tracker, made.engine.autoscalers, served, now=made.now)
    assert count(made) == stored + 1
    assert not served.initial


def test_while_history_is_to_come_thin_data_change_no_status_and_a_checkpoint_serves() -> None:
    made, served = world()
    made.read(("web-1-0", "web", 0.2, 300))
    made.tick()
    assert not made.targets()
    assert made.conditions()["FetchingHistory"]["status"] == "True"
    checkpoint(made, served, first=NOON - 3 * DAY, last=NOON - 60)
    made.engine.autoscalers.dirty.add(served.key)
    made.engine.refresh()
    made.tick()
    assert made.targets()["web"]["cpu"].endswith("m")
    assert made.conditions()["FetchingHistory"]["status"] == "True"
    served.history = HistoryState.LATE
    made.engine.autoscalers.dirty.add(served.key)
    made.engine.refresh()
    made.tick()
    assert "FetchingHistory" not in made.conditions()


def test_upstreams_rules_keep_history_in_a_row_of_the_vpa() -> None:
    made, served = world("--compatibility=upstream")
    join(made, batch("web-1-0", first=NOON - DAY + HOUR))
    usage = made.engine.usage
    assert usage.sample_count[served.initial["web"]] == 24 * 60
    assert usage.first_sample[served.initial["web"]] != NEVER


@pytest.mark.parametrize("has_recommendation", [False, True])
def test_nobody_waits_for_ever_for_a_prometheus_that_never_answers(has_recommendation: bool) -> None:
    """Without a recommendation thin data serve after half a minute; with one it stays until the bound."""
    made, _ = world()
    told: list[str] = []

    async def wait() -> list[HistoryState]:
        reader = HistoryReader(
            made.settings,
            Client(Access(addresses=("http://127.0.0.1:9",))),
            made.engine,
            SimpleNamespace(workloads={}),  # type: ignore[arg-type]
            emit=lambda vpa, reason, message, kind: told.append(reason),
            now=lambda: made.now,
            clock=lambda: made.time,
        )
        status: dict[str, Any] | None = (
            {"recommendation": {"containerRecommendations": []}} if has_recommendation else None
        )
        served = made.put_vpa(vpa(status=status))
        assert served is not None
        reader.expect(served)
        found = []
        for seconds in (0.0, 31.0, PATIENCE, 60.0):
            made.pass_time(seconds)
            reader.start()
            found.append(served.history)
        reading = [task for task in asyncio.all_tasks() if task.get_name() == "history"]
        assert len(reading) == 1  # it is still asked for
        reading[0].cancel()
        await asyncio.gather(*reading, return_exceptions=True)
        return found

    first, late = HistoryState.FIRST, HistoryState.LATE
    held = first if has_recommendation else HistoryState.READING
    assert asyncio.run(wait()) == [first, held, late, late]
    assert told == ["HistoryUnavailable"]
