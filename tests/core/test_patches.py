"""The JSON patch of a new pod."""

from __future__ import annotations

import re
from typing import Any

from tests.core import vectors
from vpa.gates import FeatureGates
from vpa.limit_ranges import ranges_of
from vpa.objects import meta
from vpa.objects.autoscalers import VerticalPodAutoscaler
from vpa.objects.limits import LimitRange
from vpa.objects.pods import Pod
from vpa.patches import Terms, admit
from vpa.quantities import Quantity
from vpa.reasons import Reason
from vpa.rules import preset

SAFE, UPSTREAM = preset("safe"), preset("upstream")


def canonical(patch: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Items of each container's text sorted, as the vectors are."""
    result = []
    for operation in patch:
        if operation["path"] == "/metadata/annotations/vpaUpdates":
            head, _, rest = operation["value"].partition(": ")
            sections = []
            for section in re.split(r"; (?=container \d+: )", rest):
                label, _, items = section.partition(": ")
                sections.append(f"{label}: {', '.join(sorted(items.split(', ')))}")
            operation = {**operation, "value": f"{head}: {'; '.join(sections)}"}
        result.append(operation)
    return result


def outcome(case: vectors.Case) -> Any:
    data = case["in"]
    if data["vpa"] is None:
        return {"patches": []}
    pod = meta.convert(data["pod"], Pod)
    namespace = pod.metadata.namespace if pod.metadata.name else data["request_namespace"]
    limit_ranges = [meta.convert(item, LimitRange) for item in data["limit_ranges"]]
    boost = data.get("max_allowed_cpu_boost")
    terms = Terms(
        rules=UPSTREAM,
        gates=FeatureGates(dict.fromkeys(data.get("feature_gates") or (), True)),
        most_boost=Quantity.parse(boost) if boost else None,
    )
    ranges = ranges_of(
        [item for item in limit_ranges if item.metadata.namespace == namespace], rules=UPSTREAM
    )
    found = admit(pod, meta.convert(data["vpa"], VerticalPodAutoscaler), ranges, terms=terms)
    result: dict[str, Any] = {"patches": canonical(found.patch)}
    if found.reason is not None and found.reason.reason is Reason.INVALID_VPA:
        result["error"] = f".: Internal error: {found.reason.message}"
    if "panic" in case["out"]:
        assert found.patch == []
    return result


def test_vector_admission_patches() -> None:
    vectors.check("admission_patches", vectors.load("admission_patches"), outcome)
