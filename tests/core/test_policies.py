"""Which container policy applies."""

from __future__ import annotations

from vpa.objects import meta
from vpa.objects.autoscalers import ResourcePolicy
from vpa.policies import container_policy, controlled_values, duplicate_names, is_off, whole
from vpa.quantities import Quantity


def policies(*entries: dict[str, object]) -> ResourcePolicy:
    return meta.convert({"containerPolicies": list(entries)}, ResourcePolicy)


def test_the_first_policy_of_a_name_wins_over_later_ones_and_over_wildcards() -> None:
    policy = policies(
        {"containerName": "*", "mode": "Off"},
        {"containerName": "main", "mode": "Auto"},
        {"containerName": "main", "mode": "Off"},
    )
    assert not is_off(policy, "main")
    assert is_off(policy, "other")


def test_the_last_wildcard_speaks_for_containers_without_a_policy() -> None:
    policy = policies(
        {"containerName": "*", "controlledValues": "RequestsOnly"},
        {"containerName": "*", "controlledValues": "RequestsAndLimits"},
    )
    found = container_policy(policy, "main")
    assert found is not None
    assert found.controlled_values == "RequestsAndLimits"


def test_without_a_policy_requests_and_limits_are_controlled() -> None:
    assert container_policy(None, "main") is None
    assert container_policy(ResourcePolicy(), "main") is None
    assert controlled_values(None, "main") == "RequestsAndLimits"
    assert controlled_values(policies({"containerName": "main"}), "main") == "RequestsAndLimits"


def test_names_with_several_policies_are_found() -> None:
    policy = policies({"containerName": "b"}, {"containerName": "a"}, {"containerName": "b"})
    assert duplicate_names(policy) == ["b"]
    assert duplicate_names(None) == []


def test_bounds_finer_than_a_pod_can_hold_are_rounded_up() -> None:
    assert str(whole("cpu", Quantity.parse("62500u"))) == "63m"
    assert str(whole("cpu", Quantity.parse("187500u"))) == "188m"
    assert str(whole("memory", Quantity.parse("1.2Gi"))) == "1288490189"
    assert str(whole("memory", Quantity.parse("1Gi"))) == "1Gi"
