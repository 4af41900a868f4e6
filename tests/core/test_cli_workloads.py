"""Whose a pod is, offline: where no VPA is found, what stands in the way is named."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from vpa.cli.objects import read
from vpa.cli.workloads import Workloads
from vpa.objects.pods import Pod
from vpa.reasons import Reason

Data = dict[str, Any]


def made(kind: str, name: str, owner: tuple[str, str] | None = None, **spec: Any) -> Data:
    metadata: Data = {"name": name, "labels": {"app": "x"}}
    if owner is not None:
        metadata["ownerReferences"] = [{"kind": owner[0], "name": owner[1], "controller": True}]
    return {"kind": kind, "metadata": metadata, "spec": spec}


def vpa(kind: str, name: str) -> Data:
    return made("VerticalPodAutoscaler", "v", targetRef={"kind": kind, "name": name})


APP: Data = {"selector": {"matchLabels": {"app": "x"}}}
CRON = made("CronJob", "c", jobTemplate={"spec": {"template": {"spec": {}}}})


@pytest.mark.parametrize(
    ("objects", "owner", "reason", "words"),
    [
        ([], None, Reason.NO_CONTROLLER, "create it through a Deployment"),
        ([], ("Node", "n"), Reason.NO_CONTROLLER, "static pod"),
        ([], ("Job", "j"), Reason.NO_VPA, "Job j, which controls the pod, is not among the objects"),
        (
            [made("ReplicaSet", "d-1", ("Deployment", "d"), **APP)],
            ("ReplicaSet", "d-1"),
            Reason.NO_VPA,
            "Deployment d, which controls the pod, is not among the objects",
        ),
        (
            [made("StatefulSet", "s", **APP)],
            ("StatefulSet", "s"),
            Reason.NO_VPA,
            "no VPA targets StatefulSet s",
        ),
        ([], ("Rollout", "r"), Reason.NO_VPA, "no VPA targets Rollout r"),
        (
            [CRON, made("Job", "j", ("CronJob", "c"), **APP), vpa("CronJob", "c")],
            ("Job", "j"),
            Reason.NO_VPA,
            "VPA v targets CronJob c, whose selector does not match the labels of the pod",
        ),
    ],
)
def test_where_no_vpa_is_found_what_stands_in_the_way_is_named(
    tmp_path: Path, objects: list[Data], owner: tuple[str, str] | None, reason: Reason, words: str
) -> None:
    path = tmp_path / "objects.yaml"
    path.write_text(yaml.safe_dump_all([*objects, made("Pod", "p", owner)]))
    found = read([str(path)])
    refusal = Workloads(found).no_vpa(found.of(Pod)[0])
    assert refusal.reason is reason
    assert words in refusal.message
