"""``vpa history --plan``: what would be asked, without asking."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from vpa.cli.__main__ import main

NOW = "2026-08-01T10:30:00Z"


def workload(name: str = "web", namespace: str = "n", replicas: int = 2) -> dict[str, Any]:
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": {"app": name}},
            "template": {"spec": {"containers": [{"name": "main"}, {"name": "side"}]}},
        },
    }


def vpa(target: str = "web", namespace: str = "n") -> dict[str, Any]:
    return {
        "apiVersion": "autoscaling.k8s.io/v1",
        "kind": "VerticalPodAutoscaler",
        "metadata": {"name": target, "namespace": namespace},
        "spec": {"targetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": target}},
    }


def run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, objects: list[dict[str, Any]], *args: str
) -> tuple[int, Path]:
    file = tmp_path / "objects.yaml"
    file.write_text(yaml.safe_dump_all(objects))
    monkeypatch.setattr(sys, "argv", ["vpa", "history", "-f", str(file), f"--now={NOW}", *args])
    with pytest.raises(SystemExit) as ended:
        main()
    return int(ended.value.code or 0), file


@pytest.fixture
def plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    def planned(objects: list[dict[str, Any]], *args: str) -> list[dict[str, Any]]:
        code, _ = run(tmp_path, monkeypatch, objects, "--plan", "-o", "json", *args)
        assert code == 0
        rows: list[dict[str, Any]] = json.loads(capsys.readouterr().out)
        return rows

    return planned


def test_the_plan_has_every_query_with_its_points_and_bytes(plan: Any) -> None:
    rows = plan([vpa(), workload()], "--history-preset=kube-prometheus")
    assert [(row["start"], row["end"], row["points"]) for row in rows] == [
        ("2026-07-31T01:00:00Z", "2026-08-01T10:00:00Z", 34),
        ("2026-07-31T01:00:00Z", "2026-08-01T10:00:00Z", 34),
        ("2026-07-24T11:00:00Z", "2026-07-31T00:00:00Z", 158),
        ("2026-07-24T11:00:00Z", "2026-07-31T00:00:00Z", 158),
    ]
    assert rows[0]["query"] == (
        "max by (namespace, pod, container) (sum by (namespace, pod, container, job, metrics_path) "
        "(max by (namespace, pod, container, job, metrics_path, cpu, id) "
        '(rate(container_cpu_usage_seconds_total{container!="",container!="POD",job="kubelet",'
        'metrics_path="/metrics/cadvisor",namespace="n",pod!=""}[1h]))))'
    )
    assert all(row["bytes"] > row["samples"] * 30 > 0 for row in rows)


def test_the_flags_of_the_recommender_count(plan: Any) -> None:
    rows = plan([vpa()], "--history-length=1d", "--history-resolution=15m", "--compatibility=upstream")
    assert {row["step"] for row in rows} == {900}
    assert sum(row["points"] for row in rows) == 2 * 96
    assert any('name!=""' in row["query"] and "max_over_time" not in row["query"] for row in rows)


def test_without_vpas_all_workloads_are_meant(plan: Any) -> None:
    rows = plan([workload("web"), workload("api", "other")])
    assert 'namespace=~"n|other"' in rows[0]["query"]


def test_only_the_handled_namespaces_are_asked_for(plan: Any) -> None:
    rows = plan([vpa(), vpa("api", "other")], "--vpa-object-namespace=other")
    assert 'namespace="other"' in rows[0]["query"]


def test_the_table_ends_in_a_sum(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _ = run(tmp_path, monkeypatch, [vpa(), workload()], "--plan", "--history-resolution=5m")
    assert code == 0
    output = capsys.readouterr().out
    assert "queries, 18432 samples, about 0.6 MB, newest days first" in " ".join(output.split())
    assert "keeps its newest 1024" in " ".join(output.split())


def test_nothing_to_ask_for_is_bad_input(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _ = run(tmp_path, monkeypatch, [{"kind": "Node", "metadata": {"name": "x"}}], "--plan")
    assert code == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == "vpa: there is neither a VPA with a target nor a workload among the objects\n"


@pytest.mark.parametrize(
    "args",
    [
        ("-o", "xml"),
        ("--plan", "-o", "usage"),
        ("--now=yesterday",),
        ("--history-length=x",),
        ("stray",),
        ("--history-resolution=1500ms",),
        ("--prometheus-address=localhost:9090",),
        ("--no-such-flag",),
    ],
)
def test_wrong_usage_has_exit_status_two(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, args: tuple[str, ...]
) -> None:
    code, _ = run(tmp_path, monkeypatch, [vpa()], *args)
    assert code == 2
