"""Whole recommendations against upstream's facts: every case's containers are rows of one shared state."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from tests.core import vectors
from vpa import conditions
from vpa.durations import Duration
from vpa.objects import meta
from vpa.objects.autoscalers import VerticalPodAutoscaler
from vpa.quantities import Quantity
from vpa.recommendations import Roster
from vpa.settings import Estimation
from vpa.usage import OOMOutcome, Usage

SECOND = 10**9
Sample = tuple[int, int | None, int | None]


def generated(gen: dict[str, int] | None) -> Iterator[Sample]:
    """The deterministic series that a case describes by its parameters."""
    if not gen:
        return
    state = gen["seed"]

    def draw() -> int:
        nonlocal state
        state = (state * 1664525 + 1013904223) % 2**32
        return state >> 8

    for i in range(gen["n"]):
        cpu = gen["cpu_base_m"] + draw() % gen["cpu_span_m"]
        if draw() % 256 < gen["spike_per_256"]:
            cpu *= gen["spike_mul"]
        memory = gen["mem_base_b"] + (draw() % gen["mem_span_units"]) * gen["mem_unit_b"]
        yield gen["start_s"] + i * gen["step_s"], cpu, memory


def feed(usage: Usage, instance: int, container: dict[str, Any], base_s: int) -> list[int]:
    """Feed one container as upstream was fed; count accepted CPU samples, memory samples and OOMs."""
    accepted = [0, 0, 0]
    ooms = list(container.get("ooms") or ())
    samples = [*generated(container.get("gen")), *map(tuple, container.get("series") or ())]
    at = np.array([instance])

    def deliver(before: float) -> None:
        while ooms and ooms[0][0] < before:
            time, memory = ooms.pop(0)
            outcome = usage.record_oom(instance, (base_s + time) * SECOND, memory)
            accepted[2] += outcome is OOMOutcome.RECORDED

    batch: list[Sample] = []

    def flush() -> None:
        for which, add in ((1, usage.add_cpu), (2, usage.add_memory)):
            chosen = [s for s in batch if s[which] is not None]
            times = np.array([(base_s + s[0]) * SECOND for s in chosen], dtype=np.int64)
            amounts = np.array([s[which] for s in chosen], dtype=np.int64)
            accepted[which - 1] += int(add(at.repeat(len(chosen)), times, amounts).sum())
        batch.clear()

    for sample in samples:
        if ooms and ooms[0][0] < sample[0]:
            flush()
            deliver(sample[0])
        batch.append(sample)
    flush()
    deliver(float("inf"))
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
