"""Limits that keep their ratio to the request."""

from __future__ import annotations

from typing import Any

from tests.core import vectors
from vpa.quantities import Quantity
from vpa.rules import preset
from vpa.sizes.scaling import boundary_request, proportional_limits

SAFE, UPSTREAM = preset("safe"), preset("upstream")


def resources(data: dict[str, str] | None) -> dict[str, Quantity] | None:
    return None if data is None else {name: Quantity.parse(text) for name, text in data.items()}


def outcome(case: vectors.Case) -> Any:
    data = case["in"]
    if case["kind"] == "proportional_limit":
        limits, notes = proportional_limits(
            limits=resources(data["original_limit"]),
            requests=resources(data["original_request"]),
            recommended=resources(data["recommendation"]),
            defaults=resources(data["default_limit"]),
            rules=UPSTREAM,
        )
        shown = None if limits is None else {name: str(value) for name, value in limits.items()}
        return {"limit": shown, "annotations": notes}
    bound = boundary_request(
        data["resource"],
        request=quantity(data["original_request"]),
        limit=quantity(data["original_limit"]),
        boundary=quantity(data["boundary_limit"]),
        default=quantity(data["default_limit"]),
        rules=UPSTREAM,
    )
    return None if bound is None else {"text": str(bound), "format": bound.format}


def quantity(text: str | None) -> Quantity | None:
    return None if text is None else Quantity.parse(text)


def test_vector_limits_scaling() -> None:
    vectors.check("limits_scaling", vectors.load("limits_scaling"), outcome)
