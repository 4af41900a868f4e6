"""The bank against upstream's facts, and against a plain slow histogram over random histories."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.core import vectors
from tests.core.plain import PlainHistogram
from vpa import buckets
from vpa.histograms import NEVER, HistogramBank, LoadError, Saved

Op = list[Any]
PERCENTILES = np.array([0, 0.01, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 1, 1.5, -0.5])
DAY = 86400 * 10**9
START = 1_785_542_400 * 10**9


def number(value: Any) -> float:
    return float(value)


class Fleet:
    """All histograms of all cases as rows of shared banks, one bank per layout and half-life."""

    def __init__(self) -> None:
        self.banks: dict[tuple[str, int], HistogramBank] = {}
        self.used: dict[tuple[str, int], int] = {}

    def open(self, scheme: str, half_life_s: int) -> tuple[HistogramBank, int]:
        key = (scheme, half_life_s)
        if key not in self.banks:
            layout = buckets.cpu() if scheme == "cpu" else buckets.memory()
            self.banks[key] = HistogramBank(layout, half_life=half_life_s * 10**9, capacity=4)
            self.used[key] = 0
        bank, row = self.banks[key], self.used[key]
        self.used[key] += 1
        bank.grow(max(bank.capacity, 1 << row.bit_length()))
        return bank, row


def run_rounds(cases: list[vectors.Case], fleet: Fleet) -> dict[str, list[Any]]:
    """Operation *k* of every case goes through the bank before operation *k + 1* of any."""
    hists = {c["id"]: [fleet.open(h["scheme"], h["half_life_s"]) for h in c["in"]["hists"]] for c in cases}
    results: dict[str, list[Any]] = {c["id"]: [] for c in cases}
    for step in range(max(len(c["in"]["ops"]) for c in cases)):
        adds: dict[int, tuple[HistogramBank, list[tuple[int, float, float, int]]]] = {}
        for case in cases:
            if len(case["in"]["ops"]) <= step or len(results[case["id"]]) < step:
                continue
            if "stopped" in case["out"] and step >= len(case["out"]["results"]) - 1:
                if step == len(case["out"]["results"]) - 1:
                    survive(case["in"]["ops"][step], hists[case["id"]])
                continue
            op = case["in"]["ops"][step]
            bank, row = hists[case["id"]][op[1]]
            if op[0] == "add":
                batch = adds.setdefault(id(bank), (bank, []))[1]
                batch.append((row, number(op[2]), number(op[3]), op[4]))
                results[case["id"]].append(None)
            else:
                results[case["id"]].append(one(op, bank, row, hists[case["id"]]))
        for bank, batch in adds.values():
            rows, values, weights, times = zip(*batch, strict=True)
            bank.add(np.array(rows), np.array(values), np.array(weights), np.array(times))
    return results


def survive(op: Op, hists: list[tuple[HistogramBank, int]]) -> None:
    """Upstream panics on this call; ours may refuse it with an error, or do nothing harmful."""
    bank, row = hists[op[1]]
    if op[0] in ("add", "sub"):
        call = bank.add if op[0] == "add" else bank.subtract
        with pytest.raises(ValueError, match="non-negative"):
            call(np.array([row]), np.array([number(op[2])]), np.array([number(op[3])]), np.array([op[4]]))
    else:
        assert op[0] == "merge"
        assert hists[op[2]][0] is not bank, "histograms of two kinds are in two banks, so they never merge"


def one(op: Op, bank: HistogramBank, row: int, hists: list[tuple[HistogramBank, int]]) -> Any:
    rows = np.array([row])
    match op[0]:
        case "sub":
            bank.subtract(rows, np.array([number(op[2])]), np.array([number(op[3])]), np.array([op[4]]))
        case "merge":
            assert hists[op[2]][0] is bank
            bank.merge(row, hists[op[2]][1])
        case "q":
            return float(bank.percentiles(rows, np.array([number(op[2])]))[0, 0])
        case "empty":
            return bool(bank.is_empty(rows)[0])
        case "eq":
            return equal(bank, row, *hists[op[2]])
        case "reload":
            saved = bank.save(row)
            bank.clear(rows)
            bank.load(row, saved)
        case other:
            raise AssertionError(other)
    return None


def equal(bank: HistogramBank, row: int, other: HistogramBank, other_row: int) -> bool:
    if bank is not other:
        return False
    for column in (bank.low, bank.high, bank.reference):
        if column[row] != column[other_row]:
            return False
    inside = slice(int(bank.low[row]), int(bank.high[row]) + 1)
    return bool((abs(bank.weights(row)[inside] - bank.weights(other_row)[inside]) <= 1e-15).all())


def final(bank: HistogramBank, row: int) -> dict[str, Any]:
    rows = np.array([row])
    saved = bank.save(row)
    weights = bank.weights(row)
    return {
        "empty": bool(bank.is_empty(rows)[0]),
        "percentiles": bank.percentiles(rows, PERCENTILES)[:, 0].tolist(),
        "checkpoint": {
            "bucket_weights": {str(b): w for b, w in saved.weights.items()},
            "total_weight": saved.total,
            "reference_ns": None if saved.reference == NEVER else saved.reference,
        },
        "min_bucket": int(bank.low[row]),
        "max_bucket": int(bank.high[row]),
        "weights": [[int(b), float(weights[b])] for b in np.flatnonzero(weights)],
    }


def test_vector_histograms() -> None:
    cases = vectors.load("histograms")
    fleet = Fleet()
    series = [c for c in cases if c["kind"] == "ops"]
    results = run_rounds(series, fleet)
    finals: dict[str, list[Any]] = {}
    again = Fleet()
    for case in series:
        opened = [again.open(h["scheme"], h["half_life_s"])[1] for h in case["in"]["hists"]]
        keys = [(h["scheme"], h["half_life_s"]) for h in case["in"]["hists"]]
        finals[case["id"]] = [final(fleet.banks[k], r) for k, r in zip(keys, opened, strict=True)]

    def outcome(case: vectors.Case) -> Any:
        if case["kind"] == "ops":
            if "stopped" in case["out"]:
                last = case["out"]["results"][-1]
                return {"results": [*results[case["id"]], last], "stopped": True}
            return {"results": results[case["id"]], "final": finals[case["id"]]}
        layout = buckets.cpu() if case["in"]["scheme"] == "cpu" else buckets.memory()
        if case["kind"] == "find_bucket":
            return layout.find(np.array(case["in"]["values"], dtype=np.float64)).tolist()
        return {
            "num_buckets": buckets.COUNT,
            "epsilon": buckets.EPSILON,
            "starts": layout.starts.tolist(),
            "find_bucket_of_start": layout.find(layout.starts).tolist(),
        }

    vectors.check("histograms", cases, outcome)


def test_a_half_life_of_a_second_forgets_all_that_is_old() -> None:
    bank = HistogramBank(buckets.cpu(), half_life=10**9)
    row, one = np.array([0]), np.array([1.0])
    for time in (0, 50 * 365 * DAY):
        bank.add(row, one, one, np.array([time]))
    assert bank.total[0] == 1.0
    assert bank.reference[0] == 50 * 365 * DAY


@given(
    st.lists(
        st.tuples(
            st.integers(-1, buckets.LAST),
            st.integers(0, buckets.LAST),
            st.sampled_from([1.0, 0.1, 5e-5]),
            st.integers(-3 * DAY, 260 * DAY),
        ),
        min_size=1,
        max_size=40,
    ),
    st.sampled_from([DAY, 0]),
)
def test_a_run_of_replaced_samples_leaves_the_same_as_its_samples_one_by_one(
    run: list[tuple[int, int, float, int]], half_life: int
) -> None:
    banks = [HistogramBank(buckets.memory(), half_life=half_life, capacity=3) for _ in range(2)]
    leaving, arriving, weights, times = (np.array(column) for column in zip(*run, strict=True))
    row = np.array([1])
    banks[0].replace(1, leaving, arriving, weights, START + times)
    for out, into, weight, time in run:
        at, scale = np.array([START + time]), np.array([weight])
        if out >= 0:
            banks[1].subtract_from_buckets(row, np.array([out]), scale, at)
        banks[1].add_to_buckets(row, np.array([into]), scale, at)
    assert final(banks[0], 1) == final(banks[1], 1)
    assert banks[0].save(1) == banks[1].save(1)


# Properties: the bank against the plain histogram.

ROWS = 5
steps = st.one_of(
    st.tuples(
        st.just("add"),
        st.lists(
            st.tuples(
                st.integers(0, ROWS - 1),
                st.integers(0, buckets.LAST),
                st.floats(1e-6, 5),
                st.integers(-3 * DAY, 160 * DAY),
            ),
            min_size=1,
            max_size=12,
        ),
    ),
    st.tuples(
        st.just("subtract"),
        st.integers(0, ROWS - 1),
        st.integers(0, buckets.LAST),
        st.floats(1e-6, 5),
        st.integers(-3 * DAY, 160 * DAY),
    ),
    st.tuples(st.just("merge"), st.integers(0, ROWS - 1), st.integers(0, ROWS - 1)),
    st.tuples(st.just("clear"), st.integers(0, ROWS - 1)),
    st.tuples(st.just("grow"), st.integers(1, 40)),
)


def bank_state(bank: HistogramBank, row: int) -> tuple[object, ...]:
    reference = int(bank.reference[row])
    return (
        bank.weights(row).tolist(),
        float(bank.total[row]),
        int(bank.low[row]),
        int(bank.high[row]),
        None if reference == NEVER else reference,
    )


@settings(max_examples=150, deadline=None)
@given(st.lists(steps, max_size=25), st.sampled_from([DAY, 8 * 3600 * 10**9, 7 * DAY]))
def test_any_interleaving_of_calls_leaves_every_row_as_a_plain_histogram(script: Any, half_life: int) -> None:
    bank = HistogramBank(buckets.cpu(), half_life=half_life, capacity=ROWS)
    plain = [PlainHistogram(half_life) for _ in range(ROWS)]
    percentiles = np.array([0.0, 0.5, 0.9, 0.95, 1.0])
    for step in script:
        match step[0]:
            case "add":
                rows, stops, weights, times = (np.array(column) for column in zip(*step[1], strict=True))
                bank.add_to_buckets(rows, stops, weights, START + times)
                for row, bucket, weight, time in step[1]:
                    plain[row].add(bucket, weight, START + time)
            case "subtract":
                _, row, bucket, weight, time = step
                bank.subtract_from_buckets(
                    np.array([row]), np.array([bucket]), np.array([weight]), np.array([START + time])
                )
                plain[row].subtract(bucket, weight, START + time)
            case "merge" if step[1] != step[2]:
                bank.merge(step[1], step[2])
                plain[step[1]].merge(plain[step[2]])
            case "clear":
                bank.clear(np.array([step[1]]))
                plain[step[1]] = PlainHistogram(half_life)
            case "grow":
                bank.grow(ROWS + step[1])
        assert [bank_state(bank, row) for row in range(ROWS)] == [row.state() for row in plain]
    found = bank.percentile_buckets(np.arange(ROWS), percentiles)
    wanted = [[row.percentile_bucket(p) for row in plain] for p in percentiles.tolist()]
    assert found.tolist() == wanted
    chosen = np.array([3, 0, 4])
    assert bank.percentile_buckets(chosen, percentiles).tolist() == found[:, chosen].tolist()


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.floats(0.001, 900), st.integers(0, 30 * DAY)), min_size=1, max_size=40))
def test_a_saved_and_loaded_row_keeps_its_percentiles_and_total(samples: list[tuple[float, int]]) -> None:
    bank = HistogramBank(buckets.cpu(), half_life=DAY, capacity=2)
    values, times = (np.array(column) for column in zip(*samples, strict=True))
    zeros = np.zeros(len(samples), dtype=np.int64)
    bank.add(zeros, values, np.full(len(samples), 0.1), START + times)
    bank.load(1, bank.save(0))
    assert math.isclose(bank.total[0], bank.total[1], rel_tol=1e-9)
    assert bank.low[1] >= bank.low[0]
    assert bank.high[1] <= bank.high[0]
    assert bank.save(1).weights == bank.save(0).weights


@given(st.lists(st.integers(0, 2_000_000), min_size=1, max_size=200))
def test_buckets_of_whole_millicores_are_those_of_their_cores(amounts: list[int]) -> None:
    layout = buckets.cpu()
    given_amounts = np.array(amounts)
    assert layout.find_amounts(given_amounts).tolist() == layout.find(given_amounts / 1000.0).tolist()


def test_a_histogram_with_a_damaged_bucket_is_refused_and_changes_nothing() -> None:
    bank = HistogramBank(buckets.memory(), half_life=DAY, capacity=1)
    for saved, words in (
        (Saved({176: 1}, 1.0, 0), "exceeding histogram buckets 176"),
        (Saved({-1: 1}, 1.0, 0), "negative bucket -1"),
        (Saved({1: 1}, -1.0, 0), "negative weight -1"),
    ):
        with pytest.raises(LoadError, match=words):
            bank.load(0, saved)
        assert bool(bank.is_empty(np.array([0]))[0])
        assert bank.reference[0] == NEVER
