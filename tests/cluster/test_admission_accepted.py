"""Pods as our patches make them, given to the real API server: whom it would have taken before, it takes."""

from __future__ import annotations

import asyncio
import copy
from typing import Any

import jsonpatch
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.cluster.webhooks import Scene
from tests.core.admission_kit import PODS, Bench, patch_of, review
from tests.core.pods import Data, container, limit_range, pod, vpa
from tests.testbed.api import ApiError
from tests.testbed.cluster import Cluster
from vpa.gates import FeatureGates

NAMES = ["app", "proxy", "log"]
cpu = st.sampled_from(["0", "1m", "50m", "300m", "1", "1500m", "4", "0.1"])
memory = st.sampled_from(["0", "1", "4Mi", "64Mi", "100M", "1Gi", "1500Mi", "8Gi"])
sizes = st.fixed_dictionaries({}, optional={"cpu": cpu, "memory": memory})

ITEMS: dict[str, Data | None] = {
    "none": None,
    "container": {
        "type": "Container",
        "max": {"cpu": "2", "memory": "2Gi"},
        "min": {"cpu": "10m", "memory": "8Mi"},
        "maxLimitRequestRatio": {"cpu": "4"},
    },
    "pod": {"type": "Pod", "max": {"cpu": "3", "memory": "4Gi"}, "min": {"memory": "100Mi"}},
}


small = st.fixed_dictionaries(
    {}, optional={"cpu": st.sampled_from(["50m", "100m"]), "memory": st.sampled_from(["40Mi", "64Mi"])}
)
limited = st.fixed_dictionaries(
    {"cpu": st.sampled_from(["100m", "200m", "1"]), "memory": st.sampled_from(["64Mi", "200Mi", "1Gi"])}
)


@st.composite
def pods(draw: st.DrawFn, *, ranged: bool) -> Data:
    """Pods with any sizes, or (*ranged*) with such as a LimitRange may accept."""
    containers = []
    for name in draw(st.lists(st.sampled_from(NAMES), min_size=1, max_size=3, unique=True)):
        requests, limits = draw(small if ranged else sizes), draw(limited if ranged else sizes)
        containers.append(container(name, requests, limits, image="pause"))
    made = pod(*containers)
    if draw(st.integers(0, 3)) == 0:
        made["spec"]["resources"] = {"limits": {"cpu": "4", "memory": "8Gi"}}
    return made


@st.composite
def vpas(draw: st.DrawFn) -> Data:
    targets = draw(st.dictionaries(st.sampled_from(NAMES), sizes, min_size=1))
    policy = st.fixed_dictionaries(
        {"containerName": st.sampled_from(["*", "app"])},
        optional={
            "controlledValues": st.sampled_from(["RequestsOnly", "RequestsAndLimits"]),
            "minAllowed": sizes,
            "maxAllowed": sizes,
        },
    )
    boost = {"startupBoost": {"cpu": {"type": "Factor", "factor": 3}}} if draw(st.booleans()) else {}
    return vpa(targets, policies=draw(st.lists(policy, max_size=1)), **boost)


def created(scene: Scene, body: Data) -> Data:
    """The pod as the API server would create it, with what its own plug-ins fill in. Raises `ApiError`."""
    named = copy.deepcopy(body)
    named["apiVersion"], named["kind"] = "v1", "Pod"
    named["metadata"]["namespace"] = scene.namespace
    path = scene.cluster.api.path("Pod", None, scene.namespace) + "?dryRun=All"
    return scene.cluster.api.request("POST", path, named)


@pytest.mark.parametrize("which", sorted(ITEMS))
def test_patched_pods_are_accepted_by_the_api_server(cluster: Cluster, namespace: str, which: str) -> None:
    scene = Scene(cluster, namespace)
    item = ITEMS[which]
    limit_ranges = () if item is None else (limit_range(item),)
    if item is not None:
        scene.limit_range(item)
    tried: list[Any] = []

    @settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
    @given(pods(ranged=item is not None), vpas())
    def check(written: Data, autoscaler: Data) -> None:
        try:
            before = created(scene, written)
        except ApiError:
            return  # nobody would have had it
        resources = [one["resources"] for one in before["spec"]["containers"]]
        for mine, theirs in zip(written["spec"]["containers"], resources, strict=True):
            mine["resources"] = theirs  # the LimitRanger comes before the webhooks
        bench = Bench(autoscaler, limit_ranges, gates=FeatureGates.parse("CPUStartupBoost=true"))
        patch = patch_of(asyncio.run(bench.ask(review(PODS, written))))
        if patch:
            created(scene, jsonpatch.apply_patch(written, patch))
            tried.append(patch)

    check()
    assert len(tried) > 10
