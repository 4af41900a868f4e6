"""``vpa admit``: patches for pods in files."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import jsonpatch
import pytest
import yaml
from typer.testing import CliRunner

import vpa.cli.__main__  # noqa: F401  (registers the commands)
from tests.core import pods
from tests.core.pods import Data, container, limit_range, pod, sizes
from vpa.cli.app import app
from vpa.cli.objects import InputError

DEPLOYMENT: Data = {
    "apiVersion": "apps/v1",
    "kind": "Deployment",
    "metadata": {"name": "web", "namespace": "n"},
    "spec": {"selector": {"matchLabels": {"app": "web"}}},
}


def owned(data: Data, name: str = "web-1", **metadata: Any) -> Data:
    """A pod of a ReplicaSet that the Deployment made."""
    return {
        "kind": "Pod",
        **data,
        "metadata": {
            **data["metadata"],
            "name": name,
            "labels": {"app": "web"},
            "ownerReferences": [owner("ReplicaSet", "web-5f4d")],
            **metadata,
        },
    }


def owner(kind: str, name: str) -> Data:
    return {"kind": kind, "name": name, "controller": True}


def targeting(data: Data, **metadata: Any) -> Data:
    spec = {**data["spec"], "targetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"}}
    metadata = {**data["metadata"], **metadata}
    return {"kind": "VerticalPodAutoscaler", **data, "metadata": metadata, "spec": spec}


def run(tmp_path: Path, *objects: Data, arguments: tuple[str, ...] = ()) -> list[Data]:
    path = tmp_path / "objects.yaml"
    path.write_text(yaml.safe_dump_all(objects), encoding="utf-8")
    result = CliRunner().invoke(app, ["admit", "-f", str(path), "-o", "json", *arguments])
    assert result.exit_code == 0, result.output
    found: list[Data] = json.loads(result.stdout)
    return found


def test_a_pod_gets_the_patch_of_its_deployments_vpa(tmp_path: Path) -> None:
    main = owned(pod(container("main", {"cpu": "100m"}, {"cpu": "200m"})))
    (row,) = run(tmp_path, DEPLOYMENT, targeting(pods.vpa({"main": {"cpu": "300m"}})), main)
    assert {key: row[key] for key in ("namespace", "name", "vpa", "reason")} == {
        "namespace": "n",
        "name": "web-1",
        "vpa": "v",
        "reason": None,
    }
    assert [operation["path"] for operation in row["patch"]] == [
        "/metadata/annotations",
        "/spec/containers/0/resources/requests/cpu",
        "/spec/containers/0/resources/limits/cpu",
        "/metadata/annotations/vpaUpdates",
        "/metadata/annotations/vpaObservedContainers",
    ]
    assert sizes(jsonpatch.apply_patch(main, row["patch"])) == [({"cpu": "300m"}, {"cpu": "600m"})]


def test_a_running_pod_is_judged_as_if_it_were_created_now(tmp_path: Path) -> None:
    main = owned(
        pod(container("main", {"cpu": "100m"}), nodeName="there"),
        annotations={
            "vpaUpdates": "Pod resources updated by v: …",
            "vpaObservedContainers": "main",
            "vpaInPlaceUpdated": "true",
            "vpaCpuStartupBoost/main": "{}",
        },
    )
    main["status"] = {"containerStatuses": [{"name": "main", "resources": {"requests": {"cpu": "5"}}}]}
    (row,) = run(tmp_path, DEPLOYMENT, targeting(pods.vpa({"main": {"cpu": "300m"}})), main)
    assert row["patch"][0] == {"op": "add", "path": "/metadata/annotations", "value": {}}
    kept = owned(pod(container("main", {"cpu": "100m"})), annotations={"team": "a", "vpaUpdates": "x"})
    (row,) = run(tmp_path, DEPLOYMENT, targeting(pods.vpa({"main": {"cpu": "300m"}})), kept)
    assert row["patch"][0]["path"] == "/spec/containers/0/resources/requests/cpu"


def test_pods_come_out_in_input_order_each_with_its_reason(tmp_path: Path) -> None:
    lonely = {"kind": "Pod", **pod(container("main"))}
    static = owned(pod(container("main")), "static")
    static["metadata"]["ownerReferences"] = [{"kind": "Node", "name": "node", "controller": True}]
    stranger = owned(pod(container("main")), "stranger")
    stranger["metadata"]["ownerReferences"] = [{"kind": "ReplicaSet", "name": "gone-1", "controller": True}]
    unlabelled = owned(pod(container("main")), "unlabelled", labels={"app": "other"})
    rows = run(
        tmp_path,
        DEPLOYMENT,
        lonely,
        static,
        stranger,
        unlabelled,
        targeting(pods.vpa({"main": {"cpu": "1"}})),
    )
    assert [(row["name"], row["reason"], row["patch"]) for row in rows] == [
        ("p", "NoController", []),
        ("static", "NoController", []),
        ("stranger", "NoVPA", []),
        ("unlabelled", "NoVPA", []),
    ]


def test_a_vpa_that_applies_nothing_is_named_with_the_reason(tmp_path: Path) -> None:
    main = owned(pod(container("main", {"cpu": "100m"})))
    off = targeting(pods.vpa({"main": {"cpu": "1"}}, updatePolicy={"updateMode": "Off"}))
    (row,) = run(tmp_path, DEPLOYMENT, off, main)
    assert (row["vpa"], row["patch"], row["reason"]) == ("v", [], "ModeOff")
    (row,) = run(tmp_path, DEPLOYMENT, targeting(pods.vpa({})), main)
    assert row["reason"] == "NoRecommendation"
    assert [operation["path"] for operation in row["patch"]] == [
        "/metadata/annotations",
        "/metadata/annotations/vpaObservedContainers",
    ]


def test_a_broken_boost_is_named_and_the_other_pods_get_their_patch(tmp_path: Path) -> None:
    broken = targeting(
        pods.vpa({"main": {"cpu": "1"}}, startupBoost={"cpu": {"type": "Bogus"}}),
        name="broken",
        namespace="m",
    )
    elsewhere = {**DEPLOYMENT, "metadata": {"name": "web", "namespace": "m"}}
    objects = (
        elsewhere,
        DEPLOYMENT,
        broken,
        targeting(pods.vpa({"main": {"cpu": "1"}})),
        owned(pod(container("main", {"cpu": "100m"})), namespace="m"),
        owned(pod(container("main", {"cpu": "100m"}))),
    )
    arguments = ("--compatibility=upstream", "--feature-gates=CPUStartupBoost=true")
    first, second = run(tmp_path, *objects, arguments=arguments)
    assert (first["vpa"], first["patch"], first["reason"]) == ("broken", [], "InvalidVPA")
    assert second["reason"] is None
    first, second = run(tmp_path, *objects, arguments=arguments[1:])
    assert first["reason"] is None
    assert "cpu" in str(first["patch"])


def test_flags_that_change_a_patch_are_taken_under_their_own_names(tmp_path: Path) -> None:
    objects = (
        DEPLOYMENT,
        targeting(pods.vpa({"main": {"cpu": "8"}})),
        owned(pod(container("main", {"cpu": "100m"}))),
        {"kind": "Node", "metadata": {"name": "node"}, "status": {"allocatable": {"cpu": "4"}}},
        {"kind": "LimitRange", **limit_range({"type": "Container", "max": {"cpu": "6"}})},
    )
    (row,) = run(tmp_path, *objects)
    assert row["patch"][1]["value"] == "6"
    (row,) = run(tmp_path, *objects, arguments=("--cap-to-node",))
    assert row["patch"][1]["value"] == "4"
    (row,) = run(tmp_path, *objects, arguments=("--ignored_vpa_object_namespaces=n",))
    assert (row["vpa"], row["reason"]) == (None, "NoVPA")


def test_a_vpa_that_would_be_refused_is_named_on_standard_error(tmp_path: Path) -> None:
    path = tmp_path / "objects.yaml"
    bad = targeting(pods.vpa({}, policies=[{"containerName": "a"}, {"containerName": "a"}]))
    path.write_text(yaml.safe_dump(bad), encoding="utf-8")
    result = CliRunner().invoke(app, ["admit", "-f", str(path)])
    assert result.exit_code == 0
    assert "VPA n/v would be refused: spec.resourcePolicy.containerPolicies[1].containerName" in result.stderr
    assert "0 pods" in result.stdout


def test_a_vpa_that_cannot_be_read_is_named_and_the_other_pods_get_their_patch(tmp_path: Path) -> None:
    broken = targeting(pods.vpa({"main": {"cpu": "much"}}), name="broken")
    broken["spec"]["targetRef"]["name"] = "db"
    other = copy.deepcopy(DEPLOYMENT)
    other["metadata"]["name"] = "db"
    main = container("main", {"cpu": "100m"})
    path = tmp_path / "objects.yaml"
    objects = (
        DEPLOYMENT,
        other,
        broken,
        targeting(pods.vpa({"main": {"cpu": "300m"}})),
        owned(pod(main)),
        owned(pod(main), "db-1", ownerReferences=[owner("Deployment", "db")]),
    )
    path.write_text(yaml.safe_dump_all(objects), encoding="utf-8")
    result = CliRunner().invoke(app, ["admit", "-f", str(path), "-o", "json"])
    assert result.exit_code == 0
    first, second = json.loads(result.stdout)
    assert (first["vpa"], first["reason"]) == ("v", None)
    assert first["patch"] != []
    assert (second["vpa"], second["reason"], second["patch"]) == (None, "InvalidVPA", [])
    assert "VPA n/broken is left out, it cannot be read: " in result.stderr


def test_a_pod_of_a_daemon_set_that_a_label_splits_gets_the_size_for_its_node(tmp_path: Path) -> None:
    split = targeting(pods.vpa({}))
    split["spec"] |= {"scope": "size", "targetRef": {"kind": "DaemonSet", "name": "agent"}}
    split["status"] = {
        "groups": [
            {"scopeValue": value, "containerRecommendations": [{"containerName": "main", "target": target}]}
            for value, target in {"big": {"cpu": "2"}, "small": {"cpu": "1"}}.items()
        ]
    }
    agent = DEPLOYMENT | {"kind": "DaemonSet", "metadata": {"name": "agent", "namespace": "n"}}
    nodes = [
        {"kind": "Node", "metadata": {"name": name, "labels": {"size": name}}}
        for name in ("big", "small", "other")
    ]
    by = {"ownerReferences": [owner("DaemonSet", "agent")]}
    agents = [
        owned(pod(container("main", {"cpu": "100m"}), nodeName=name), f"agent-{name}", **by)
        for name in ("small", "big", "other")
    ]
    small, big, other = run(tmp_path, *nodes, agent, split, *agents)
    path = "/spec/containers/0/resources/requests/cpu"
    for row, cpu in ((small, "1"), (big, "2")):
        assert [one["value"] for one in row["patch"] if one["path"] == path] == [cpu]
    assert other["reason"] == "NoRecommendation"


def test_the_table_shows_each_change_or_the_reason(tmp_path: Path) -> None:
    path = tmp_path / "objects.yaml"
    lonely = {"kind": "Pod", **pod(container("main"))}
    main = owned(pod(container("main", {"cpu": "100m"})))
    objects = (DEPLOYMENT, targeting(pods.vpa({"main": {"cpu": "300m"}})), main, lonely)
    path.write_text(yaml.safe_dump_all(objects), encoding="utf-8")
    output = CliRunner().invoke(app, ["admit", "-f", str(path)]).stdout
    assert "n/web-1  (VPA v)" in output
    assert "/spec/containers/0/resources/requests/cpu  300m" in output
    assert "NoController: the pod has no controller" in output
    assert "2 pods: 1 sized, 1 left as they are" in output


def test_bad_input_and_bad_use_are_told_apart(tmp_path: Path) -> None:
    path = tmp_path / "objects.yaml"
    path.write_text("kind: Pod\nmetadata: {name: p}\nspec: {containers: 7}\n", encoding="utf-8")
    result = CliRunner().invoke(app, ["admit", "-f", str(path)])
    assert isinstance(result.exception, InputError)
    assert CliRunner().invoke(app, ["admit", "-f", str(path), "-o", "xml"]).exit_code == 2
    assert CliRunner().invoke(app, ["admit", "-f", str(path), "--no-such-flag"]).exit_code == 2


@pytest.mark.parametrize("rules", ["safe", "upstream"])
def test_two_vpas_for_one_target_the_oldest_wins(tmp_path: Path, rules: str) -> None:
    main = owned(pod(container("main", {"cpu": "100m"})))
    old = targeting(pods.vpa({"main": {"cpu": "1"}}), name="z", creationTimestamp="2026-01-01T00:00:00Z")
    new = targeting(pods.vpa({"main": {"cpu": "2"}}), name="a", creationTimestamp="2026-02-01T00:00:00Z")
    (row,) = run(tmp_path, DEPLOYMENT, new, old, main, arguments=(f"--compatibility={rules}",))
    assert row["vpa"] == "z"
