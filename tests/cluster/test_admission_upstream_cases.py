"""Upstream's own cases for its webhook, on the real API server.

Each runs three times: with our rules, with upstream's (`--compatibility=upstream`), and with upstream's own
program, so that the expectations are facts. docs/upstream-cases.md lists them by their numbers there.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest

from tests.cluster import roles
from tests.cluster.webhooks import (
    OURS,
    Scene,
    Webhook,
    annotations_of,
    container,
    limits,
    recommendation,
    requests,
    resources,
)
from tests.testbed import builds
from tests.testbed.api import ApiError, Json
from tests.testbed.cluster import Cluster

pytestmark = pytest.mark.builds("upstream-vpa")

SAFE, UPSTREAM, PEER = "safe", "upstream", "peer"

SMALL = resources("100m", "100Mi")
TARGET = resources("250m", "200Mi")


@pytest.fixture(scope="module", params=[SAFE, UPSTREAM, PEER])
def webhook(cluster: Cluster, request: pytest.FixtureRequest) -> Iterator[Webhook]:
    peer = request.param == PEER
    account = cluster.service_account("kube-system", "vpa-admission-controller")
    (roles.upstream if peer else roles.ours)("admission-controller").grant_to(account)
    with Webhook(
        cluster=cluster,
        account=account,
        name=f"admission-{request.param}",
        program=[builds.binary("upstream-admission-controller")] if peer else OURS,
        flags=[] if peer else [f"--compatibility={request.param}"],
    ) as running:
        yield running


@pytest.fixture
def scene(cluster: Cluster, namespace: str, webhook: Webhook) -> Scene:
    return Scene(cluster, namespace, peer=webhook.name == "admission-peer")


def is_safe(webhook: Webhook) -> bool:
    return webhook.name == "admission-safe"


def hamster(name: str = "hamster", requests: Json | None = SMALL, limits: Json | None = None) -> Json:
    return container(name, requests, limits)


def test_pods_of_mode_in_place_or_recreate_start_with_the_target(scene: Scene) -> None:
    scene.vpa("hamster", recommendation("hamster", "250m", "200Mi"), mode="InPlaceOrRecreate")
    for pod in scene.run("Deployment", "hamster", hamster(), replicas=3):
        assert requests(pod) == TARGET


def test_pods_start_with_the_target(scene: Scene) -> None:
    scene.vpa("hamster", recommendation("hamster", "250m", "200Mi"), mode=None)
    for pod in scene.run("Deployment", "hamster", hamster(), replicas=3):
        assert requests(pod) == TARGET
        assert annotations_of(pod)["vpaObservedContainers"] == "hamster"
        summary = annotations_of(pod)["vpaUpdates"]
        assert summary.startswith("Pod resources updated by hamster: container 0: ")
        assert set(summary.rpartition(": ")[2].split(", ")) == {"cpu request", "memory request"}


def test_a_recommendation_for_a_container_that_is_not_there_is_ignored(scene: Scene) -> None:
    scene.vpa(
        "hamster", recommendation("removed", "500m", "500Mi"), recommendation("hamster", "250m", "200Mi")
    )
    for pod in scene.run("Deployment", "hamster", hamster()):
        assert requests(pod) == TARGET


def test_a_recommendation_for_other_containers_alone_changes_nothing(scene: Scene) -> None:
    scene.vpa("hamster", recommendation("removed", "250m", "200Mi"))
    for pod in scene.run("Deployment", "hamster", hamster()):
        assert requests(pod) == SMALL


def test_only_the_container_with_a_recommendation_is_changed(scene: Scene) -> None:
    scene.vpa("hamster", recommendation("hamster", "250m", "200Mi"))
    for pod in scene.run("Deployment", "hamster", hamster(), hamster("hamster2")):
        assert requests(pod, 0) == TARGET
        assert requests(pod, 1) == SMALL


def test_a_container_limit_range_caps_by_the_limits_that_it_gives_itself(scene: Scene) -> None:
    scene.limit_range({"type": "Container", "max": resources("300m", "1Gi")})
    scene.vpa(
        "hamster", recommendation("hamster", "500m", "500Mi"), recommendation("removed", "500m", "500Mi")
    )
    for pod in scene.run("Deployment", "hamster", hamster()):
        # Without limits of its own the pod gets those of the LimitRange: ratios of 3 and 10.24 that stay.
        assert requests(pod) == SMALL
        assert limits(pod) == resources("300m", "1Gi")


def test_a_recommendation_for_other_containers_changes_nothing_under_a_limit_range_either(
    scene: Scene,
) -> None:
    scene.limit_range({"type": "Container", "max": resources("300m", "1Gi")})
    scene.vpa("hamster", recommendation("removed", "250m", "200Mi"))
    for pod in scene.run("Deployment", "hamster", hamster()):
        assert requests(pod) == SMALL


def test_a_pod_limit_range_also_holds_for_the_container_without_a_recommendation(
    scene: Scene, webhook: Webhook
) -> None:
    scene.limit_range({"type": "Pod", "max": resources("400m", "1Gi")})
    scene.vpa("hamster", recommendation("hamster", "400m", "1Gi"))
    pods = scene.run(
        "Deployment", "hamster", hamster("hamster", SMALL, SMALL), hamster("hamster2", SMALL, SMALL)
    )
    for pod in pods:
        if is_safe(webhook):
            # Only what the VPA sizes gives way: the other container fits as its owner wrote it.
            assert requests(pod, 0) == resources("300m", "924Mi")
            assert requests(pod, 1) == SMALL
        else:
            assert requests(pod, 0) == resources("320m", str(1024 * 2**20 * 1024 // 1124))
            assert requests(pod, 1)["cpu"] == "80m"


def test_an_unrelated_patch_of_a_pod_is_not_blocked(scene: Scene) -> None:
    scene.vpa("hamster", recommendation("hamster", "250m", "200Mi"))
    (pod,) = scene.run("Deployment", "hamster", hamster())
    scene.recommend("hamster", recommendation("hamster", "100m", "100Mi"))
    body = {"metadata": {"annotations": {"someAnnotation": "someValue"}}}
    changed = scene.cluster.api.patch("Pod", pod["metadata"]["name"], scene.namespace, body=body)
    assert annotations_of(changed)["someAnnotation"] == "someValue"
    assert requests(changed) == TARGET


def test_limits_that_equal_requests_stay_equal(scene: Scene) -> None:
    scene.vpa("hamster", recommendation("hamster", "250m", "200Mi"))
    for pod in scene.run("Deployment", "hamster", hamster(requests=None, limits=SMALL)):
        assert requests(pod) == TARGET
        assert limits(pod) == TARGET


def test_the_ratio_of_limits_to_requests_stays(scene: Scene) -> None:
    scene.vpa("hamster", recommendation("hamster", "250m", "200Mi"))
    for pod in scene.run("Deployment", "hamster", hamster(limits=resources("150m", "200Mi"))):
        assert requests(pod) == TARGET
        assert limits(pod) == resources("375m", "400Mi")


def test_with_requests_only_limits_stay(scene: Scene) -> None:
    policy = {"containerName": "*", "controlledValues": "RequestsOnly"}
    scene.vpa(
        "hamster",
        recommendation("hamster", "250m", "200Mi"),
        resourcePolicy={"containerPolicies": [policy]},
    )
    for pod in scene.run("Deployment", "hamster", hamster(limits=resources("500m", "500Mi"))):
        assert requests(pod) == TARGET
        assert limits(pod) == resources("500m", "500Mi")


def test_requests_are_capped_by_the_maximum_of_a_container(scene: Scene) -> None:
    scene.limit_range({"type": "Container", "max": resources("300m", "1Gi")})
    scene.vpa("hamster", recommendation("hamster", "250m", "200Mi"))
    for pod in scene.run("Deployment", "hamster", hamster(limits=resources("150m", "200Mi"))):
        assert requests(pod) == resources("200m", "200Mi")
        assert limits(pod) == resources("300m", "400Mi")


def test_requests_are_raised_to_the_minimum_of_a_container(scene: Scene) -> None:
    scene.limit_range({"type": "Container", "min": resources("50m", "250Mi")})
    scene.vpa("hamster", recommendation("hamster", "250m", "100Mi"))
    pods = scene.run(
        "Deployment",
        "hamster",
        hamster(requests=resources("100m", "250Mi"), limits=resources("150m", "500Mi")),
    )
    for pod in pods:
        assert requests(pod) == resources("250m", "250Mi")
        assert limits(pod) == resources("375m", "500Mi")


def test_requests_are_capped_by_the_maximum_of_a_pod(scene: Scene) -> None:
    scene.limit_range({"type": "Pod", "max": resources("600m", "1Gi")})
    scene.vpa(
        "hamster", recommendation("hamster", "250m", "200Mi"), recommendation("hamster2", "250m", "200Mi")
    )
    two = [hamster(name, SMALL, resources("150m", "200Mi")) for name in ("hamster", "hamster2")]
    for pod in scene.run("Deployment", "hamster", *two):
        for index in (0, 1):
            assert requests(pod, index) == resources("200m", "200Mi")
            assert limits(pod, index) == resources("300m", "400Mi")


THREE = ("hamster", "hamster2", "hamster3")


def three(scene: Scene, *cpu: str, **item: Any) -> list[int]:
    """CPU requests in millicores of a pod of three containers with targets *cpu*, under a Pod LimitRange."""
    scene.limit_range({"type": "Pod", **item})
    scene.vpa("hamster", *(recommendation(name, one) for name, one in zip(THREE, cpu, strict=True)))
    containers = [hamster(name, resources("40m"), resources("80m")) for name in THREE]
    (pod,) = scene.run("Deployment", "hamster", *containers)
    for index in range(3):
        assert limits(pod, index)["cpu"] == f"{2 * int(requests(pod, index)['cpu'][:-1])}m"
    return [int(requests(pod, index)["cpu"][:-1]) for index in range(3)]


def test_cpu_is_raised_in_proportion_to_the_minimum_of_a_pod(scene: Scene) -> None:
    assert three(scene, "3m", "14m", "59m", min=resources("100m")) == [4, 19, 78]


def test_cpu_is_lowered_in_proportion_to_the_maximum_of_a_pod(scene: Scene) -> None:
    assert three(scene, "5m", "30m", "130m", max=resources("240m")) == [3, 21, 94]


def test_memory_is_raised_to_the_minimum_of_a_pod(scene: Scene) -> None:
    scene.limit_range({"type": "Pod", "min": resources("50m", "250Mi")})
    scene.vpa("hamster", recommendation("hamster", "120m", "200Mi"))
    pods = scene.run(
        "Deployment",
        "hamster",
        hamster(requests=resources("100m", "250Mi"), limits=resources("150m", "500Mi")),
    )
    for pod in pods:
        assert requests(pod) == resources("120m", "250Mi")


def test_requests_are_capped_to_the_maximum_of_the_policy(scene: Scene) -> None:
    policy = {"containerName": "hamster", "maxAllowed": resources("233m", "150Mi")}
    scene.vpa(
        "hamster",
        recommendation("hamster", "250m", "200Mi"),
        resourcePolicy={"containerPolicies": [policy]},
    )
    for pod in scene.run("Deployment", "hamster", hamster()):
        assert requests(pod) == resources("233m", "150Mi")


def test_requests_are_raised_to_the_minimum_of_the_policy(scene: Scene) -> None:
    policy = {"containerName": "hamster", "minAllowed": resources("90m", "80Mi")}
    scene.vpa(
        "hamster",
        recommendation("hamster", "50m", "60Mi"),
        resourcePolicy={"containerPolicies": [policy]},
    )
    for pod in scene.run("Deployment", "hamster", hamster()):
        assert requests(pod) == resources("90m", "80Mi")


def test_without_a_recommendation_the_users_requests_stay(scene: Scene) -> None:
    scene.vpa("hamster")
    for pod in scene.run("Deployment", "hamster", hamster()):
        assert requests(pod) == SMALL


def test_without_a_recommendation_and_without_requests_there_are_none(scene: Scene) -> None:
    scene.vpa("hamster")
    for pod in scene.run("Deployment", "hamster", hamster(requests=None)):
        assert requests(pod) == {}


VPA = """
apiVersion: autoscaling.k8s.io/v1
kind: VerticalPodAutoscaler
metadata: {{name: hamster}}
spec:
  targetRef: {{apiVersion: apps/v1, kind: Deployment, name: hamster}}
  resourcePolicy:
    containerPolicies:
      - containerName: "*"
        minAllowed: {{cpu: {cpu}}}
