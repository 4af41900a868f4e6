"""When the webhook or the API server is late, down or shy: pods start, and nothing waits for long."""

from __future__ import annotations

import time

import pytest

from tests.cluster import roles
from tests.cluster.hooks import register
from tests.cluster.webhooks import (
    Scene,
    Webhook,
    annotations_of,
    container,
    recommendation,
    requests,
    resources,
    workload,
)
from tests.testbed.accounts import ServiceAccount
from tests.testbed.certificates import ADDRESS
from tests.testbed.cluster import Cluster
from tests.testbed.processes import attempts

SMALL = resources("100m", "100Mi")
TARGET = resources("250m", "200Mi")
UNCHANGED = "vpa_admission_controller_unchanged_pods_total"
ASKED = "vpa_admission_controller_owner_requests_total"
LATENCY = "vpa_admission_controller_admission_latency_seconds_count"


@pytest.fixture
def scene(cluster: Cluster, namespace: str) -> Scene:
    return Scene(cluster, namespace)


@pytest.fixture
def account(cluster: Cluster) -> ServiceAccount:
    found = cluster.service_account("kube-system", "vpa-admission-controller")
    roles.ours("admission-controller").grant_to(found)
    return found


def web(scene: Scene) -> None:
    scene.vpa("web", recommendation("app", "250m", "200Mi"))


def test_while_the_webhook_is_down_pods_start_as_they_are_written(
    scene: Scene, account: ServiceAccount
) -> None:
    web(scene)
    with Webhook(cluster=scene.cluster, account=account, name="down") as webhook:
        webhook.process.kill()
        (pod,) = scene.run("Deployment", "web", container("app", SMALL))
        assert requests(pod) == SMALL
        webhook.process.start()
        webhook.wait()
        scene.cluster.api.delete("Pod", pod["metadata"]["name"], scene.namespace)
        for _ in attempts(30, "the next pod to be sized", webhook.process):
            pods = scene.cluster.api.list("Pod", scene.namespace)
            if [requests(one) for one in pods] == [TARGET]:
                break


def test_a_pod_that_comes_before_the_news_of_its_replica_set_is_sized(
    scene: Scene, account: ServiceAccount
) -> None:
    web(scene)
    with (
        scene.cluster.fault_proxy() as proxy,
        Webhook(cluster=scene.cluster, account=account, name="early", server=proxy.url) as webhook,
    ):
        proxy.stall(path="/apis/apps/v1/replicasets", watch=True)
        proxy.break_connections()
        pods = scene.run("Deployment", "web", container("app", SMALL), replicas=20)
        assert [requests(pod) for pod in pods] == [TARGET] * 20
        assert webhook.figure(ASKED) >= 1
        # Twenty pods of one ReplicaSet are one question.
        assert proxy.count(path=f"/apis/apps/v1/namespaces/{scene.namespace}/replicasets/*") == 1


def test_the_owners_in_a_namespace_that_gets_its_first_vpa_are_read_at_once(
    cluster: Cluster, namespace: str, account: ServiceAccount
) -> None:
    scene, elsewhere = Scene(cluster, namespace), Scene(cluster, f"{namespace}-before")
    cluster.api.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": elsewhere.namespace}})
    elsewhere.vpa("early")  # from here on ReplicaSets are watched
    names = [f"web-{number}" for number in range(12)]
    for name in names:
        scene.create(workload("Deployment", name, [container("app", SMALL)]))
    for name in names:
        scene.pods(name)
    sets = f"/apis/apps/v1/namespaces/{namespace}/replicasets"
    with (
        cluster.fault_proxy() as proxy,
        Webhook(cluster=cluster, account=account, name="late", server=proxy.url) as webhook,
    ):
        for name in names:
            scene.vpa(name, recommendation("app", "250m", "200Mi"))
        like = scene.pods(names[-1])[0]
        metadata = {name: like["metadata"][name] for name in ("labels", "ownerReferences")}
        pod = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": metadata | {"name": "last"},
            "spec": like["spec"],
        }
        dry = cluster.api.path("Pod", None, namespace) + "?dryRun=All"
        for _ in attempts(30, "the last VPA to be known", webhook.process):
            if requests(cluster.api.request("POST", dry, pod)) == TARGET:
                break
        cluster.api.delete("Pod", None, namespace)
        for name in names:
            for _ in attempts(30, f"the new pod of {name}", webhook.process):
                found = cluster.api.list("Pod", namespace, labelSelector=f"app={name}")
                if [requests(one) for one in found] == [TARGET]:
                    break
        assert webhook.figure(ASKED) >= 1
        assert proxy.count(path=sets) == 1
        assert proxy.count(path=f"{sets}/*") == 0


