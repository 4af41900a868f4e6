"""Which VPA a new pod follows, from copies and, where they do not tell it, from the API server."""

from __future__ import annotations

import asyncio
import json
from typing import Any, cast

import pytest

from admission.choosing import Chooser
from admission.mirrors import Mirrors
from tests.core.pods import SAFE, Data
from vpa.cluster.connection import Connection
from vpa.cluster.errors import Forbidden, NotFound
from vpa.cluster.workloads import OwnerKey, Record
from vpa.gates import FeatureGates
from vpa.objects import meta
from vpa.objects.autoscalers import VerticalPodAutoscaler
from vpa.objects.meta import LabelSelector
from vpa.objects.pods import Pod
from vpa.reasons import Reason
from vpa.settings import Selection

WEB = OwnerKey("shop", "Deployment", "web", "apps/v1")
SETS = "/apis/apps/v1/namespaces/shop/replicasets"


def uid(number: int) -> str:
    return f"6c1b1d30-8d5c-4f4e-9c39-{number:012}"


def owner(kind: str, name: str, number: int = 0) -> Data:
    return {"apiVersion": "apps/v1", "kind": kind, "name": name, "uid": uid(number), "controller": True}


def a_pod(number: int, labels: Data | None = None) -> Pod:
    """A pod of ReplicaSet *number*."""
    metadata = {
        "labels": labels or {"app": "web"},
        "ownerReferences": [owner("ReplicaSet", f"web-{number}", number)],
    }
    return meta.convert({"metadata": metadata, "spec": {}}, Pod)


def a_set(number: int) -> Data:
    return {
        "metadata": {
            "name": f"web-{number}",
            "namespace": "shop",
            "uid": uid(number),
            "ownerReferences": [owner("Deployment", "web")],
        },
        "spec": {"selector": {"matchLabels": {"app": "web"}}},
    }


class Server:
    """Answers from *objects* by path; every question is in *asked*."""

    def __init__(self, objects: dict[str, Data | Exception]) -> None:
        self.objects = objects
        self.asked: list[str] = []

    async def request(self, method: str, path: str, **options: Any) -> bytes:
        self.asked.append(path)
        await asyncio.sleep(0)
        found = self.objects.get(path, NotFound("none", method=method, path=path, code=404))
        if isinstance(found, Exception):
            raise found
        return json.dumps(found).encode()


class Copy(dict[tuple[str, str], Record]):
    synced = True


class Scene:
    """A chooser in a namespace with the Deployment ``web`` and its VPA."""

    def __init__(self, objects: dict[str, Data | Exception] | None = None) -> None:
        self.server = Server(objects or {})
        connection = cast(Connection, self.server)
        self.mirrors = Mirrors(connection, selection=Selection(), rules=SAFE)
        record = Record(
            key=WEB,
            uid=uid(0),
            owner=None,
            selector=LabelSelector(match_labels={"app": "web"}),
            replicas=None,
            containers=(),
        )
        copies: dict[str, Any] = {"Deployment": Copy({("shop", "web"): record})}
        self.mirrors.controllers.update(copies)
        self.mirrors.between["ReplicaSet"] = cast(Any, Copy())
        self.mirrors.index.changed(None, autoscaler())
        self.questions = 0
        self.chooser = Chooser(
            self.mirrors,
            connection,
            rules=SAFE,
            gates=FeatureGates(),
            default_mode="Recreate",
            asked=self._asked,
        )

    def _asked(self) -> None:
        self.questions += 1

    async def names(self, *pods: Pod, patience: float = 5.0) -> list[str | Reason]:
        """What becomes of pods that come at once: the name of their VPA, or why they have none."""
        choices = [self.chooser.choose(pod, "shop", patience=patience) for pod in pods]
        return [
            choice.vpa.metadata.name if choice.vpa else choice.refusal.reason if choice.refusal else ""
            for choice in await asyncio.gather(*choices)
        ]


def autoscaler(name: str = "v") -> VerticalPodAutoscaler:
    ref = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"}
    data = {"metadata": {"name": name, "namespace": "shop"}, "spec": {"targetRef": ref}}
    return meta.convert(data, VerticalPodAutoscaler)


async def test_a_pod_whose_owners_are_known_is_decided_without_a_question() -> None:
    scene = Scene()
    scene.mirrors.lineage.put(uid(1), WEB)
    known = scene.chooser.known(a_pod(1), "shop")
    assert known is not None
    assert known.vpa is not None
    assert await scene.names(a_pod(1), a_pod(1, {"app": "other"})) == ["v", Reason.NO_VPA]
    assert scene.server.asked == []


async def test_a_replica_set_that_is_not_known_yet_is_asked_for_once() -> None:
    scene = Scene({f"{SETS}/web-1": a_set(1)})
    assert scene.chooser.known(a_pod(1), "shop") is None
    assert await scene.names(*[a_pod(1)] * 5) == ["v"] * 5
    assert scene.server.asked == [f"{SETS}/web-1"]
    assert scene.chooser.known(a_pod(1), "shop") is not None


async def test_the_first_pods_of_a_namespace_that_was_passed_by_share_one_list() -> None:
    items = {"metadata": {}, "items": [a_set(number) for number in range(1, 30)]}
    scene = Scene({SETS: items})
    scene.mirrors.latecomers.add("shop", ["ReplicaSet"])
    assert await scene.names(*[a_pod(number) for number in range(1, 30)]) == ["v"] * 29
    assert scene.server.asked == [SETS]
    assert not scene.mirrors.latecomers.has("shop", "ReplicaSet")
    assert scene.questions == 29


async def test_where_the_list_fails_single_questions_do() -> None:
    refused = Forbidden("no", method="GET", path=SETS, code=403)
    scene = Scene({SETS: refused, f"{SETS}/web-1": a_set(1), f"{SETS}/web-2": a_set(2)})
    scene.mirrors.latecomers.add("shop", ["ReplicaSet"])
    assert await scene.names(a_pod(1), a_pod(2)) == ["v", "v"]
    assert scene.server.asked == [SETS, f"{SETS}/web-1", f"{SETS}/web-2"]
    assert scene.mirrors.latecomers.has("shop", "ReplicaSet")


@pytest.mark.parametrize(
    ("old", "late"), [((), True), (("elsewhere",), True), (("shop",), False)], ids=["none", "other", "same"]
)
def test_only_the_first_vpa_of_a_namespace_makes_it_late(old: tuple[str, ...], late: bool) -> None:
    mirrors = Mirrors(cast(Connection, Server({})), selection=Selection(), rules=SAFE)
    for namespace in old:
        one = autoscaler("old")
        moved = meta.convert(
            {**meta.to_builtins(one), "metadata": {"name": "old", "namespace": namespace}},
            VerticalPodAutoscaler,
        )
        mirrors._vpa_changed(None, moved)
    mirrors.between["ReplicaSet"] = cast(Any, Copy())  # from here on they are watched
    mirrors._vpa_changed(None, autoscaler())
    assert mirrors.latecomers.has("shop", "ReplicaSet") is late


async def test_an_owner_that_is_gone_or_does_not_come_in_time_is_a_doubt() -> None:
    scene = Scene()
    assert await scene.names(a_pod(1)) == [Reason.OWNER_UNKNOWN]

    async def never(method: str, path: str, **options: Any) -> bytes:
        await asyncio.Event().wait()
        return b""

    scene.server.request = never  # type: ignore[method-assign]
    assert await scene.names(a_pod(2), patience=0.01) == [Reason.OWNER_UNKNOWN]
