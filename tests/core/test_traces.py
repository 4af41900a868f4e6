"""Explanations: the steps of a number give the very number that the tick gives."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vpa import traces
from vpa.estimators import BOUNDS, RESOURCES
from vpa.objects import meta
from vpa.objects.autoscalers import VerticalPodAutoscaler
from vpa.quantities import Quantity
from vpa.recommendations import Roster
from vpa.settings import Estimation
from vpa.usage import Usage

START = 1_785_542_400 * 10**9
MINUTE = 60 * 10**9


def autoscaler(**policy: Any) -> VerticalPodAutoscaler:
    spec = {"resourcePolicy": {"containerPolicies": [{"containerName": "*", **policy}]}}
    return meta.convert({"metadata": {"name": "v", "namespace": "n"}, "spec": spec}, VerticalPodAutoscaler)


def roster_of(usage: Usage, names: list[str], vpa: VerticalPodAutoscaler, estimation: Estimation) -> Roster:
    rows = usage.new_rows(len(names), 0)
    usage.new_instances(rows)
    roster = Roster(usage, estimation)
    roster.put("v", vpa, dict(zip(names, rows.tolist(), strict=True)))
    return roster


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 30_000), st.integers(0, 10**11)), max_size=30),
    st.sampled_from([1, 7, 50]),
    st.sampled_from([{}, {"minAllowed": {"cpu": "100m"}}, {"maxAllowed": {"cpu": "50m", "memory": "1Gi"}}]),
    st.integers(1, 4),
)
def test_the_last_step_of_a_trace_is_the_number_of_the_tick(
    samples: list[tuple[int, int]], rounding: int, policy: dict[str, Any], containers: int
) -> None:
    usage = Usage(capacity=8)
    names = [f"c{i}" for i in range(containers)]
    estimation = Estimation(round_cpu_millicores=rounding, round_memory_bytes=rounding)
    roster = roster_of(usage, names, autoscaler(**policy), estimation)
    for minute, (cpu, memory) in enumerate(samples):
        at = np.array([minute % containers])
        usage.add_cpu(at, np.array([START + minute * MINUTE]), np.array([cpu]))
        usage.add_memory(at, np.array([START + minute * MINUTE]), np.array([memory]))
    run = roster.run()
    for container in roster.containers("v"):
        last = {(s.resource, s.bound): s.after for s in traces.explain(roster, "v", container.name)}
        for resource in RESOURCES:
            amounts = run.finals[resource].amounts[:3, run.place[container.slot]]
            assert [last[resource, bound] for bound in BOUNDS] == amounts.tolist()


def test_each_step_starts_where_the_one_before_ended() -> None:
    roster = roster_of(Usage(capacity=4), ["a"], autoscaler(), Estimation())
    for resource in RESOURCES:
        for bound in BOUNDS:
            chain = [
                s for s in traces.explain(roster, "v", "a") if (s.resource, s.bound) == (resource, bound)
            ]
            assert chain[0].before is None
            assert all(later.before == earlier.after for earlier, later in pairwise(chain))


def test_tiny_containers_share_the_pod_minimum_and_the_trace_says_so() -> None:
    roster = roster_of(Usage(capacity=4), ["a", "b", "c"], autoscaler(), Estimation())
    steps = [s for s in traces.explain(roster, "v", "b") if (s.resource, s.bound) == ("memory", "target")]
    minimum = next(step for step in steps if step.name == "minimum")
    assert minimum.after == 87381333
    assert minimum.why == "raised to pod minimum 250Mi ÷ 3"


def test_a_cap_names_its_policy_or_its_flag() -> None:
    estimation = Estimation(container_recommendation_max_allowed_cpu=Quantity.parse("20m"))
    for policy, words in (
        ({}, "maxAllowed 20m of the flag"),
        ({"maxAllowed": {"cpu": "10m"}}, "maxAllowed 10m of the policy"),
    ):
        roster = roster_of(Usage(capacity=4), ["a"], autoscaler(**policy), estimation)
        steps = traces.explain(roster, "v", "a")
        assert words in [step.why for step in steps if step.name == "maxAllowed"]


def test_oom_kills_are_told_as_evidence() -> None:
    usage = Usage(capacity=4)
    roster_of(usage, ["a"], autoscaler(), Estimation())
    assert traces.oom_evidence(usage, 0) is None
    for time in (START, START + MINUTE):
        usage.record_oom(0, time, 300 * 2**20)
    evidence = traces.oom_evidence(usage, 0)
    assert evidence == "2 OOM kills, the last at 2026-08-01T00:01:00Z: counted as a memory peak of 400Mi"


def test_an_unknown_container_has_no_trace() -> None:
    roster = roster_of(Usage(capacity=4), ["a"], autoscaler(), Estimation())
    with pytest.raises(KeyError):
        traces.explain(roster, "v", "b")
