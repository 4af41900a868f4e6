"""Which recommendation of a VPA that a node label splits is a pod's."""

from __future__ import annotations

from typing import Any

import pytest

from vpa.objects import meta
from vpa.objects.autoscalers import VerticalPodAutoscaler
from vpa.objects.pods import Pod
from vpa.scopes import all_entries, for_pod, node_of

NODES = {"big-1": {"size": "big"}, "small-1": {"size": "small"}, "empty-1": {"size": ""}, "bare-1": {}}


def vpa(scope: str = "size", kind: str = "DaemonSet", **status: Any) -> VerticalPodAutoscaler:
    """A VPA with one group for each value of its scope, whose CPU target tells it."""
    groups = {"big": "3", "small": "2", "": "1", "__absent__": "4", "bare-1": "5"}
    found = {
        "groups": [
            {
                "scopeValue": value,
                "containerRecommendations": [{"containerName": "c", "target": {"cpu": cpu}}],
            }
            for value, cpu in groups.items()
        ]
    }
    spec = {"targetRef": {"kind": kind, "name": "d"}, "scope": scope}
    return meta.convert(
        {"metadata": {"name": "v"}, "spec": spec, "status": status or found}, VerticalPodAutoscaler
    )


def pod(node: str = "", *, made_for: str = "") -> Pod:
    spec: dict[str, Any] = {"nodeName": node}
    if made_for:
        terms = [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": [made_for]}]}]
        required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
        spec["affinity"] = {"nodeAffinity": required}
    return meta.convert({"metadata": {"name": "p"}, "spec": spec}, Pod)


def target(seen: VerticalPodAutoscaler) -> str | None:
    """The CPU target of its only container."""
    assert seen.status is not None
    if seen.status.recommendation is None:
        return None
    (entry,) = seen.status.recommendation.container_recommendations or []
    return str((entry.target or {})["cpu"])


@pytest.mark.parametrize(
    ("node", "cpu"), [("big-1", "3"), ("small-1", "2"), ("empty-1", "1"), ("bare-1", "4")]
)
def test_a_pod_gets_what_is_recommended_for_nodes_like_its_own(node: str, cpu: str) -> None:
    assert target(for_pod(vpa(), pod(node), NODES)) == cpu


def test_a_new_pod_of_a_daemon_set_is_known_by_the_node_that_it_is_made_for() -> None:
    assert node_of(pod(made_for="big-1")) == "big-1"
    assert target(for_pod(vpa(), pod(made_for="big-1"), NODES)) == "3"


def test_host_names_split_without_any_knowledge_of_nodes() -> None:
    assert target(for_pod(vpa("kubernetes.io/hostname"), pod("bare-1"), {})) == "5"


@pytest.mark.parametrize("which", [pod(), pod("unknown")], ids=["no node", "an unknown node"])
def test_without_a_known_node_nothing_is_recommended(which: Pod) -> None:
    assert target(for_pod(vpa(), which, NODES)) is None


def test_without_a_group_for_the_node_nothing_is_recommended() -> None:
    assert target(for_pod(vpa("other", groups=[{"scopeValue": "x"}]), pod("big-1"), NODES)) is None
    entries = [{"containerName": "c", "target": {"cpu": "9"}}]
    whole = vpa(recommendation={"containerRecommendations": entries})
    assert target(for_pod(whole, pod("big-1"), NODES)) is None


def test_the_first_form_of_groups_is_understood() -> None:
    entries = [
        {"containerName": "c", "scope": f"size={value}", "target": {"cpu": cpu}}
        for value, cpu in (("big", "7"), ("small", "6"))
    ]
    early = vpa(recommendation={"containerRecommendations": entries})
    assert target(for_pod(early, pod("big-1"), NODES)) == "7"
    assert target(for_pod(early, pod("small-1"), NODES)) == "6"


def test_a_scope_splits_daemon_sets_only() -> None:
    entries = [{"containerName": "c", "target": {"cpu": "9"}}]
    whole = vpa(kind="Deployment", recommendation={"containerRecommendations": entries})
    assert for_pod(whole, pod("big-1"), NODES) is whole


def test_all_groups_together_name_every_recommended_container() -> None:
    assert len(all_entries(vpa())) == 5
