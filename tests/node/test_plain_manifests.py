"""Upstream's own plain manifests and roles, with nothing but the images changed."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.node.installation import COMPONENTS, SYSTEM
from tests.node.plain import CONFIGURATION, SECRET, Plain, secret
from tests.node.workloads import Namespace, container, pod_spec
from tests.testbed.api import ApiError
from tests.testbed.cluster import Cluster
from tests.testbed.processes import attempts
from tests.testbed.realnodes import metrics_server, project_image
from tests.testbed.realnodes.boxes import Size
from tests.testbed.realnodes.nodes import RealNodes


@pytest.fixture(scope="module")
def node() -> RealNodes:
    """One node: a second cluster beside that of the other tests."""
    return RealNodes([Size()], archives=[project_image.archive()])


@pytest.fixture(scope="module")
def plain(node: RealNodes) -> Iterator[Cluster]:
    """A cluster with what upstream's script would apply."""
    with Cluster(nodes=[node]) as cluster:
        metrics_server.wait(cluster)
        Plain(cluster).install()
        yield cluster


def logs(cluster: Cluster, component: str) -> str:
    return cluster.kubectl("logs", "-n", SYSTEM, f"deployment/vpa-{component}", "--tail=-1")


def test_all_three_are_ready_and_stay_so(plain: Cluster) -> None:
    found = plain.api.list("Pod", SYSTEM)
    assert {pod["metadata"]["labels"]["app"] for pod in found} == {f"vpa-{name}" for name in COMPONENTS}
    for pod in found:
        (status,) = pod["status"]["containerStatuses"]
        assert status["ready"]
        assert status["restartCount"] == 0, status.get("lastState")


def test_the_webhook_registers_itself_under_the_names_that_upstreams_tests_look_for(plain: Cluster) -> None:
    for _ in attempts(60, "the registration", pause=0.2):
        found = plain.api.list("MutatingWebhookConfiguration")
        if found:
            break
    (only,) = found
    assert only["metadata"]["name"] == CONFIGURATION
    (webhook,) = only["webhooks"]
    assert webhook["name"] == "vpa.k8s.io"
    assert webhook["clientConfig"]["service"] == {
        "name": "vpa-webhook",
        "namespace": SYSTEM,
        "port": 443,
    }
    label = "app.kubernetes.io/component=recommender"
    assert len(plain.api.list("Pod", SYSTEM, labelSelector=label)) == 1


def test_a_pod_is_recommended_for_resized_and_sized_at_creation(plain: Cluster, node: RealNodes) -> None:
    own = Namespace("plain", plain, node)
    app = container(milli=150, mib=64, requests={"cpu": "30m", "memory": "16Mi"})
    own.deployment("web", pod_spec(app), replicas=2, wait=False)
    own.vpa("web", recommender=None, minimum=2)
    own.running("web", count=2)
    first = {pod["metadata"]["uid"] for pod in own.pods("web")}
    for _ in attempts(240, "both pods to be resized", pause=1):
        found = own.pods("web")
        if all(pod["spec"]["containers"][0]["resources"]["requests"]["cpu"] != "30m" for pod in found):
            break
    assert {pod["metadata"]["uid"] for pod in found} == first, "in place"
    own.evict(found[0])
    for _ in attempts(60, "its replacement", pause=0.2):
        new = [pod for pod in own.pods("web") if pod["metadata"]["uid"] not in first]
        if new:
            break
    assert new[0]["spec"]["containers"][0]["resources"]["requests"]["cpu"] != "30m"
    assert "vpaUpdates" in new[0]["metadata"]["annotations"]


def test_a_replaced_secret_is_served_and_registered_without_a_restart(plain: Cluster) -> None:
    second = secret(plain, "second")
    plain.api.patch("Secret", SECRET, SYSTEM, body={"data": second["data"]})
    wanted = second["data"]["caCert.pem"]
    for _ in attempts(180, "the new CA to be registered", pause=1):  # the kubelet syncs about once a minute
        (webhook,) = plain.api.get("MutatingWebhookConfiguration", CONFIGURATION)["webhooks"]
        if webhook["clientConfig"]["caBundle"] == wanted:
            break
    for line in (
        "New certificate found, reloading",
        "New client CA found, reloading and patching webhook",
        "Successfully patched webhook with new client CA",
    ):
        assert line in logs(plain, "admission-controller")
    bounds = {"containerName": "app", "minAllowed": {"cpu": "2"}, "maxAllowed": {"cpu": "1"}}
    invalid = {
        "apiVersion": "autoscaling.k8s.io/v1",
        "kind": "VerticalPodAutoscaler",
        "metadata": {"name": "invalid"},
        "spec": {
            "targetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"},
            "resourcePolicy": {"containerPolicies": [bounds]},
        },
    }
    with pytest.raises(ApiError, match=r"admission webhook .*vpa.* denied the request:"):
        plain.api.create(invalid, "default")
