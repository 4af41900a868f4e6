"""What feature gates switch on in the webhook: startup boosts, settings per VPA, mode InPlace.

As in `test_admission_upstream_cases` ours runs beside upstream's own program, which says what is expected.
"""

from __future__ import annotations

import json
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
from tests.testbed.api import ApiError
from tests.testbed.cluster import Cluster

pytestmark = pytest.mark.builds("upstream-vpa")

BOOST = "vpaCpuStartupBoost/hamster"
SMALL = resources("100m", "100Mi")


@pytest.fixture(scope="module", params=["safe", "upstream", "peer"])
def webhook(cluster: Cluster, request: pytest.FixtureRequest) -> Iterator[Webhook]:
    peer = request.param == "peer"
    account = cluster.service_account("kube-system", "vpa-admission-controller")
    (roles.upstream if peer else roles.ours)("admission-controller").grant_to(account)
    with Webhook(
        cluster=cluster,
        account=account,
        name=f"gates-{request.param}",
        program=[builds.binary("upstream-admission-controller")] if peer else OURS,
        flags=["--feature-gates=AllAlpha=true", *([] if peer else [f"--compatibility={request.param}"])],
    ) as running:
        yield running


@pytest.fixture
def scene(cluster: Cluster, namespace: str, webhook: Webhook) -> Scene:
    return Scene(cluster, namespace, peer=webhook.name == "gates-peer")


def boost(**cpu: Any) -> dict[str, Any]:
    return {"startupBoost": {"cpu": {"durationSeconds": 10, **cpu}}}


def test_cpu_is_boosted_by_a_factor(scene: Scene) -> None:
    scene.vpa("hamster", recommendation("hamster", "100m", "100Mi"), **boost(type="Factor", factor=2))
    (pod,) = scene.run("Deployment", "hamster", container("hamster", SMALL))
    assert requests(pod) == resources("200m", "100Mi")
    assert json.loads(annotations_of(pod)[BOOST]) == {"requests": SMALL, "limits": {}}


def test_cpu_is_boosted_by_a_quantity(scene: Scene) -> None:
    scene.vpa(
        "hamster", recommendation("hamster", "100m", "100Mi"), **boost(type="Quantity", quantity="500m")
    )
    (pod,) = scene.run("Deployment", "hamster", container("hamster", SMALL, resources("300m", "100Mi")))
    assert requests(pod) == resources("600m", "100Mi")
    assert limits(pod) == resources("1800m", "100Mi")


def test_cpu_is_boosted_in_mode_off_too(scene: Scene) -> None:
    scene.vpa(
        "hamster", recommendation("hamster", "100m", "70Mi"), mode="Off", **boost(type="Factor", factor=2)
    )
    (pod,) = scene.run("Deployment", "hamster", container("hamster", SMALL))
    assert requests(pod) == resources("200m", "100Mi")


def test_cpu_of_a_container_that_is_opted_out_is_not_boosted(scene: Scene) -> None:
    policy = {"containerName": "hamster", "mode": "Off"}
    scene.vpa(
        "hamster",
        recommendation("hamster", "100m", "100Mi"),
        **boost(type="Factor", factor=2),
        resourcePolicy={"containerPolicies": [policy]},
    )
    (pod,) = scene.run("Deployment", "hamster", container("hamster", SMALL))
    assert requests(pod) == SMALL


def test_settings_per_vpa_are_accepted_and_checked(scene: Scene) -> None:
    def policy(**settings: Any) -> dict[str, Any]:
        return {"resourcePolicy": {"containerPolicies": [{"containerName": "*", **settings}]}}

    scene.vpa("hamster", **policy(oomBumpUpRatio="1.5", oomMinBumpUp="100Mi"))
    with pytest.raises(ApiError) as refused:
        scene.vpa("other", **policy(oomBumpUpRatio="not-a-number"))
    message = refused.value.body["message"]
    assert message.startswith('admission webhook "vpa.k8s.io" denied the request: ')
    assert message.endswith(
        'VerticalPodAutoscaler.autoscaling.k8s.io "other" is invalid: .: Internal error: quantities must '
        "match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'"
    )
    with pytest.raises(ApiError, match=r"oomBumpUpRatio: Invalid value: 0\.5: must be greater than or equal"):
        scene.vpa("other", **policy(oomBumpUpRatio="0.5"))


def test_mode_in_place_sizes_new_pods(scene: Scene) -> None:
    scene.vpa("hamster", recommendation("hamster", "250m", "200Mi"), mode="InPlace")
    (pod,) = scene.run("Deployment", "hamster", container("hamster", SMALL))
    assert requests(pod) == resources("250m", "200Mi")
