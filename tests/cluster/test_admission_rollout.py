"""Restarts under load: not one pod is refused, or comes without its size."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field

import pytest

from tests.cluster import roles
from tests.cluster.balancer import Balancer
from tests.cluster.hooks import register
from tests.cluster.webhooks import (
    Scene,
    Webhook,
    container,
    recommendation,
    requests,
    resources,
    workload,
)
from tests.testbed.accounts import ServiceAccount
from tests.testbed.api import ApiError, Json
from tests.testbed.certificates import ADDRESS, Authority
from tests.testbed.cluster import Cluster

RATE = 50
"""Creations a second."""
TARGET = resources("250m", "200Mi")


@pytest.fixture
def account(cluster: Cluster) -> ServiceAccount:
    found = cluster.service_account("kube-system", "vpa-admission-controller")
    roles.ours("admission-controller").grant_to(found)
    return found


@dataclass
class Load:
    """What became of the creations."""

    sized: int = 0
    unsized: int = 0
    refused: list[str] = field(default_factory=list)


@contextmanager
def creations(scene: Scene, pod: Json) -> Iterator[Load]:
    """Create *pod* at `RATE` while the block runs (as a dry run, which goes the same way)."""
    load, over = Load(), threading.Event()
    path = scene.cluster.api.path("Pod", None, scene.namespace) + "?dryRun=All"

    def create() -> None:
        try:
            made = scene.cluster.api.request("POST", path, pod)
        except ApiError as error:
            load.refused.append(str(error))
            return
        if requests(made) == TARGET:
            load.sized += 1
        else:
            load.unsized += 1

    def send() -> None:
        due = time.monotonic()
        with ThreadPoolExecutor(8) as pool:
            while not over.is_set():
                pool.submit(create)
                due += 1 / RATE
                time.sleep(max(0.0, due - time.monotonic()))

    sender = threading.Thread(target=send)
    sender.start()
    try:
        yield load
    finally:
        over.set()
        sender.join()


def a_pod(scene: Scene) -> Json:
    """A pod of a ReplicaSet that a VPA targets."""
    scene.vpa("web", recommendation("app", "250m", "200Mi"), target="ReplicaSet")
    app = container("app", resources("100m", "100Mi"))
    owner = scene.create(workload("ReplicaSet", "web", [app], replicas=0))
    reference = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web", "controller": True}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "generateName": "web-",
            "labels": {"app": "web"},
            "ownerReferences": [reference | {"uid": owner["metadata"]["uid"]}],
        },
        "spec": {"containers": [app]},
    }


def test_a_rolling_restart_of_two_replicas_loses_no_call(
    cluster: Cluster, namespace: str, account: ServiceAccount
) -> None:
    scene = Scene(cluster, namespace)
    pod = a_pod(scene)
    authority = Authority(cluster.folder / "rollout")

    def replica(name: str) -> Webhook:
        return Webhook(cluster=cluster, account=account, name=name, register=False, authority=authority)

    with ExitStack() as stack:
        balancer = stack.enter_context(Balancer())
        old = [stack.enter_context(replica(f"old-{number}")) for number in (1, 2)]
        for one in old:
            balancer.add(one.port)
        # Policy Fail, so that a call that is lost shows as a refusal, not as a pod like any other.
        url = f"https://{ADDRESS}:{balancer.port}/"
        register(cluster, "rollout", authority.bundle, url, [namespace], failurePolicy="Fail")
        stack.callback(cluster.api.delete, "MutatingWebhookConfiguration", "rollout")
        with creations(scene, pod) as load:
            for number, one in enumerate(old, 1):
                new = stack.enter_context(replica(f"new-{number}"))
                balancer.add(new.port)
                stopping = threading.Thread(target=one.process.stop)
                stopping.start()
                time.sleep(1)  # so long nobody has told the Service
                balancer.remove(one.port)
                stopping.join()
                assert one.process.exit_code == 0
    assert load.refused == []
    assert load.unsized == 0
    assert load.sized > 500
    assert balancer.refused == 0


def test_new_certificates_lose_no_call(cluster: Cluster, namespace: str, account: ServiceAccount) -> None:
    scene = Scene(cluster, namespace)
    pod = a_pod(scene)
    flags = ["--reload-cert", f"--vpa-object-namespace={namespace}", "--webhook-failure-policy-fail"]
    with Webhook(cluster=cluster, account=account, name="renewed", flags=flags) as webhook:
        authority, certificate = webhook.authority, webhook.certificate
        assert authority is not None
        assert certificate is not None
        with creations(scene, pod) as load:
            for number in range(3):
                renewed = authority.issue(f"webhook-{number}")
                certificate.key.write_bytes(renewed.key.read_bytes())
                time.sleep(0.5)  # for half a second the files are no pair
                certificate.chain.write_bytes(renewed.chain.read_bytes())
                time.sleep(2)
        assert webhook.process.logs().count("New certificate found, reloading") >= 3
    assert load.refused == []
    assert load.unsized == 0
    assert load.sized > 100
