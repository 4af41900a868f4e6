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


def sizes(pod_data: Data, which: str = "containers") -> list[tuple[Data, Data]]:
    """(requests, limits) of each container, as text."""
    found = [item.get("resources") or {} for item in pod_data["spec"].get(which, ())]
    return [(resources.get("requests") or {}, resources.get("limits") or {}) for resources in found]


def nanos(resources: Data, resource: str) -> int:
    return Quantity.parse(resources[resource]).nanos if resource in resources else 0


def refusals(pod_data: Data, *limit_ranges: Data) -> list[str]:
    """Why the API server would refuse the pod: its own validation and its LimitRanger."""
    found = []
    spec = pod_data["spec"]
    containers = sizes(pod_data)
    for resource in ("cpu", "memory"):
        for number, (requests, limits) in enumerate(containers):
            request, limit = _own(requests, limits, resource)
            if resource in limits and request > limit:
                found.append(f"container {number}: {resource} request above limit")
            if 0 < nanos(_level(spec, "limits"), resource) < limit:
                found.append(f"container {number}: {resource} limit above the pod's")
        for item in _items(limit_ranges, "Container"):
            for requests, limits in [*containers, *sizes(pod_data, "initContainers")]:
                request, limit = _own(requests, limits, resource)
                found.extend(
                    f"container: {text}"
                    for text in _broken(item, resource, request, limit, resource in limits)
                )
        asked, limit = (_whole(pod_data, resource, kind) for kind in ("requests", "limits"))
        level = nanos(_level(spec, "requests"), resource) or nanos(_level(spec, "limits"), resource)
        if 0 < level < asked:
            found.append(f"pod: {resource} requests above the pod's")
        request = nanos(_level(spec, "requests"), resource) or asked
        limit = nanos(_level(spec, "limits"), resource) or limit
        for item in _items(limit_ranges, "Pod"):
            found.extend(f"pod: {text}" for text in _broken(item, resource, request, limit, limit > 0))
    return found


def _level(spec: Data, kind: str) -> Data:
    return (spec.get("resources") or {}).get(kind) or {}


def _own(requests: Data, limits: Data, resource: str) -> tuple[int, int]:
    limit = nanos(limits, resource)
    return (nanos(requests, resource) if resource in requests else limit), limit


def _whole(pod_data: Data, resource: str, kind: str) -> int:
    """All containers with their native sidecars, or what starting up takes, if that is more."""
    index = ("requests", "limits").index(kind)
    running = sum(_own(*own, resource)[index] for own in sizes(pod_data))
    sidecars = most = 0
    for container_data, own in zip(
        pod_data["spec"].get("initContainers", ()), sizes(pod_data, "initContainers"), strict=True
    ):
        value = _own(*own, resource)[index]
        most = max(most, sidecars + value)
        sidecars += value if container_data.get("restartPolicy") == "Always" else 0
    return max(running + sidecars, most)


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
    if ratio and limited and request and limit / request * 1000 > ratio / 10**6:
        found.append(f"{resource} limit too many times its request")
    return found
