"""Whole recommendations against upstream's facts: every case's containers are rows of one shared state."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from tests.core import vectors
from vpa import conditions
from vpa.durations import Duration
from vpa.numerics import Ints
from vpa.objects import meta
from vpa.objects.autoscalers import VerticalPodAutoscaler
from vpa.quantities import Quantity
from vpa.recommendations import Roster
from vpa.settings import Estimation
from vpa.usage import OOMOutcome, Usage

SECOND = 10**9
MISSING = -(10**18)


class Samples(NamedTuple):
    """A container's samples; MISSING stands for an absent amount."""

    times: Ints
    cpu: Ints
    memory: Ints


def draws(seed: int, count: int) -> Ints:
    """The case's pseudo-random numbers: a linear congruential generator, all at once."""
    factors = np.cumprod(np.full(count, 1664525, dtype=np.uint32), dtype=np.uint32)
    sums = np.cumsum(np.r_[np.uint32(1), factors[:-1]], dtype=np.uint32)
    states = factors * np.uint32(seed) + np.uint32(1013904223) * sums
    return (states >> np.uint32(8)).astype(np.int64)


def generated(gen: dict[str, int] | None) -> Samples:
    """The deterministic series that a case describes by its parameters."""
    if not gen or gen["n"] == 0:
        return Samples(*np.zeros((3, 0), dtype=np.int64))
    first, second, third = draws(gen["seed"], 3 * gen["n"]).reshape(-1, 3).T
    cpu = gen["cpu_base_m"] + first % gen["cpu_span_m"]
    cpu = np.where(second % 256 < gen["spike_per_256"], cpu * gen["spike_mul"], cpu)
    memory = gen["mem_base_b"] + third % gen["mem_span_units"] * gen["mem_unit_b"]
    return Samples(gen["start_s"] + np.arange(gen["n"]) * gen["step_s"], cpu, memory)


def samples_of(container: dict[str, Any]) -> Samples:
    series = container.get("series") or []
    listed = (
        np.array([[MISSING if v is None else v for v in s] for s in series], dtype=np.int64).reshape(-1, 3).T
    )
    return Samples(*np.hstack((np.array(generated(container.get("gen"))), listed)))


def feed(usage: Usage, instance: int, container: dict[str, Any], base_s: int) -> list[int]:
    """Feed one container as upstream was fed; count accepted CPU samples, memory samples and OOMs."""
    accepted = [0, 0, 0]
    samples = samples_of(container)
    times = (base_s + samples.times) * SECOND

    def flush(part: slice) -> None:
        for which, amounts, add in ((0, samples.cpu, usage.add_cpu), (1, samples.memory, usage.add_memory)):
            known = amounts[part] != MISSING
            at = np.full(int(known.sum()), instance)
            accepted[which] += int(add(at, times[part][known], amounts[part][known]).sum())

    done = 0
    for time, memory in container.get("ooms") or ():
        later = np.flatnonzero(samples.times[done:] > time)
        until = done + int(later[0]) if len(later) else len(times)
        flush(slice(done, until))
        done = until
        outcome = usage.record_oom(instance, (base_s + time) * SECOND, memory)
        accepted[2] += outcome is OOMOutcome.RECORDED
    flush(slice(done, None))
    return accepted


def settings_of(case: dict[str, Any]) -> Estimation:
    values: dict[str, Any] = {}
    for name, value in (case.get("flags") or {}).items():
        if name.endswith("-hours"):
            values[name.removesuffix("-hours").replace("-", "_")] = Duration.of(hours=value)
        elif name.startswith("round-") or name == "humanize-memory":
            values[name.replace("-", "_")] = value
        else:
            values[name.replace("-", "_")] = float(value)
    for resource, text in (case.get("global_max_allowed") or {}).items():
        values[f"container_recommendation_max_allowed_{resource}"] = Quantity.parse(text)
    return Estimation(**values)


def autoscaler(case: dict[str, Any]) -> VerticalPodAutoscaler:
    spec: dict[str, Any] = {}
    if case.get("update_mode"):
        spec["updatePolicy"] = {"updateMode": case["update_mode"]}
    if case.get("container_policies") is not None:
        spec["resourcePolicy"] = {"containerPolicies": case["container_policies"]}
    return meta.convert({"metadata": {"name": "v", "namespace": "ns"}, "spec": spec}, VerticalPodAutoscaler)


def written(resource: str, quantity: Quantity) -> list[Any]:
    return [str(quantity), quantity.milli() if resource == "cpu" else quantity.value()]


def test_vector_recommendations() -> None:
    cases = vectors.load("recommendations")
    usage = Usage(capacity=64)
    accepted: dict[str, list[list[int]]] = {}
    rows: dict[str, dict[str, int]] = {}
    rosters: dict[Estimation, Roster] = {}
    for case in cases:
        inputs = case["in"]
        rows[case["id"]], accepted[case["id"]] = {}, []
        for container in inputs["containers"]:
            row = rows[case["id"]].setdefault(container["name"], -1)
            if row < 0:
                row = rows[case["id"]][container["name"]] = int(usage.new_rows(1, 0)[0])
            instance = int(usage.new_instances(np.array([row]))[0])
            accepted[case["id"]].append(feed(usage, instance, container, inputs["base_s"]))
        settings = settings_of(inputs)
        roster = rosters.setdefault(settings, Roster(usage, settings))
        roster.put(case["id"], autoscaler(inputs), rows[case["id"]])
    passes = {settings: roster.run() for settings, roster in rosters.items()}

    def outcome(case: vectors.Case) -> Any:
        settings = settings_of(case["in"])
        found = rosters[settings].recommendation(case["id"], passes[settings])
        containers = []
        for container in found.container_recommendations or ():
            entry: dict[str, Any] = {"containerName": container.container_name}
            for kind, values in (
                ("target", container.target),
                ("lowerBound", container.lower_bound),
                ("upperBound", container.upper_bound),
                ("uncappedTarget", container.uncapped_target),
            ):
                entry[kind] = {r: written(r, quantity) for r, quantity in (values or {}).items()}
            containers.append(entry)
        pods = 0 if case["in"].get("pods_deleted_before_update") else len(case["in"]["containers"])
        wanted = conditions.of_recommendation(provided=bool(containers), pods=pods)
        listed = [
            {"type": c.type, "status": c.status, "reason": c.reason, "message": c.message}
            for c in sorted((c for c in wanted.values() if c), key=lambda c: c.type)
        ]
        return {
            "accepted_cpu_mem_oom": accepted[case["id"]],
            "recommendation": containers,
            "conditions": listed,
        }

    vectors.check("recommendations", cases, outcome)


def test_bounds_of_a_policy_beyond_all_numbers_are_kept_as_written() -> None:
    usage = Usage(capacity=4)
    roster = Roster(usage, Estimation())
    row = int(usage.new_rows(1, 0)[0])
    policy = {"containerName": "*", "minAllowed": {"cpu": "9e40"}, "maxAllowed": {"memory": "9e40"}}
    roster.put("v", autoscaler({"container_policies": [policy]}), {"app": row})
    found = (roster.recommendation("v", roster.run()).container_recommendations or [])[0]
    assert {name: str(value) for name, value in (found.target or {}).items()} == {
        "cpu": "90e39",
        "memory": "250Mi",
    }
