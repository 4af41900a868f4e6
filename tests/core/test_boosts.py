"""More CPU while a container starts."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.core.pods import (
    SAFE,
    UPSTREAM,
    Data,
    admitted,
    container,
    limit_range,
    pod,
    refusals,
    sizes,
    vpa,
)
from vpa.quantities import Quantity
from vpa.reasons import Reason

GATE = "CPUStartupBoost=true"


def boosted(target: Data, boost: Any, part: Data | None = None, **more: Any) -> tuple[Data, Data]:
    """(requests, limits) of a new pod's only container under a boost."""
    part = part or container("main", {"cpu": "100m"}, {"cpu": "300m"})
    policies = more.pop("policies", None)
    spec = more.pop("spec", {})
    wanted = vpa({"main": target} if target else {}, policies=policies, startupBoost={"cpu": boost}, **spec)
    result, _ = admitted(pod(part), wanted, gates=GATE, **more)
    (found,) = sizes(result)
    return found


def factor(number: int) -> Data:
    return {"type": "Factor", "factor": number}


def test_a_factor_multiplies_and_a_quantity_adds() -> None:
    assert boosted({"cpu": "150m"}, factor(2)) == ({"cpu": "300m"}, {"cpu": "900m"})
    assert boosted({"cpu": "150m"}, {"type": "Quantity", "quantity": "50m"}) == (
        {"cpu": "200m"},
        {"cpu": "600m"},
    )


def test_without_a_recommendation_the_own_request_is_boosted() -> None:
    assert boosted({}, factor(2)) == ({"cpu": "200m"}, {"cpu": "600m"})


def test_with_requests_only_the_boost_ends_just_below_the_limit() -> None:
    policies = [{"containerName": "*", "controlledValues": "RequestsOnly"}]
    assert boosted({"cpu": "150m"}, factor(5), policies=policies) == ({"cpu": "299m"}, {"cpu": "300m"})
    tiny = container("main", {"cpu": "1m"}, {"cpu": "1m"})
    assert boosted({"cpu": "1m"}, factor(5), tiny, policies=policies)[0] == {"cpu": "1m"}


def test_the_policy_of_a_container_has_its_own_boost() -> None:
    policies = [{"containerName": "main", "startupBoost": {"cpu": factor(3)}}]
    assert boosted({"cpu": "100m"}, factor(2), policies=policies)[0] == {"cpu": "300m"}


def test_a_boosted_pod_remembers_what_its_owner_wrote() -> None:
    part = container("main", {"memory": "1Gi", "cpu": "0.1", "x": "1"}, {})
    wanted = vpa({"main": {"cpu": "1", "memory": "2Gi"}}, startupBoost={"cpu": factor(2)})
    result, _ = admitted(pod(part), wanted, gates=GATE)
    text = result["metadata"]["annotations"]["vpaCpuStartupBoost/main"]
    assert text == '{"requests":{"cpu":"100m","memory":"1Gi"},"limits":{}}'
    assert json.loads(text)
    assert sizes(result)[0][0]["memory"] == "2Gi"


def test_the_largest_boost_bounds_it_but_never_below_what_it_starts_from() -> None:
    most = Quantity.parse("250m")
    assert boosted({"cpu": "150m"}, factor(3), most_boost=most)[0] == {"cpu": "250m"}
    assert boosted({"cpu": "400m"}, factor(3), most_boost=most)[0] == {"cpu": "400m"}
    assert boosted({"cpu": "400m"}, factor(3), most_boost=most, rules=UPSTREAM)[0] == {"cpu": "250m"}


def test_in_mode_off_only_the_boost_is_applied() -> None:
    part = container("main", {"cpu": "100m", "memory": "1Gi"})
    spec = {"updatePolicy": {"updateMode": "Off"}}
    assert boosted({"cpu": "5", "memory": "5Gi"}, factor(2), part, spec=spec)[0] == {
        "cpu": "200m",
        "memory": "1Gi",
    }


@pytest.mark.parametrize(
    "boost",
    [
        None,
        {},
        {"type": "Factor"},
        {"type": "Factor", "factor": 0},
        {"type": "Quantity"},
        {"type": "Bogus", "factor": 2},
    ],
)
def test_a_boost_that_makes_no_sense_is_none_and_the_pod_still_gets_its_size(boost: Any) -> None:
    assert boosted({"cpu": "150m"}, boost) == ({"cpu": "150m"}, {"cpu": "450m"})
    wanted = vpa({"main": {"cpu": "150m"}}, startupBoost={"cpu": boost})
    _, done = admitted(pod(container("main", {"cpu": "1"})), wanted, gates=GATE, rules=UPSTREAM)
    assert done.patch == []
    assert done.reason is not None
    assert done.reason.reason is Reason.INVALID_VPA


def test_nothing_to_start_from_is_not_boosted_to_zero() -> None:
    bare = container("main")
    assert boosted({}, factor(2), bare) == ({}, {})
    assert boosted({}, factor(2), bare, rules=UPSTREAM)[0] == {"cpu": "0"}


def test_an_opted_out_container_is_not_boosted() -> None:
    policies = [{"containerName": "main", "mode": "Off"}]
    assert boosted({"cpu": "150m"}, factor(2), policies=policies) == ({"cpu": "100m"}, {"cpu": "300m"})


def test_without_the_gate_nothing_is_boosted() -> None:
    wanted = vpa({"main": {"cpu": "150m"}}, startupBoost={"cpu": factor(2)})
    for rules in (SAFE, UPSTREAM):
        result, _ = admitted(pod(container("main", {"cpu": "100m"})), wanted, rules=rules)
        assert sizes(result)[0][0] == {"cpu": "150m"}


def test_a_boost_does_not_make_a_pod_that_the_api_server_would_refuse() -> None:
    bound = limit_range({"type": "Container", "max": {"cpu": "1"}}, {"type": "Pod", "max": {"cpu": "1500m"}})
    whole = pod(*(container(name, {"cpu": "200m"}, {"cpu": "400m"}) for name in ("main", "side")))
    wanted = vpa({"main": {"cpu": "200m"}, "side": {"cpu": "200m"}}, startupBoost={"cpu": factor(10)})
    result, _ = admitted(whole, wanted, bound, gates=GATE)
    assert refusals(result, bound) == []
    assert [requests for requests, _ in sizes(result)] == [{"cpu": "750m"}, {"cpu": "750m"}]
    level = pod(container("main", {"cpu": "200m"}), resources={"requests": {"cpu": "500m"}})
    result, _ = admitted(level, vpa({}, startupBoost={"cpu": factor(10)}), gates=GATE)
    assert sizes(result)[0][0] == {"cpu": "500m"}


def test_a_container_whose_cpu_limit_is_zero_is_not_boosted() -> None:
    fixed = container("main", {"memory": "1Gi"}, {"cpu": "0"})
    boost = {"type": "Quantity", "quantity": "1"}
    assert boosted({"cpu": "150m"}, boost, fixed) == ({"memory": "1Gi"}, {"cpu": "0"})
