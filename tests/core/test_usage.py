"""Samples, windows and OOMs against upstream's facts, and batches against one sample at a time."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.core import vectors
from vpa.histograms import NEVER
from vpa.objects import meta
from vpa.objects.autoscalers import ContainerPolicy
from vpa.settings import Aggregation
from vpa.usage import OOMOutcome, Usage

MS = 10**6
PERCENTILES = np.array([0, 0.1, 0.5, 0.9, 0.95, 1])
OOM_RESULTS = {
    OOMOutcome.RECORDED: "ok",
    OOMOutcome.TOO_OLD: "oom_too_old",
    OOMOutcome.FAILED: "oom_failed",
}


class Scene:
    """One case's containers as instances of the shared state."""

    def __init__(self, usage: Usage, case: vectors.Case) -> None:
        self.case = case
        self.rows: dict[tuple[str, str], int] = {}
        self.instances: list[int | None] = []
        for container in case["in"]["containers"]:
            if container["label_group"] == "absent":
                self.instances.append(None)
                continue
            key = (container["name"], container["label_group"])
            if key not in self.rows:
                self.rows[key] = int(usage.new_rows(1, 0)[0])
            self.instances.append(int(usage.new_instances(np.array([self.rows[key]]))[0]))

    def time(self, relative_ms: int) -> int:
        return int(self.case["in"]["base_ms"] + relative_ms) * MS


def feed_round(usage: Usage, scenes: list[Scene], step: int, results: dict[str, list[str]]) -> None:
    """Event *step* of all cases: CPU and memory as one batch each, as a poll would bring them."""
    batches: dict[str, list[tuple[Scene, int, int, int]]] = {"cpu": [], "mem": []}
    for scene in scenes:
        events = scene.case["in"]["events"] or []
        if step >= len(events):
            continue
        kind, index, relative, amount = events[step]
        instance = scene.instances[index]
        if instance is None:
            results[scene.case["id"]].append("unknown_container")
        elif kind == "oom":
            outcome = usage.record_oom(instance, scene.time(relative), amount)
            results[scene.case["id"]].append(OOM_RESULTS[outcome])
        else:
            batches[kind].append((scene, instance, scene.time(relative), amount))
    for kind, batch in batches.items():
        if batch:
            add = usage.add_cpu if kind == "cpu" else usage.add_memory
            accepted = add(*(np.array([b[i] for b in batch], dtype=np.int64) for i in (1, 2, 3)))
            for (scene, *_), ok in zip(batch, accepted, strict=True):
                results[scene.case["id"]].append("ok" if ok else "discarded")


def relative_ms(time: Any, base_ms: int) -> int | None:
    return None if time == NEVER else int(time) // MS - base_ms


def histogram(bank: Any, row: int) -> dict[str, Any]:
    weights = bank.weights(row)
    return {
        "empty": bool(bank.is_empty(np.array([row]))[0]),
        "percentiles": bank.percentiles(np.array([row]), PERCENTILES)[:, 0].tolist(),
        "total_weight": float(bank.total[row]),
        "weights": [[int(b), float(weights[b])] for b in np.flatnonzero(weights)],
        "reference_ms": None if bank.reference[row] == NEVER else int(bank.reference[row]) // MS,
    }


def state(usage: Usage, scene: Scene) -> dict[str, Any]:
    base = scene.case["in"]["base_ms"]
    aggregates = {}
    for name in sorted({name for name, _ in scene.rows}):
        view = int(usage.new_rows(1, 0)[0])
        for (owner, _), row in scene.rows.items():
            if owner == name:
                usage.merge(view, row)
        aggregates[name] = {
            "total_samples_count": int(usage.sample_count[view]),
            "first_sample": relative_ms(usage.first_sample[view], base),
            "last_sample": relative_ms(usage.last_sample[view], base),
            "cpu": histogram(usage.cpu, view),
            "memory": histogram(usage.memory, view),
        }
    containers = [
        None
        if i is None
        else {
            "max_memory_peak": int(max(usage.memory_peak[i], usage.oom_peak[i])),
            "window_end": relative_ms(usage.window_end[i], base),
            "last_cpu_sample": relative_ms(usage.cpu_time[i], base),
        }
        for i in scene.instances
    ]
    return {"aggregates": aggregates, "containers": containers}


