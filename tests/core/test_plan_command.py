"""``vpa plan``: the contract of its input, output and exit status."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from vpa.cli.__main__ import main

Objects = list[dict[str, Any]]
NOW = "2026-08-01T00:00:00Z"


def vpa(name: str = "v", *, mode: str = "Recreate", target: str = "web", **metadata: Any) -> dict[str, Any]:
    return {
        "apiVersion": "autoscaling.k8s.io/v1",
        "kind": "VerticalPodAutoscaler",
        "metadata": {"name": name, "namespace": "n", **metadata},
        "spec": {
            "targetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": target},
            "updatePolicy": {"updateMode": mode},
        },
        "status": {
            "recommendation": {
                "containerRecommendations": [
                    {
                        "containerName": "main",
                        "target": {"cpu": "250m", "memory": "200Mi"},
                        "lowerBound": {"cpu": "200m", "memory": "150Mi"},
                        "upperBound": {"cpu": "1", "memory": "1Gi"},
                    }
                ]
            }
        },
    }


def deployment(name: str = "web", replicas: int = 4) -> dict[str, Any]:
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name, "namespace": "n"},
        "spec": {"replicas": replicas, "selector": {"matchLabels": {"app": name}}},
    }


def pod(name: str, app: str = "web", owner: str | None = None, cpu: str = "100m") -> dict[str, Any]:
    owners = [
        {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": owner or f"{app}-5d9", "controller": True}
    ]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": "n",
            "uid": name,
            "labels": {"app": app},
            "ownerReferences": owners,
        },
        "spec": {
            "containers": [
                {"name": "main", "resources": {"requests": {"cpu": cpu, "memory": "100Mi"}}},
            ]
        },
        "status": {"phase": "Running", "startTime": "2026-07-01T00:00:00Z"},
    }


class Command:
    """Runs ``vpa plan`` on objects written to a file."""

    def __init__(
        self, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        self.folder, self.monkeypatch, self.capsys = folder, monkeypatch, capsys
        self.status = 0
        self.errors = ""

    def text(self, *args: str) -> str:
        self.monkeypatch.setattr(sys, "argv", ["vpa", "plan", *args])
        try:
            main()
            self.status = 0
        except SystemExit as end:
            self.status = end.code if isinstance(end.code, int) else 0
        captured = self.capsys.readouterr()
        self.errors = captured.err
        return captured.out

    def rows(self, objects: Objects, *args: str) -> list[dict[str, Any]]:
        path = self.folder / "objects.yaml"
        path.write_text(yaml.safe_dump_all(objects))
        out = self.text("-f", str(path), "-o", "json", "--now", NOW, *args)
        assert self.status == 0, self.errors
        rows: list[dict[str, Any]] = json.loads(out)
        return rows


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    return Command(tmp_path, monkeypatch, capsys)


def brief(rows: list[dict[str, Any]]) -> list[tuple[str, str, str]]:
    return [(row["name"], row["action"], row["reason"]) for row in rows]


def test_acted_pods_come_first_in_order_of_execution_and_the_others_as_given(command: Command) -> None:
    pods = [pod("a"), pod("b"), pod("c", cpu="10m"), pod("d")]
    rows = command.rows([vpa(), deployment(), *pods])
    assert brief(rows) == [
        ("c", "evict", "OutsideBounds"),
        ("a", "evict", "OutsideBounds"),
        ("b", "none", "BudgetSpent"),
        ("d", "none", "BudgetSpent"),
    ]


def test_a_row_has_exactly_the_promised_keys(command: Command) -> None:
    (row, *_) = command.rows(
        [vpa(mode="InPlaceOrRecreate"), deployment(), pod("a"), pod("b"), pod("c"), pod("d")]
    )
    message = row.pop("message")
    assert "cpu 100m → 250m" in message
    assert row == {
        "namespace": "n",
        "name": "a",
        "vpa": "v",
        "action": "resize",
        "reason": "OutsideBounds",
        "priority": {"scaleUp": True, "resourceDiff": 2.5, "outsideRecommendedRange": True},
        "patch": [
            {"op": "add", "path": "/spec/containers/0/resources/requests/cpu", "value": "250m"},
            {"op": "add", "path": "/spec/containers/0/resources/requests/memory", "value": "200Mi"},
        ],
    }


def test_vpas_act_in_the_order_of_their_names(command: Command) -> None:
    objects = [vpa("z", target="one"), vpa("a", target="two"), deployment("one"), deployment("two")]
    pods = [pod(f"{app}-{index}", app) for app in ("one", "two") for index in range(4)]
    rows = command.rows([*objects, *pods])
    assert [row["vpa"] for row in rows[:4]] == ["a", "a", "z", "z"]


def test_without_in_place_resize_the_pod_is_evicted(command: Command) -> None:
    objects = [vpa(mode="InPlaceOrRecreate"), deployment(), *(pod(name) for name in "abcd")]
    assert command.rows(objects)[0]["action"] == "resize"
    row = command.rows(objects, "--no-in-place")[0]
    assert (row["action"], row["reason"], row["patch"]) == ("evict", "ResizeFellBack", None)


def test_pods_without_a_vpa_say_what_is_missing(command: Command) -> None:
    bare = pod("bare")
    bare["metadata"]["ownerReferences"] = []
    static = pod("static")
    static["metadata"]["ownerReferences"][0]["kind"] = "Node"
    other = pod("other", "other")
    lost = pod("lost", "lost")
    rows = command.rows([vpa(), deployment(), deployment("other"), bare, static, other, lost])
    assert brief(rows) == [
        ("bare", "none", "NoController"),
        ("static", "none", "NoController"),
        ("other", "none", "NoVPA"),
        ("lost", "none", "NoVPA"),
    ]
    assert all(row["vpa"] is None and row["priority"] is None and row["patch"] is None for row in rows)
    assert "ReplicaSet lost-5d9" in rows[3]["message"]


def test_the_replica_set_among_the_objects_says_how_many_pods_it_wants(command: Command) -> None:
    replica_set = {
        "apiVersion": "apps/v1",
        "kind": "ReplicaSet",
        "metadata": {
            "name": "web-5d9",
            "namespace": "n",
            "ownerReferences": [{"kind": "Deployment", "name": "web", "controller": True}],
        },
        "spec": {"replicas": 10, "selector": {"matchLabels": {"app": "web"}}},
    }
    rows = command.rows([vpa(), deployment(), replica_set, *(pod(name) for name in "abcd")])
    assert {row["reason"] for row in rows} == {"BudgetSpent"}, "six of ten are missing already"


def test_flags_of_the_updater_are_accepted_under_their_own_names(command: Command) -> None:
    objects = [vpa(), deployment(replicas=2), pod("a"), pod("b")]
    assert len([row for row in command.rows(objects) if row["action"] == "evict"]) == 1
    rows = command.rows(objects, "--eviction_tolerance=1.0")
    assert len([row for row in rows if row["action"] == "evict"]) == 2
    assert {row["reason"] for row in command.rows(objects, "--min-replicas", "3")} == {"TooFewReplicas"}
    rows = command.rows(objects, "--vpa-object-namespace=elsewhere")
    assert {row["reason"] for row in rows} == {"NoVPA"}


def test_the_oldest_of_several_vpas_decides(command: Command) -> None:
    old = vpa("old", mode="Initial", creationTimestamp="2026-01-01T00:00:00Z")
    new = vpa("new", creationTimestamp="2026-02-01T00:00:00Z")
    rows = command.rows([new, old, deployment(), pod("a"), pod("b")])
    assert [(row["vpa"], row["reason"]) for row in rows] == [("old", "Conflict")] * 2
    rows = command.rows([new, old, deployment(), pod("a"), pod("b")], "--compatibility=upstream")
    assert {row["vpa"] for row in rows} == {"new"}, "upstream's updater overlooks mode Initial"


def test_a_vpa_in_mode_off_is_named_with_the_distance_of_its_pods(command: Command) -> None:
    (row,) = command.rows([vpa(mode="Off"), deployment(), pod("a")])
    assert (row["vpa"], row["reason"]) == ("v", "ModeOff")
    assert row["priority"]["resourceDiff"] == 2.5


def test_nodes_budgets_and_quotas_count_only_if_they_are_among_the_objects(command: Command) -> None:
    objects: Objects = [vpa(), deployment(), pod("a"), pod("b")]
    assert command.rows(objects)[0]["action"] == "none", "two of four are missing"
    objects += [pod("c"), pod("d")]
    assert command.rows(objects)[0]["action"] == "evict"
    node = {
        "kind": "Node",
        "metadata": {"name": "n1"},
        "status": {"allocatable": {"cpu": "200m", "memory": "1Gi"}},
    }
    assert {row["reason"] for row in command.rows([*objects, node])} == {"NoNodeFits"}
    quota = {
        "kind": "ResourceQuota",
        "metadata": {"name": "q", "namespace": "n"},
        "spec": {"hard": {"requests.cpu": "500m"}},
    }
    assert {row["reason"] for row in command.rows([*objects, quota])} == {"QuotaExceeded"}
    budget = {
        "kind": "PodDisruptionBudget",
        "metadata": {"name": "b", "namespace": "n"},
        "spec": {"selector": {"matchLabels": {"app": "web"}}, "minAvailable": "75%"},
    }
    rows = command.rows([*objects, budget])
    assert [row["reason"] for row in rows].count("OutsideBounds") == 1
    assert [row["reason"] for row in rows].count("DisruptionBudgetBlocked") == 3


def test_the_table_says_for_each_pod_what_and_why_within_eighty_columns(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    path = tmp_path / "objects.json"
    path.write_text(json.dumps({"kind": "List", "items": [vpa(), deployment(), *map(pod, "abcd")]}))
    out = command.text("-f", str(path), "--now", NOW)
    assert command.status == 0
    assert "evict   n/a  OutsideBounds  (VPA v)" in out
    assert "4 pods: 0 resized, 2 evicted, 2 left alone" in out
    assert max(map(len, out.splitlines())) <= 80


@pytest.mark.parametrize(
    ("args", "status", "said"),
    [
        (["-f", "missing.yaml"], 1, "missing.yaml: cannot be read"),
        (["-f", "{file}", "--now", "yesterday"], 2, "yesterday is neither RFC 3339"),
        (["-f", "{file}", "--now", "1e300"], 2, "1e300 is neither RFC 3339"),
        (["-f", "{file}", "-o", "xml"], 2, "use table or json"),
        (["-f", "{file}", "--bogus"], 2, "unknown flag: --bogus"),
        ([], 2, "--filename"),
    ],
)
def test_bad_input_ends_with_its_exit_status_and_one_sentence(
    command: Command, tmp_path: Path, args: list[str], status: int, said: str
) -> None:
    path = tmp_path / "objects.yaml"
    path.write_text(yaml.safe_dump(vpa()))
    out = command.text(*(arg.replace("{file}", str(path)) for arg in args))
    assert command.status == status
    assert said in command.errors
    assert out == ""


def test_now_may_be_seconds_and_several_files_are_read(command: Command, tmp_path: Path) -> None:
    first, second = tmp_path / "a.yaml", tmp_path / "b.yaml"
    first.write_text(yaml.safe_dump(vpa()))
    second.write_text(yaml.safe_dump_all([deployment(), pod("a")]))
    out = command.text("-f", str(first), "-f", str(second), "-o", "json", "--now", "1785542400")
    assert json.loads(out)[0]["name"] == "a"
