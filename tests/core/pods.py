"""Pods, VPAs and LimitRanges for tests, and a judge that knows what the API server refuses."""

from __future__ import annotations

from typing import Any

import jsonpatch

from vpa.gates import FeatureGates
from vpa.objects import meta
from vpa.objects.autoscalers import VerticalPodAutoscaler
from vpa.objects.limits import LimitRange
from vpa.objects.pods import Pod
from vpa.quantities import Quantity
from vpa.rules import Rules, preset
from vpa.sizes.limit_ranges import Ranges, ranges_of
from vpa.sizes.nodes_fit import Rooms
from vpa.sizes.patches import Admission, Terms, admit

SAFE, UPSTREAM = preset("safe"), preset("upstream")

Data = dict[str, Any]


def container(name: str, requests: Data | None = None, limits: Data | None = None, **more: Any) -> Data:
    """A container; maps that are ``None`` are not written at all."""
    resources = {
        key: value for key, value in (("requests", requests), ("limits", limits)) if value is not None
    }
    return {"name": name, "resources": resources, **more}


def pod(*containers: Data, **spec: Any) -> Data:
    return {"metadata": {"name": "p", "namespace": "n"}, "spec": {"containers": list(containers), **spec}}


def vpa(targets: dict[str, Data], *, policies: list[Data] | None = None, **spec: Any) -> Data:
    """A VPA that recommends *targets*: container → target, or a whole entry if it has the key ``target``."""
    entries = [
        {"containerName": name, **(target if "target" in target else {"target": target})}
        for name, target in targets.items()
    ]
    if policies is not None:
        spec["resourcePolicy"] = {"containerPolicies": policies}
    return {
        "metadata": {"name": "v", "namespace": "n"},
        "spec": spec,
        "status": {"recommendation": {"containerRecommendations": entries}},
    }


def limit_range(*items: Data, name: str = "lr") -> Data:
    return {"metadata": {"name": name, "namespace": "n"}, "spec": {"limits": list(items)}}


def a_pod(data: Data) -> Pod:
    return meta.convert(data, Pod)


def a_vpa(data: Data) -> VerticalPodAutoscaler:
    return meta.convert(data, VerticalPodAutoscaler)


def the_ranges(*data: Data, rules: Rules = SAFE) -> Ranges:
    return ranges_of([meta.convert(item, LimitRange) for item in data], rules=rules)


def admitted(
    pod_data: Data,
    vpa_data: Data,
    *limit_ranges: Data,
    rules: Rules = SAFE,
    gates: str = "",
    cap_to: Rooms | None = None,
    **terms: Any,
) -> tuple[Data, Admission]:
    """(the pod as the webhook makes it, what the webhook did)."""
    done = admit(
        a_pod(pod_data),
        a_vpa(vpa_data),
        the_ranges(*limit_ranges, rules=rules),
        terms=Terms(rules=rules, gates=FeatureGates.parse(gates), **terms),
        cap_to=cap_to,
    )
    result: Data = jsonpatch.apply_patch(pod_data, done.patch)
    return result, done


def sizes(pod_data: Data) -> list[tuple[Data, Data]]:
    """(requests, limits) of each container, as text."""
    found = [item.get("resources") or {} for item in pod_data["spec"]["containers"]]
    return [(resources.get("requests") or {}, resources.get("limits") or {}) for resources in found]


def nanos(resources: Data, resource: str) -> int:
    return Quantity.parse(resources[resource]).nanos if resource in resources else 0


def refusals(pod_data: Data, *limit_ranges: Data) -> list[str]:
    """Why the API server would refuse the pod: its own validation and its LimitRanger."""
    found = []
    level = pod_data["spec"].get("resources") or {}
    for resource in ("cpu", "memory"):
        request_sum = limit_sum = 0
        for number, (requests, limits) in enumerate(sizes(pod_data)):
            limit = nanos(limits, resource)
            request = nanos(requests, resource) if resource in requests else limit
            request_sum, limit_sum = request_sum + request, limit_sum + limit
            if resource in limits and request > limit:
                found.append(f"container {number}: {resource} request above limit")
            for item in _items(limit_ranges, "Container"):
                found.extend(
                    f"container {number}: {text}"
                    for text in _broken(item, resource, request, limit, resource in limits)
                )
            if "limits" in level and resource in level["limits"] and limit > nanos(level["limits"], resource):
                found.append(f"container {number}: {resource} limit above the pod's")
        for item in _items(limit_ranges, "Pod"):
            found.extend(
                f"pod: {text}" for text in _broken(item, resource, request_sum, limit_sum, limit_sum > 0)
            )
        if 0 < nanos(level.get("requests") or {}, resource) < request_sum:
            found.append(f"pod: {resource} requests above the pod's")
    return found


def _items(limit_ranges: tuple[Data, ...], kind: str) -> list[Data]:
    return [item for entry in limit_ranges for item in entry["spec"]["limits"] if item["type"] == kind]


def _broken(item: Data, resource: str, request: int, limit: int, limited: bool) -> list[str]:
    low, high = nanos(item.get("min") or {}, resource), nanos(item.get("max") or {}, resource)
    ratio = nanos(item.get("maxLimitRequestRatio") or {}, resource)
    found = []
    if high and max(request, limit) > high:
        found.append(f"{resource} above the maximum")
    if low and request and (request < low or (limited and limit < low)):
        found.append(f"{resource} below the minimum")
    if ratio and limited and request and limit * 10**9 > ratio * request:
        found.append(f"{resource} limit too many times its request")
    return found