def test_vector_aggregate_container_state() -> None:
    cases = vectors.load("aggregate_container_state")
    usage = Usage(capacity=8)
    scenes = [Scene(usage, case) for case in cases]
    results: dict[str, list[str]] = {case["id"]: [] for case in cases}
    for step in range(max(len(case["in"]["events"] or []) for case in cases)):
        feed_round(usage, scenes, step, results)
    by_id = {scene.case["id"]: scene for scene in scenes}

    def outcome(case: vectors.Case) -> Any:
        return {**state(usage, by_id[case["id"]]), "results": results[case["id"]]}

    vectors.check("aggregate_container_state", cases, outcome)


# Properties: a batch is the same as one sample after another.

DAY = 86400 * 10**9
START = 1_785_542_400 * 10**9
INSTANCES = 4
samples = st.lists(
    st.tuples(
        st.integers(0, INSTANCES - 1),
        st.integers(0, 200).map(lambda step: START + step * DAY // 20),
        st.integers(-5, 3_000_000_000),
    ),
    max_size=40,
)


def scene_of(rows: int) -> Usage:
    usage = Usage(capacity=8)
    usage.new_instances(usage.new_rows(rows, 0)[np.arange(INSTANCES) % rows])
    return usage


def everything(usage: Usage, rows: int) -> list[object]:
    banks = [
        (bank.weights(row).tolist(), bank.total[row], bank.low[row], bank.high[row], bank.reference[row])
        for bank in (usage.cpu, usage.memory)
        for row in range(rows)
    ]
    columns = (
        usage.first_sample[:rows],
        usage.last_sample[:rows],
        usage.sample_count[:rows],
        usage.cpu_time[:INSTANCES],
        usage.memory_time[:INSTANCES],
        usage.window_end[:INSTANCES],
        usage.memory_peak[:INSTANCES],
        usage.oom_peak[:INSTANCES],
    )
    return [*banks, *(column.tolist() for column in columns)]


@settings(max_examples=150, deadline=None)
@given(st.lists(samples, max_size=4), st.sampled_from([1, 2, INSTANCES]), st.booleans())
def test_a_batch_leaves_the_same_as_its_samples_one_by_one(
    batches: list[list[tuple[int, int, int]]], rows: int, memory: bool
) -> None:
    whole, single = scene_of(rows), scene_of(rows)
    for batch in batches:
        columns = [np.array(column, dtype=np.int64) for column in zip(*batch, strict=True)] or [
            np.zeros(0, dtype=np.int64)
        ] * 3
        add = whole.add_memory if memory else whole.add_cpu
        accepted = add(*columns).tolist()
        add = single.add_memory if memory else single.add_cpu
        assert accepted == [bool(add(*(np.array([value]) for value in sample))[0]) for sample in batch]
        assert everything(whole, rows) == everything(single, rows)


def test_peaks_that_grow_with_every_sample_leave_the_same_in_one_batch() -> None:
    instances = np.repeat([0, 1, 2, 3], [400, 200, 200, 3])
    times = START + np.concatenate([np.arange(n) for n in np.bincount(instances)]) * 1800 * 10**9
    order = np.argsort(times, kind="stable")
    batch = instances[order], times[order], 10**8 + (times[order] - START) // 10**6
    whole, single = scene_of(INSTANCES), scene_of(INSTANCES)
    assert whole.add_memory(*batch).all()
    for sample in zip(*batch, strict=True):
        single.add_memory(*(np.array([value]) for value in sample))
    assert everything(whole, INSTANCES) == everything(single, INSTANCES)


def one_container(**settings: Any) -> tuple[Usage, int, int]:
    usage = Usage(Aggregation(**settings), capacity=4)
    row = int(usage.new_rows(1, 0)[0])
    return usage, row, int(usage.new_instances(np.array([row]))[0])


def memory_percentile(usage: Usage, row: int, percentile: float = 1.0) -> float:
    return float(usage.memory.percentiles(np.array([row]), np.array([percentile]))[0, 0])


def test_an_oom_seen_just_after_a_sample_opened_a_new_window_is_accepted() -> None:
    usage, _, instance = one_container()
    killed = START + DAY + 8 * 3600 * 10**9
    for time in (START, killed + 36 * 10**9):  # the second one opens a new window
        usage.add_memory(np.array([instance]), np.array([time]), np.array([10**8]))
    assert usage.record_oom(instance, killed, 2 * 10**8) is OOMOutcome.RECORDED
    assert usage.oom_peak[instance] == 2 * 10**8 + 104857600
    assert usage.record_oom(instance, killed - 2 * DAY, 10**9) is OOMOutcome.TOO_OLD


def test_a_container_that_only_ever_was_oom_killed_has_a_memory_history() -> None:
    usage, row, instance = one_container()
    usage.record_oom(instance, START, 300 * 2**20)
    assert not bool(usage.memory.is_empty(np.array([row]))[0])
    assert memory_percentile(usage, row) >= 400 * 2**20
    assert bool(usage.cpu.is_empty(np.array([row]))[0])


def test_the_same_oom_again_and_again_does_not_inflate_the_evidence_and_decays_after_a_clean_time() -> None:
    usage, row, instance = one_container(oom_bump_up_ratio=2.0)
    for day in range(0, 30, 3):
        usage.record_oom(instance, START + day * DAY, 500 * 2**20)  # killed at the same capped request
    bumped = memory_percentile(usage, row)
    assert 1000 * 2**20 <= bumped <= 1.06 * 1000 * 2**20
    for day in range(31, 60):
        usage.add_memory(np.array([instance]), np.array([START + day * DAY]), np.array([600 * 2**20]))
    assert memory_percentile(usage, row, 0.95) <= 1.06 * 600 * 2**20


def test_settings_of_a_policy_hold_for_its_rows_until_they_are_reset() -> None:
    usage, row, instance = one_container()
    policy = meta.convert(
        {"containerName": "*", "oomBumpUpRatio": "3", "memoryAggregationIntervalSeconds": 60}, ContainerPolicy
    )
    usage.configure(np.array([row]), policy)
    usage.record_oom(instance, START, 10**9)
    assert usage.oom_peak[instance] == 3 * 10**9
    assert usage.window_end[instance] == START + 60 * 10**9
    usage.reset_settings(np.array([row]))
    assert usage.bump_ratio[row] == 1.2


def test_settings_without_sense_change_nothing() -> None:
    usage, row, instance = one_container()
    policy = {"memoryAggregationIntervalSeconds": 0, "memoryAggregationIntervalCount": -5}
    usage.configure(np.array([row]), meta.convert(policy, ContainerPolicy))
    usage.add_memory(np.array([instance]), np.array([START]), np.array([10**9]))
    assert usage.window_end[instance] == START + DAY
    assert usage.interval_count[row] == 8


def test_a_history_longer_than_any_number_of_years_does_not_end() -> None:
    usage, row, _ = one_container()
    policy = {"memoryAggregationIntervalSeconds": 2**31 - 1, "memoryAggregationIntervalCount": 2**63 - 1}
    usage.configure(np.array([row]), meta.convert(policy, ContainerPolicy))
    usage.created[row] = START
    assert not usage.is_expired(np.array([row]), START + 1000 * DAY)[0]


def test_freed_rows_are_empty_when_they_are_used_again() -> None:
    usage, row, instance = one_container()
    usage.add_cpu(np.array([instance]), np.array([START]), np.array([500]))
    usage.free_instances(np.array([instance]))
    usage.free_rows(np.array([row]))
    assert usage.new_rows(1, START).tolist() == [row]
    assert bool(usage.cpu.is_empty(np.array([row]))[0])
    assert usage.sample_count[row] == 0
    assert usage.first_sample[row] == NEVER


def test_history_expires_a_whole_history_length_after_its_newest_sample() -> None:
    usage, row, instance = one_container()
    usage.created[row] = START
    rows = np.array([row])
    assert not usage.is_expired(rows, START + 8 * DAY - 1)[0]
    assert usage.is_expired(rows, START + 8 * DAY)[0]
    usage.add_cpu(np.array([instance]), np.array([START + DAY]), np.array([5]))
    assert not usage.is_expired(rows, START + 9 * DAY - 1)[0]
    assert usage.is_expired(rows, START + 9 * DAY)[0]
