"""Whatever pods, VPAs and LimitRanges come: what the API server took as written, it takes as sized."""

from __future__ import annotations

from typing import Any

from hypothesis import event, given, settings
from hypothesis import strategies as st

from tests.core.pods import (
    SAFE,
    a_pod,
    a_vpa,
    admitted,
    container,
    limit_range,
    nanos,
    pod,
    refusals,
    sizes,
    the_ranges,
    vpa,
)
from vpa.pods import desired
from vpa.reasons import Reason

GI = 2**30

cpus = st.integers(1, 8000).map(lambda number: f"{number}m")
memories = st.integers(1, 8 * GI).map(str)


def resource_lists(most_cpu: int = 8000) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries(
        {}, optional={"cpu": st.integers(1, most_cpu).map(lambda number: f"{number}m"), "memory": memories}
    )


@st.composite
def containers(draw: st.DrawFn, name: str) -> dict[str, Any]:
    requests, limits = draw(resource_lists()), draw(resource_lists())
    for resource in set(requests) & set(limits):
        if nanos(requests, resource) > nanos(limits, resource):
            requests[resource], limits[resource] = limits[resource], requests[resource]
    return container(name, draw(st.sampled_from([requests, None])), draw(st.sampled_from([limits, None])))


@st.composite
def recommendations(draw: st.DrawFn) -> dict[str, Any]:
    found: dict[str, Any] = {"lowerBound": {}, "target": {}, "upperBound": {}}
    for resource, values in (("cpu", cpus), ("memory", memories)):
        if draw(st.booleans()):
            drawn = sorted(
                draw(st.lists(values, min_size=3, max_size=3)),
                key=lambda text: nanos({resource: text}, resource),
            )
            for bound, text in zip(found, drawn, strict=True):
                found[bound][resource] = text
    return found


policy_entries = st.fixed_dictionaries(
    {"containerName": st.sampled_from(["a", "b", "*"])},
    optional={
        "minAllowed": resource_lists(),
        "maxAllowed": resource_lists(),
        "mode": st.sampled_from(["Auto", "Off"]),
        "controlledValues": st.sampled_from(["RequestsOnly", "RequestsAndLimits"]),
        "controlledResources": st.lists(st.sampled_from(["cpu", "memory"]), unique=True),
    },
)


ratios = st.fixed_dictionaries(
    {}, optional=dict.fromkeys(("cpu", "memory"), st.sampled_from(["1", "1.5", "4"]))
)


@st.composite
def limit_ranges(draw: st.DrawFn) -> dict[str, Any]:
    items = []
    for kind in ("Container", "Pod"):
        item: dict[str, Any] = {"type": kind}
        if draw(st.booleans()):
            item["max"] = draw(resource_lists())
        if draw(st.booleans()):
            low = draw(resource_lists(300))
            item["min"] = {
                name: value
                for name, value in low.items()
                if not nanos(item.get("max", {}), name) or nanos(low, name) <= nanos(item["max"], name)
            }
        if draw(st.booleans()):
            item["maxLimitRequestRatio"] = draw(ratios)
        items.append(item)
    return limit_range(*items)


@st.composite
def pods(draw: st.DrawFn) -> dict[str, Any]:
    """One to three containers, and perhaps an init container or native sidecar, and pod-level resources."""
    more: dict[str, Any] = {}
    if draw(st.booleans()):
        kind = draw(st.sampled_from([{"restartPolicy": "Always"}, {}]))
        more["initContainers"] = [draw(containers("first")) | kind]
    if draw(st.sampled_from([True, False, False])):
        more["resources"] = {"requests": draw(resource_lists()), "limits": draw(resource_lists())}
    return pod(*(draw(containers(name)) for name in "abc"[: draw(st.integers(1, 3))]), **more)


recommended = st.dictionaries(st.sampled_from(["a", "b", "c", "ghost"]), recommendations())
policies = st.lists(policy_entries, max_size=3)
boosts = st.none() | st.fixed_dictionaries({"type": st.just("Factor"), "factor": st.integers(1, 5)})


def refused(whole: dict[str, Any], bound: dict[str, Any]) -> set[str]:
    """The resources for which the API server would refuse the pod."""
    found = refusals(whole, bound)
    return {resource for resource in ("cpu", "memory") if any(f" {resource} " in text for text in found)}


@settings(max_examples=300)
@given(pods(), recommended, policies, limit_ranges(), boosts)
def test_a_pod_that_the_api_server_would_take_is_taken_as_sized(
    whole: dict[str, Any],
    targets: dict[str, Any],
    policies: list[dict[str, Any]],
    bound: dict[str, Any],
    boost: dict[str, Any] | None,
) -> None:
    more = {"startupBoost": {"cpu": boost}} if boost else {}
    wanted = vpa(targets, policies=policies, **more)
    result, done = admitted(whole, wanted, bound, gates="CPUStartupBoost=true")
    assert done.desired is not None
    assert refused(result, bound) <= refused(whole, bound)
    for alone in done.desired.left_alone:
        if alone.why.reason is Reason.NO_SIZE_FITS and not (boost and alone.resource == "cpu"):
            event("nothing fits")
            index = next(i for i, one in enumerate("abc") if one == alone.container)
            for before, after in zip(sizes(whole)[index], sizes(result)[index], strict=True):
                assert before.get(alone.resource) == after.get(alone.resource)


@settings(max_examples=200)
@given(pods(), recommended, policies, limit_ranges())
def test_target_and_bounds_are_in_order_and_a_pod_that_has_its_target_keeps_it(
    whole: dict[str, Any],
    targets: dict[str, Any],
    policies: list[dict[str, Any]],
    bound: dict[str, Any],
) -> None:
    wanted = vpa(targets, policies=policies)
    fitted = desired(a_pod(whole), a_vpa(wanted), the_ranges(bound), rules=SAFE)
    for entry in fitted.recommendations:
        for resource, target in (entry.target or {}).items():
            assert (entry.lower_bound or {}).get(resource, target) <= target
            assert (entry.upper_bound or {}).get(resource, target) >= target
    result, _ = admitted(whole, wanted, bound)
    if refusals(result, bound):
        return
    running = {**result, "spec": {**result["spec"], "nodeName": "somewhere"}}
    again, _ = admitted(running, wanted, bound)
    for (requests, _), (kept, _) in zip(sizes(result), sizes(again), strict=True):
        for resource in kept:
            assert abs(nanos(requests, resource) - nanos(kept, resource)) <= nanos(requests, resource) // 10
