"""``vpa recommend`` for a DaemonSet that a node label splits, and other objects that are not quite plain."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.core.recommend_kit import NOON, Shell, autoscaler, conditions, containers, deployment, line, pod

Data = dict[str, Any]
USE = {"n1": 0.1, "n2": 1.0, "n3": 4.0}


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    return Shell(tmp_path)


def daemon_set() -> Data:
    return deployment("agent") | {"kind": "DaemonSet"}


def daemon(node: str) -> Data:
    made = pod(f"agent-{node}", "agent-x")
    made["metadata"]["ownerReferences"][0] |= {"kind": "DaemonSet", "name": "agent"}
    made["spec"]["nodeName"] = node
    return made


def node(name: str, **labels: str) -> Data:
    return {"kind": "Node", "metadata": {"name": name, "labels": labels}}


NODES = [node("n1", zone="a"), node("n2", zone=""), node("n3")]
DAEMONS = [daemon_set(), *map(daemon, USE)]


def use(shell: Shell) -> str:
    return shell.usage(
        *(
            line(time=NOON + 60 * i, pod=f"agent-{name}", cpu=cores)
            for i in range(100)
            for name, cores in USE.items()
        )
    )


def scoped(name: str = "agent", scope: str = "zone") -> Data:
    return autoscaler(name, "DaemonSet", "agent", scope=scope)


def targets(status: Data) -> dict[str, list[str]]:
    return {
        group["scopeValue"]: [one["target"]["cpu"] for one in group["containerRecommendations"]]
        for group in status["groups"]
    }


def test_each_value_of_the_node_label_has_its_own_recommendation(shell: Shell) -> None:
    objects = shell.objects(*DAEMONS, *NODES, scoped())
    (status,) = shell.statuses("-f", objects, "--usage", use(shell))
    assert targets(status) == {"": ["1168m"], "__absent__": ["4742m"], "a": ["126m"]}
    assert status["recommendation"] == {}
    assert conditions(status)["RecommendationProvided"] == "True"


def test_host_names_split_without_any_node_among_the_objects(shell: Shell) -> None:
    objects = shell.objects(*DAEMONS, scoped(scope="kubernetes.io/hostname"))
    (status,) = shell.statuses("-f", objects, "--usage", use(shell))
    assert targets(status) == {"n1": ["126m"], "n2": ["1168m"], "n3": ["4742m"]}


def test_a_vpa_without_a_scope_sees_all_parts_and_history_of_the_past_is_every_parts(shell: Shell) -> None:
    objects = shell.objects(*DAEMONS, *NODES, scoped(), autoscaler("whole", "DaemonSet", "agent"))
    past = line(pod="gone", memory=50 * 10**9, owner={"kind": "DaemonSet", "name": "agent"})
    usage = shell.usage(past, *(line(pod=f"agent-{name}", memory=10**9) for name in USE))
    split, whole = shell.statuses("-f", objects, "--usage", usage)
    seen = [containers({"recommendation": group}) for group in split["groups"]]
    assert {one["app"]["target"]["memory"] for one in [*seen, containers(whole)]} == {"59653604028"}


def test_without_nodes_the_groups_are_not_known_and_that_is_said_once(shell: Shell) -> None:
    objects = shell.objects(*DAEMONS, scoped(), autoscaler("whole", "DaemonSet", "agent"))
    result = shell.run("-f", objects, "--usage", use(shell), "-o", "json")
    assert result.stderr.count("is split by the node label zone") == 1
    split, whole = shell.statuses("-f", objects, "--usage", use(shell))
    assert "groups" not in split
    assert containers(whole)["app"]["target"]["cpu"] == "4742m"


def test_the_table_and_the_steps_name_the_value_of_each_group(shell: Shell) -> None:
    objects = shell.objects(*DAEMONS, *NODES, scoped())
    result = shell.run("-f", objects, "--usage", use(shell), "--explain")
    assert result.returncode == 0
    for words in ("zone=a", "zone=__absent__", "4742m", "126m"):
        assert words in result.stdout
    listed = shell.run("-f", objects, "--usage", use(shell), "-o", "csv")
    assert "shop,agent,DaemonSet,agent [zone=a],app,cpu,,122m,126m" in listed.stdout


def test_a_null_is_the_same_as_nothing(shell: Shell) -> None:
    empty = autoscaler() | {"status": None}
    empty["spec"]["updatePolicy"] = None
    running = pod() | {"status": None}
    running["metadata"]["creationTimestamp"] = None
    (status,) = shell.statuses("-f", shell.objects(deployment(), running, empty))
    assert containers(status)["app"]["target"]["cpu"] == "25m"


def test_texts_of_others_are_printed_as_they_are(shell: Shell) -> None:
    told = autoscaler()
    told["status"] = {"conditions": [{"type": "Theirs", "status": "True", "message": "[/b] at [red]"}]}
    result = shell.run("-f", shell.objects(deployment(), pod(), told))
    assert result.returncode == 0
    assert "Theirs: [/b] at [red]" in result.stdout


def test_a_step_without_evidence_shows_no_number(shell: Shell) -> None:
    result = shell.run("-f", shell.objects(deployment(), pod(), autoscaler()), "--explain")
    assert result.returncode == 0
    assert "922337203685" not in result.stdout
    assert "9.223e+18" not in result.stdout
