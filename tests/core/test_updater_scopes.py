"""A DaemonSet that a node label splits: each of its pods is measured by the group of its node."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from tests.core.updater_kit import make_options, make_plan, make_pod, make_vpa, outcome
from updater import standing
from vpa.objects import meta
from vpa.objects.autoscalers import Status, VerticalPodAutoscaler
from vpa.objects.limits import HorizontalPodAutoscaler
from vpa.objects.pods import Pod
from vpa.updates.hpas import Claim

NODES = {"big-1": {"size": "big"}, "big-2": {"size": "big"}, "small-1": {"size": "small"}, "new": {}}
TARGETS = {"big": "400m", "small": "100m"}


def vpa(mode: str, **spec: Any) -> VerticalPodAutoscaler:
    """400m on big nodes, 100m on small ones, nothing on others."""
    groups = []
    for value, cpu in TARGETS.items():
        size = {"cpu": cpu, "memory": "200Mi"}
        entry = {"containerName": "main", "target": size, "lowerBound": size, "upperBound": size}
        groups.append({"scopeValue": value, "containerRecommendations": [entry]})
    target = {"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "agent"}
    whole = make_vpa(mode, scope="size", targetRef=target, **spec)
    return msgspec.structs.replace(whole, status=meta.convert({"groups": groups}, Status))


def pod(node: str, cpu: str = "100m") -> Pod:
    return make_pod(
        f"on-{node}",
        owner=("DaemonSet", "agent"),
        requests={"cpu": cpu, "memory": "200Mi"},
        spec={"nodeName": node},
    )


PODS = [pod("big-1"), pod("big-2", "400m"), pod("small-1"), pod("new"), pod("unknown")]


@pytest.mark.parametrize(
    ("mode", "action"), [("Recreate", "evict"), ("InPlaceOrRecreate", "resize"), ("InPlace", "resize")]
)
def test_only_the_pod_that_is_off_the_target_of_its_own_nodes_is_changed(mode: str, action: str) -> None:
    plan = make_plan(vpa(mode), PODS, nodes=NODES, options=make_options(gates="InPlace=true"))
    assert outcome(plan) == {
        "on-big-1": (action, "OutsideBounds"),
        "on-big-2": ("none", "UpToDate"),
        "on-small-1": ("none", "UpToDate"),
        "on-new": ("none", "NoRecommendation"),
        "on-unknown": ("none", "NoRecommendation"),
    }
    (decision,) = plan.acted
    assert "cpu 100m → 400m" in decision.message
    (new,) = [one for one in plan.others() if one.pod.metadata.name == "on-new"]
    assert "no recommendation for nodes whose size is that of the pod's node" in new.message


def test_a_new_pod_carries_its_target_if_that_is_the_one_of_its_node() -> None:
    plan = make_plan(vpa("Recreate"), [pod("big-1"), pod("small-1")], nodes=NODES)
    judge = plan.passes[0].judge
    assert judge.carries(pod("big-2", "400m")) is True
    assert judge.carries(pod("big-2", "100m")) is False
    assert judge.carries(pod("small-1", "100m")) is True
    assert judge.carries(pod("new")) is None


def test_what_an_hpa_scales_by_is_left_alone_in_every_group() -> None:
    hpa = {
        "metadata": {"name": "h", "namespace": "n"},
        "spec": {"scaleTargetRef": {"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "agent"}},
    }
    hpas = {"n": [meta.convert(hpa, HorizontalPodAutoscaler)]}
    plan = make_plan(vpa("Recreate"), PODS[:3], nodes=NODES, hpas=hpas)
    assert outcome(plan)["on-big-1"] == ("none", "HPAConflict")
    claims = [Claim("h", "cpu"), Claim("h", "unknown")]
    assert standing.relevant(claims, vpa("Recreate")) == claims[:1]