def test_no_pod_waits_for_an_api_server_that_does_not_tell_its_owner(
    scene: Scene, account: ServiceAccount
) -> None:
    web(scene)
    with (
        scene.cluster.fault_proxy() as proxy,
        Webhook(cluster=scene.cluster, account=account, name="slow", server=proxy.url) as webhook,
    ):
        proxy.stall(path="/apis/apps/v1/replicasets", watch=True)
        proxy.break_connections()
        proxy.delay(60, path=f"/apis/apps/v1/namespaces/{scene.namespace}/replicasets/*")
        began = time.monotonic()
        (pod,) = scene.run("Deployment", "web", container("app", SMALL))
        assert requests(pod) == SMALL
        assert time.monotonic() - began < 10
        assert webhook.figure(UNCHANGED, reason="OwnerUnknown") == 1
        assert webhook.figure(LATENCY, status="error", resource="Pod") == 1
        assert "could not be looked up within 3 s" in webhook.process.logs()


def test_until_all_is_read_pods_are_let_in_unchanged_and_the_webhook_is_not_ready(
    scene: Scene, account: ServiceAccount
) -> None:
    web(scene)
    with scene.cluster.fault_proxy() as proxy:
        proxy.stall(path="/apis/autoscaling.k8s.io/v1/verticalpodautoscalers")
        webhook = Webhook(
            cluster=scene.cluster, account=account, name="unsynced", server=proxy.url, register=False
        )
        assert webhook.authority is not None
        url = f"https://{ADDRESS}:{webhook.port}/"
        register(scene.cluster, "unsynced", webhook.authority.bundle, url, [scene.namespace])
        try:
            webhook.spawn()
            for _ in attempts(30, "the webhook to serve", webhook.process):
                if "Serving the webhook" in webhook.process.logs():
                    break
            (pod,) = scene.run("Deployment", "web", container("app", SMALL))
            assert requests(pod) == SMALL
            assert annotations_of(pod) == {}
            assert webhook.figure(UNCHANGED, reason="NotSynced") == 1
            assert webhook.health() == "Error: waiting for the first lists of the API server"
            proxy.heal()
            webhook.wait()
            scene.cluster.api.delete("Pod", pod["metadata"]["name"], scene.namespace)
            for _ in attempts(30, "the next pod to be sized", webhook.process):
                if [requests(one) for one in scene.cluster.api.list("Pod", scene.namespace)] == [TARGET]:
                    break
        finally:
            scene.cluster.api.delete("MutatingWebhookConfiguration", "unsynced")
            webhook.process.kill()


@pytest.mark.parametrize("whose", ["upstream", "deckhouse"])
def test_the_roles_of_others_are_enough(scene: Scene, whose: str) -> None:
    web(scene)
    account = scene.cluster.service_account("kube-system", f"admission-{whose}")
    getattr(roles, whose)("admission-controller").grant_to(account)
    flags = [f"--status-lease-name={whose}", "--status-lease-update-interval=1s"]
    # Deckhouse renders the configuration itself.
    webhook = Webhook(
        cluster=scene.cluster, account=account, name=whose, flags=flags, register=whose == "upstream"
    )
    assert webhook.authority is not None
    if not webhook.register:
        url = f"https://{ADDRESS}:{webhook.port}/"
        register(scene.cluster, whose, webhook.authority.bundle, url, [scene.namespace], matchPolicy="Exact")
    try:
        with webhook:
            (pod,) = scene.run("Deployment", "web", container("app", SMALL))
            assert requests(pod) == TARGET
            for _ in attempts(20, "the status lease", webhook.process):
                leases = scene.cluster.api.list("Lease", "kube-system")
                if any(one["metadata"]["name"] == whose for one in leases):
                    break
            assert "orbidden" not in webhook.process.logs()
    finally:
        scene.cluster.api.delete("MutatingWebhookConfiguration", whose)


def test_no_pod_is_made_larger_than_the_largest_node_that_it_may_run_on(
    scene: Scene, account: ServiceAccount
) -> None:
    scene.vpa("web", recommendation("app", "20", "100Gi"))
    with Webhook(cluster=scene.cluster, account=account, name="capped", flags=["--cap-to-node"]):
        body = workload("Deployment", "web", [container("app", SMALL)])
        scene.create(body)
        (pod,) = scene.pods("web")
        assert requests(pod) == resources("16", "64Gi")


def test_a_webhook_that_is_told_to_end_while_it_starts_ends(scene: Scene, account: ServiceAccount) -> None:
    with scene.cluster.fault_proxy() as proxy:
        proxy.stall(path="*")
        webhook = Webhook(
            cluster=scene.cluster,
            account=account,
            name="ending",
            server=proxy.url,
            register=False,
            flags=["--generate-certificates"],
        )
        webhook.spawn()
        for _ in attempts(30, "the webhook to wait", webhook.process):
            if webhook.health() == "Error: waiting for a certificate":
                break
        began = time.monotonic()
        assert webhook.process.stop() == 0
        assert time.monotonic() - began < 5
