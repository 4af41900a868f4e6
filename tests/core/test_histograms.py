"""The bank against upstream's facts, and against a plain slow histogram over random histories."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.core import vectors
from vpa import buckets
from vpa.histograms import NEVER, HistogramBank, LoadError

Op = list[Any]
PERCENTILES = np.array([0, 0.01, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 1, 1.5, -0.5])
DAY = 86400 * 10**9


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
                continue  # upstream panics here; what we answer to such a call is free
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
    rows = iter(())
    del rows
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
