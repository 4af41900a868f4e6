"""VPA objects that the webhook accepts, mends, warns of or refuses."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.core import vectors
from tests.core.pods import Data
from vpa.field_errors import aggregate
from vpa.gates import FeatureGates
from vpa.rules import preset
from vpa.validation import review

SAFE, UPSTREAM = preset("safe"), preset("upstream")


def outcome(case: vectors.Case) -> Any:
    data = case["in"]
    gates = FeatureGates(dict.fromkeys(data.get("feature_gates") or (), True))
    verdict = review(
        data["object"],
        data.get("old_object") if data["operation"] == "UPDATE" else None,
        rules=UPSTREAM,
        gates=gates,
    )
    result: dict[str, Any] = {
        "allowed": verdict.allowed,
        "patches": verdict.patch,
        "errors": [
            {"type": error.type, "field": error.field, "text": str(error)} for error in verdict.errors
        ],
        "warnings": verdict.warnings or None,
    }
    if verdict.errors:
        result["aggregate"] = aggregate(verdict.errors)
    return result


def without_decoder_texts(result: Any) -> Any:
    """What a decoder says is its own affair; that it refuses is not."""
    if any(error["type"] == "InternalError" for error in result["errors"]):
        return {"allowed": result["allowed"], "errors": ["InternalError"]}
    return result


def test_vector_vpa_webhook() -> None:
    cases = vectors.load("vpa_webhook")
    for case in cases:
        case["out"] = without_decoder_texts(case["out"])
    vectors.check("vpa_webhook", cases, lambda case: without_decoder_texts(outcome(case)))


def vpa(*policies: Data, **spec: Any) -> Data:
    return {
        "metadata": {"name": "v"},
        "spec": {"resourcePolicy": {"containerPolicies": list(policies)}, **spec},
    }


NO_GATES = FeatureGates()


@pytest.mark.parametrize(
    ("resource", "text", "rounded"),
    [("cpu", "187500u", "188m"), ("cpu", "62500u", "63m"), ("memory", "1.2Gi", "1288490189")],
)
def test_bounds_finer_than_a_pod_can_hold_are_let_in_with_a_warning(
    resource: str, text: str, rounded: str
) -> None:
    data = vpa({"containerName": "a", "minAllowed": {resource: text}})
    ours = review(data, rules=SAFE, gates=NO_GATES)
    assert ours.allowed
    assert len(ours.warnings) == 1
    assert f'rounded up to "{rounded}"' in ours.warnings[0]
    assert not review(data, rules=UPSTREAM, gates=NO_GATES).allowed


def test_two_policies_for_one_container_are_refused() -> None:
    policies = (
        {"containerName": "a", "controlledResources": ["cpu"]},
        {"containerName": "a", "controlledResources": ["memory"]},
    )
    ours = review(vpa(*policies), rules=SAFE, gates=NO_GATES)
    assert [str(error) for error in ours.errors] == [
        'spec.resourcePolicy.containerPolicies[1].containerName: Duplicate value: "a": '
        "a container has one policy; put all of its settings into that one"
    ]
    assert review(vpa(*policies), rules=UPSTREAM, gates=NO_GATES).allowed


def test_two_policies_that_a_vpa_had_before_are_only_warned_of() -> None:
    old = vpa({"containerName": "a"}, {"containerName": "a"})
    new = vpa({"containerName": "a"}, {"containerName": "a", "mode": "Auto"}, {"containerName": "b"})
    ours = review(new, old, rules=SAFE, gates=NO_GATES)
    assert ours.allowed
    assert len(ours.warnings) == 1
    worse = vpa(
        {"containerName": "a"}, {"containerName": "a"}, {"containerName": "b"}, {"containerName": "b"}
    )
    assert not review(worse, old, rules=SAFE, gates=NO_GATES).allowed


def test_an_unset_update_policy_becomes_the_default_mode() -> None:
    ours = review(vpa(), rules=SAFE, gates=NO_GATES, default_mode="InPlaceOrRecreate")
    assert ours.patch == [
        {"op": "add", "path": "/spec/updatePolicy", "value": {"updateMode": "InPlaceOrRecreate"}}
    ]
    assert review(vpa(updatePolicy={"updateMode": "Off"}), rules=SAFE, gates=NO_GATES).patch == []


def test_explicit_nulls_are_as_good_as_nothing() -> None:
    data = vpa({"containerName": "a", "mode": None, "minAllowed": {"cpu": None}}, targetRef=None, status=None)
    assert review(data, rules=SAFE, gates=NO_GATES).allowed


def test_a_number_that_does_not_fit_its_field_is_refused() -> None:
    data = vpa(updatePolicy={"updateMode": "Off", "minReplicas": 2**31})
    verdict = review(data, rules=SAFE, gates=NO_GATES)
    assert [error.type for error in verdict.errors] == ["InternalError"]


def test_a_bad_quantity_is_told_in_the_words_of_kubernetes() -> None:
    verdict = review(vpa({"containerName": "a", "maxAllowed": {"cpu": "lots"}}), rules=SAFE, gates=NO_GATES)
    assert aggregate(verdict.errors).startswith(".: Internal error: quantities must match")


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    "metadata",
                    "spec",
                    "updatePolicy",
                    "resourcePolicy",
                    "containerPolicies",
                    "minAllowed",
                    "cpu",
                ]
            )
            | st.text(max_size=5),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@given(json_values, json_values)
def test_any_json_gets_a_verdict(new: Any, old: Any) -> None:
    for rules in (SAFE, UPSTREAM):
        verdict = review(new, old, rules=rules, gates=NO_GATES)
        assert verdict.allowed or verdict.errors
