"""The JSON patch of a new pod."""

from __future__ import annotations

import re
from typing import Any

from tests.core import vectors
from tests.core.pods import (
    UPSTREAM,
    admitted,
    container,
    limit_range,
    pod,
    refusals,
    sizes,
    vpa,
)
from vpa.gates import FeatureGates
from vpa.objects import meta
from vpa.objects.autoscalers import VerticalPodAutoscaler
from vpa.objects.limits import LimitRange
from vpa.objects.pods import Pod
from vpa.quantities import Quantity
from vpa.reasons import Reason
from vpa.sizes.limit_ranges import ranges_of
from vpa.sizes.patches import Terms, admit


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
    created = meta.convert(data["pod"], Pod)
    namespace = created.metadata.namespace if created.metadata.name else data["request_namespace"]
    limit_ranges = [meta.convert(item, LimitRange) for item in data["limit_ranges"]]
    boost = data.get("max_allowed_cpu_boost")
    terms = Terms(
        rules=UPSTREAM,
        gates=FeatureGates(dict.fromkeys(data.get("feature_gates") or (), True)),
        most_boost=Quantity.parse(boost) if boost else None,
    )
    # Upstream's lister takes no namespace for all namespaces.
    here = [item for item in limit_ranges if namespace in ("", item.metadata.namespace)]
    ranges = ranges_of(here, rules=UPSTREAM)
    found = admit(created, meta.convert(data["vpa"], VerticalPodAutoscaler), ranges, terms=terms)
    result: dict[str, Any] = {"patches": canonical(found.patch)}
    if found.reason is not None and found.reason.reason is Reason.INVALID_VPA:
        result["error"] = f".: Internal error: {found.reason.message}"
    if "panic" in case["out"]:
        assert found.patch == []
    return result


def test_vector_admission_patches() -> None:
    vectors.check("admission_patches", vectors.load("admission_patches"), outcome)


def test_a_vpa_in_mode_off_leaves_new_pods_alone() -> None:
    whole = pod(container("main"))
    wanted = vpa({"main": {"cpu": "1"}}, updatePolicy={"updateMode": "Off"})
    result, done = admitted(whole, wanted)
    assert result == whole
    assert done.reason is not None
    assert done.reason.reason is Reason.MODE_OFF
    _, upstream = admitted(whole, wanted, rules=UPSTREAM)
    assert {"op": "add", "path": "/spec/containers/0/resources", "value": {}} in upstream.patch


def test_a_pod_without_a_recommendation_only_learns_which_containers_were_seen() -> None:
    whole = pod(container("main"), container("side"))
    result, done = admitted(whole, vpa({}))
    assert result["metadata"]["annotations"] == {"vpaObservedContainers": "main, side"}
    assert done.reason is not None
    assert done.reason.reason is Reason.NO_RECOMMENDATION


def test_resource_names_with_slashes_and_tildes_are_escaped() -> None:
    whole = pod(container("main", {"cpu": "1"}))
    target = {"nvidia.com/gpu": "1", "custom~domain.com/resource/name": "2"}
    _, done = admitted(whole, vpa({"main": target}))
    paths = [operation["path"] for operation in done.patch]
    assert "/spec/containers/0/resources/requests/nvidia.com~1gpu" in paths
    assert "/spec/containers/0/resources/requests/custom~0domain.com~1resource~1name" in paths


def test_a_resource_without_a_name_is_dropped() -> None:
    whole = pod(container("main", {"cpu": "1"}))
    result, _ = admitted(whole, vpa({"main": {"": "1", "cpu": "2"}}))
    assert sizes(result)[0][0] == {"cpu": "2"}


def test_upstreams_rules_give_no_patch_where_upstream_would_crash() -> None:
    whole = pod(*(container(name, {"cpu": "100m"}, {"cpu": "200m"}) for name in ("main", "side")))
    wanted = vpa({"main": {"target": {"cpu": "150m"}, "upperBound": {"cpu": "1"}}})
    bound = limit_range({"type": "Pod", "max": {"cpu": "250m"}})
    _, done = admitted(whole, wanted, bound, rules=UPSTREAM)
    assert done.patch == []
    assert done.reason is not None
    assert done.reason.reason is Reason.UPSTREAM_FAILS
    result, _ = admitted(whole, wanted, bound)
    assert refusals(result, bound) == []
