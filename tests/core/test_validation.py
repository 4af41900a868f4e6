"""VPA objects that the webhook accepts, mends, warns of or refuses."""

from __future__ import annotations

from typing import Any

from tests.core import vectors
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
