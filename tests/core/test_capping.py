"""What one pod may have of a recommendation."""

from __future__ import annotations

from typing import Any

from tests.core import vectors
from vpa.objects import meta
from vpa.objects.autoscalers import VerticalPodAutoscaler
from vpa.objects.limits import LimitRange
from vpa.objects.pods import Pod
from vpa.rules import preset
from vpa.sizes.capping import CappingError, capped
from vpa.sizes.limit_ranges import ranges_of

SAFE, UPSTREAM = preset("safe"), preset("upstream")


def outcome(case: vectors.Case) -> Any:
    data = case["in"]
    pod = data["pod"] and meta.convert(data["pod"], Pod)
    vpa = data["vpa"] and meta.convert(data["vpa"], VerticalPodAutoscaler)
    namespace = pod.metadata.namespace if pod else ""
    limit_ranges = [meta.convert(item, LimitRange) for item in data["limit_ranges"]]
    # Upstream's lister takes no namespace for all namespaces.
    here = [item for item in limit_ranges if namespace in ("", item.metadata.namespace)]
    try:
        result = capped(vpa, pod, ranges_of(here, rules=UPSTREAM), rules=UPSTREAM)
    except CappingError as error:
        return {"annotations": None, "error": str(error), "recommendation": None}
    if result.recommendations is None:
        return {"annotations": None, "recommendation": None}
    return {
        "annotations": {name: sorted(notes) for name, notes in result.notes.items()},
        "recommendation": [
            {
                "containerName": entry.container_name,
                "target": meta.to_builtins(entry.target),
                "lowerBound": meta.to_builtins(entry.lower_bound),
                "upperBound": meta.to_builtins(entry.upper_bound),
                "uncappedTarget": meta.to_builtins(entry.uncapped_target),
            }
            for entry in result.recommendations
        ],
    }


def test_vector_capping() -> None:
    vectors.check("capping", vectors.load("capping"), outcome)