"""


def test_a_sound_vpa_is_accepted_and_completed(scene: Scene) -> None:
    scene.cluster.kubectl("apply", "-n", scene.namespace, "-f", "-", stdin=VPA.format(cpu="50m"))
    found = scene.cluster.api.get("VerticalPodAutoscaler", "hamster", scene.namespace)
    assert found["spec"]["updatePolicy"] == {"updateMode": "Recreate"}


def test_an_unsound_vpa_is_refused_in_words_that_kubectl_prints(scene: Scene) -> None:
    text = VPA.format(cpu="50m").replace("hamster", "other") + "        maxAllowed: {cpu: 40m}\n"
    with pytest.raises(subprocess.CalledProcessError) as failed:
        scene.cluster.kubectl("apply", "-n", scene.namespace, "-f", "-", stdin=text)
    field = "spec.resourcePolicy.containerPolicies[0].maxAllowed[cpu]"
    error = f'{field}: Invalid value: "40m": max resource for cpu is lower than min of "50m"'
    assert failed.value.stderr == f'The VerticalPodAutoscaler "other" is invalid: {error}\n'


def test_an_object_in_place_of_a_quantity_is_refused_by_the_webhook(scene: Scene) -> None:
    policy = {"containerName": "*", "minAllowed": {"cpu": {"nested": "50m"}}}
    with pytest.raises(ApiError) as refused:
        scene.vpa("hamster", resourcePolicy={"containerPolicies": [policy]})
    assert re.search("admission webhook .*vpa.* denied the request:", refused.value.body["message"])


def test_settings_of_a_gate_that_is_off_are_refused(scene: Scene) -> None:
    policy = {"containerName": "*", "oomBumpUpRatio": "1.5"}
    with pytest.raises(ApiError) as refused:
        scene.vpa("hamster", resourcePolicy={"containerPolicies": [policy]})
    assert refused.value.status == 422
    field = "spec.resourcePolicy.containerPolicies[0].oomBumpUpRatio"
    assert refused.value.body["message"] == (
        'admission webhook "vpa.k8s.io" denied the request: '
        'VerticalPodAutoscaler.autoscaling.k8s.io "hamster" is invalid: '
        f"{field}: Forbidden: not supported when feature flag PerVPAConfig is disabled"
    )
    (cause,) = refused.value.body["details"]["causes"]
    assert cause["reason"] == "FieldValueForbidden"
    assert cause["field"] == field
