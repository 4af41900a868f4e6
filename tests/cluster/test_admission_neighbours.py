"""Other webhooks that change the same pods, before ours and after it."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from tests.cluster import roles
from tests.cluster.hooks import Hook, register, sidecar
from tests.cluster.webhooks import (
    OBSERVED,
    Scene,
    Webhook,
    annotations_of,
    container,
    limits,
    recommendation,
    requests,
    resources,
)
from tests.testbed.certificates import ADDRESS
from tests.testbed.cluster import Cluster

SMALL = resources("100m", "100Mi")


@pytest.fixture(scope="module")
def webhook(cluster: Cluster) -> Iterator[Webhook]:
    account = cluster.service_account("kube-system", "vpa-admission-controller")
    roles.ours("admission-controller").grant_to(account)
    gates = "--feature-gates=CPUStartupBoost=true"
    with Webhook(
        cluster=cluster, account=account, name="unregistered", register=False, flags=[gates]
    ) as running:
        yield running


@pytest.fixture
def scene(cluster: Cluster, namespace: str, webhook: Webhook) -> Scene:
    return Scene(cluster, namespace)


@pytest.fixture(params=["Never", "IfNeeded"])
def policy(scene: Scene, webhook: Webhook, request: pytest.FixtureRequest) -> Iterator[str]:
    """Our webhook is called again after others have changed the pod, or it is not."""
    assert webhook.authority is not None
    name = f"vpa-{request.param.lower()}"
    url = f"https://{ADDRESS}:{webhook.port}/"
    more = {"reinvocationPolicy": request.param}
    register(scene.cluster, name, webhook.authority.bundle, url, [scene.namespace], **more)
    yield request.param
    scene.cluster.api.delete("MutatingWebhookConfiguration", name)


def test_a_side_car_that_is_injected_later_is_observed_only_if_we_are_called_again(
    scene: Scene, policy: str
) -> None:
    scene.vpa("web", recommendation("app", "250m", "200Mi"), recommendation("sidecar", "5"))
    with Hook(scene.cluster, "z-injector", scene.namespace, sidecar):
        (pod,) = scene.run("Deployment", "web", container("app", SMALL, resources("150m", "200Mi")))
    assert requests(pod, 0) == resources("250m", "200Mi")
    assert limits(pod, 0) == resources("375m", "400Mi")
    if policy == "Never":
        assert annotations_of(pod)[OBSERVED] == "app"
        assert requests(pod, 1) == resources("20m")
    else:
        assert annotations_of(pod)[OBSERVED] == "app, sidecar"
        assert requests(pod, 1) == resources("5")
        assert limits(pod, 1) == resources("10")


def test_a_side_car_that_was_injected_before_is_sized_like_any_container(scene: Scene, policy: str) -> None:
    scene.vpa("web", recommendation("app", "250m", "200Mi"), recommendation("sidecar", "5"))
    with Hook(scene.cluster, "a-injector", scene.namespace, sidecar):
        (pod,) = scene.run("Deployment", "web", container("app", SMALL))
    assert annotations_of(pod)[OBSERVED] == "app, sidecar"
    assert requests(pod, 1) == resources("5")


@pytest.mark.parametrize("mode", ["Recreate", "Off"])
def test_a_pod_that_we_see_twice_is_boosted_once(scene: Scene, policy: str, mode: str) -> None:
    scene.vpa(
        "web",
        recommendation("app", None, "200Mi"),
        mode=mode,
        startupBoost={"cpu": {"type": "Factor", "factor": 3, "durationSeconds": 10}},
    )
    with Hook(scene.cluster, "z-injector", scene.namespace, sidecar):
        (pod,) = scene.run("Deployment", "web", container("app", SMALL, resources("200m")))
    assert requests(pod, 0)["cpu"] == "300m"
    assert limits(pod, 0)["cpu"] == "600m"
    before = json.loads(annotations_of(pod)["vpaCpuStartupBoost/app"])
    assert before == {"requests": SMALL, "limits": resources("200m")}
