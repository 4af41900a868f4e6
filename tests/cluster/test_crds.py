"""The custom resources on a real API server: applied without a warning, and as strict as upstream's."""

from __future__ import annotations

import copy
import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.testbed.cluster import Cluster

pytestmark = pytest.mark.cluster

DEPLOY = Path(__file__).parents[2] / "deploy"
CRDS = sorted((DEPLOY / "crds").glob("*.yaml"))
EXAMPLES = sorted((DEPLOY / "examples").glob("*.yaml"))

STRICT = ("--server-side", "--warnings-as-errors")

Json = dict[str, Any]


def vpa(**spec: Any) -> Json:
    target = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"}
    return {
        "apiVersion": "autoscaling.k8s.io/v1",
        "kind": "VerticalPodAutoscaler",
        "metadata": {"name": "web"},
        "spec": {"targetRef": target, **spec},
    }


def policy(**fields: Any) -> Json:
    return vpa(resourcePolicy={"containerPolicies": [{"containerName": "*", **fields}]})


def boost(**cpu: Any) -> Json:
    return vpa(startupBoost={"cpu": cpu})


def status(**fields: Any) -> Json:
    return {**vpa(), "status": fields}


def create(cluster: Cluster, namespace: str, obj: Json, *, dry_run: bool = True) -> str:
    """kubectl's words, without its own validation, so that the server's is what is seen."""
    arguments = ["create", "--validate=ignore", "-n", namespace, "-f", "-"]
    if dry_run:
        arguments.append("--dry-run=server")
    return cluster.kubectl(*arguments, stdin=json.dumps(obj))


def refusal(cluster: Cluster, namespace: str, obj: Json) -> str:
    with pytest.raises(subprocess.CalledProcessError) as refused:
        create(cluster, namespace, obj)
    return str(refused.value.stderr)


@pytest.fixture
def web(cluster: Cluster, namespace: str) -> str:
    """A namespace with an autoscaler named web."""
    create(cluster, namespace, vpa(), dry_run=False)
    return namespace


@pytest.mark.parametrize("path", CRDS, ids=lambda path: path.stem)
def test_the_api_server_takes_the_definitions_without_a_warning(cluster: Cluster, path: Path) -> None:
    for dry_run in ("--dry-run=server", "--dry-run=none"):
        said = cluster.kubectl("apply", *STRICT, dry_run, "-f", str(path))
        assert "serverside-applied" in said


def test_only_v1_is_served(cluster: Cluster) -> None:
    kinds = cluster.kubectl("api-resources", "--api-group=autoscaling.k8s.io", "--no-headers").split()
    assert [kinds[i] for i in range(0, len(kinds), 5)] == [
        "verticalpodautoscalercheckpoints",
        "verticalpodautoscalers",
    ]
    assert {kinds[i] for i in (1, 6)} == {"vpa", "vpacheckpoint"}
    assert {kinds[i] for i in (2, 7)} == {"autoscaling.k8s.io/v1"}


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_every_example_is_created_without_a_warning(cluster: Cluster, namespace: str, path: Path) -> None:
    cluster.kubectl("apply", *STRICT, "-n", namespace, "-f", str(path))
    for obj in yaml.safe_load_all(path.read_text()):
        stored = json.loads(
            cluster.kubectl("get", obj["kind"], obj["metadata"]["name"], "-n", namespace, "-o", "json")
        )
        if obj["kind"] == "VerticalPodAutoscaler":
            assert stored["spec"] == obj["spec"], "nothing was pruned and nothing defaulted"


ACCEPTED: dict[str, Json] = {
    "every mode Off": vpa(updatePolicy={"updateMode": "Off"}),
    "mode InPlace": vpa(updatePolicy={"updateMode": "InPlace"}),
    "mode Auto": vpa(updatePolicy={"updateMode": "Auto"}),
    "a policy without a mode": vpa(updatePolicy={"minReplicas": 3}),
    "an empty container name": policy(containerName=""),
    "quantities as numbers": policy(minAllowed={"cpu": 1, "memory": "64Mi"}),
    "a quantity with an exponent": policy(maxAllowed={"memory": "1e9"}),
    "a negative duration": boost(type="Factor", factor=2, durationSeconds=-1),
    "a boost without cpu": vpa(startupBoost={}),
    "several recommenders": vpa(recommenders=[{"name": "a"}, {"name": "b"}]),
    "a scope": vpa(scope="kubernetes.io/hostname"),
    "any controlled resource": policy(controlledResources=["cpu", "example.com/gpu"]),
}


@pytest.mark.parametrize("name", ACCEPTED)
def test_what_the_webhook_judges_the_schema_lets_pass(cluster: Cluster, namespace: str, name: str) -> None:
    assert "created (server dry run)" in create(cluster, namespace, ACCEPTED[name])


def _without(obj: Json, *path: str) -> Json:
    changed = copy.deepcopy(obj)
    inner = changed
    for key in path[:-1]:
        inner = inner[key]
    del inner[path[-1]]
    return changed


REFUSED: dict[str, tuple[Json, str]] = {
    "no spec": (_without(vpa(), "spec"), "spec: Required value"),
    "no target": (_without(vpa(), "spec", "targetRef"), "spec.targetRef: Required value"),
    "a target without kind": (
        _without(vpa(), "spec", "targetRef", "kind"),
        "spec.targetRef.kind: Required value",
    ),
    "a target without name": (
        _without(vpa(), "spec", "targetRef", "name"),
        "spec.targetRef.name: Required value",
    ),
    "an unknown mode": (
        vpa(updatePolicy={"updateMode": "Sometimes"}),
        "spec.updatePolicy.updateMode: Unsupported value",
    ),
    "replicas as text": (
        vpa(updatePolicy={"minReplicas": "2"}),
        "spec.updatePolicy.minReplicas: Invalid value",
    ),
    "replicas beyond 32 bits": (
        vpa(updatePolicy={"minReplicas": 2**31}),
        "must be of type integer with format int32 in spec.updatePolicy.minReplicas",
    ),
    "no time after an OOM": (
        vpa(updatePolicy={"evictAfterOOMSeconds": 0}),
        "spec.updatePolicy.evictAfterOOMSeconds: Invalid value: 0",
    ),
    "a requirement without resources": (
        vpa(updatePolicy={"evictionRequirements": [{"changeRequirement": "TargetHigherThanRequests"}]}),
        "spec.updatePolicy.evictionRequirements[0].resources: Required value",
    ),
    "an unknown requirement": (
        vpa(updatePolicy={"evictionRequirements": [{"resources": ["cpu"], "changeRequirement": "Other"}]}),
        "spec.updatePolicy.evictionRequirements[0].changeRequirement: Unsupported value",
    ),
    "an unknown container mode": (policy(mode="On"), "containerPolicies[0].mode: Unsupported value"),
    "unknown controlled values": (
        policy(controlledValues="LimitsOnly"),
        "containerPolicies[0].controlledValues: Unsupported value",
    ),
    "a quantity that is none": (policy(minAllowed={"cpu": "one"}), "containerPolicies[0].minAllowed.cpu"),
    "a quantity that is a list": (policy(maxAllowed={"cpu": ["1"]}), "containerPolicies[0].maxAllowed.cpu"),
    "a ratio that is none": (policy(oomBumpUpRatio="a lot"), "containerPolicies[0].oomBumpUpRatio"),
    "an interval of no length": (
        policy(memoryAggregationIntervalSeconds=0),
        "memoryAggregationIntervalSeconds: Invalid value: 0",
    ),
    "no interval": (
        policy(memoryAggregationIntervalCount=0),
        "memoryAggregationIntervalCount: Invalid value: 0",
    ),
    "a boost without type": (boost(factor=2), "spec.startupBoost.cpu.type: Required value"),
    "an unknown boost": (boost(type="Double"), "spec.startupBoost.cpu.type: Unsupported value"),
    "a factor that is missing": (
        boost(type="Factor"),
        "factor is required when type is Factor and forbidden otherwise",
    ),
    "a factor too much": (
        boost(type="Quantity", quantity="1", factor=2),
        "factor is required when type is Factor and forbidden otherwise",
    ),
    "a quantity that is missing": (
        boost(type="Quantity"),
        "quantity is required when type is Quantity and forbidden otherwise",
    ),
    "a boost of a container with both": (
        policy(startupBoost={"cpu": {"type": "Factor", "factor": 2, "quantity": "1"}}),
        "quantity is required when type is Quantity and forbidden otherwise",
    ),
    "a recommender without name": (vpa(recommenders=[{}]), "spec.recommenders[0].name: Required value"),
    "a scope that is no text": (vpa(scope=7), "spec.scope: Invalid value"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_an_invalid_autoscaler_is_refused(cluster: Cluster, namespace: str, name: str) -> None:
    obj, expected = REFUSED[name]
    assert expected in refusal(cluster, namespace, obj)


BAD_STATUS: dict[str, tuple[Json, str]] = {
    "a recommendation without target": (
        {"recommendation": {"containerRecommendations": [{"containerName": "a"}]}},
        "containerRecommendations[0].target: Required value",
    ),
    "a condition without status": (
        {"conditions": [{"type": "RecommendationProvided"}]},
        "status.conditions[0].status: Required value",
    ),
    "a condition at no time": (
        {"conditions": [{"type": "A", "status": "True", "lastTransitionTime": "noon"}]},
        "status.conditions[0].lastTransitionTime",
    ),
    "a negative generation": ({"observedGeneration": -1}, "status.observedGeneration: Invalid value: -1"),
}


@pytest.mark.parametrize("name", BAD_STATUS)
def test_an_invalid_status_is_refused(cluster: Cluster, web: str, name: str) -> None:
    wrong, expected = BAD_STATUS[name]
    patch = json.dumps({"status": wrong})
    with pytest.raises(subprocess.CalledProcessError) as refused:
        cluster.kubectl("patch", "vpa", "web", "-n", web, "--subresource=status", "--type=merge", "-p", patch)
    assert expected in str(refused.value.stderr)


def test_a_status_is_written_through_its_subresource_only(cluster: Cluster, web: str) -> None:
    patch = json.dumps({"status": {"observedGeneration": 1}})
    cluster.kubectl("patch", "vpa", "web", "-n", web, "--type=merge", "-p", patch)
    assert "status" not in json.loads(cluster.kubectl("get", "vpa", "web", "-n", web, "-o", "json"))
    cluster.kubectl("patch", "vpa", "web", "-n", web, "--subresource=status", "--type=merge", "-p", patch)
    stored = json.loads(cluster.kubectl("get", "vpa", "web", "-n", web, "-o", "json"))
    assert stored["status"] == {"observedGeneration": 1}


def test_a_recommendation_is_seen_in_the_list_and_in_describe(cluster: Cluster, web: str) -> None:
    amounts = {"cpu": "250m", "memory": "262144k"}
    written = {
        "recommendation": {"containerRecommendations": [{"containerName": "a", "target": amounts}]},
        "groups": [
            {"scopeValue": "", "containerRecommendations": [{"containerName": "a", "target": amounts}]},
            {"scopeValue": "__absent__"},
        ],
        "conditions": [
            {
                "type": "RecommendationProvided",
                "status": "True",
                "lastTransitionTime": "2026-08-01T00:00:00Z",
                "observedGeneration": 1,
            }
        ],
    }
    cluster.kubectl(
        *("patch", "vpa", "web", "-n", web, "--subresource=status", "--type=merge"),
        *("-p", json.dumps({"status": written})),
    )
    stored = json.loads(cluster.kubectl("get", "vpa", "web", "-n", web, "-o", "json"))
    assert stored["status"] == written
    head, row = cluster.kubectl("get", "vpa", "-n", web).splitlines()
    assert head.split() == ["NAME", "MODE", "CPU", "MEM", "PROVIDED", "AGE"]
    assert row.split()[:4] == ["web", "250m", "262144k", "True"]
    wide = cluster.kubectl("get", "vpa", "-n", web, "-o", "wide").splitlines()[0].split()
    assert wide[-2:] == ["MINREPLICAS", "OOMSECONDS"]
    described = cluster.kubectl("describe", "vpa", "web", "-n", web)
    assert "Scope Value:  __absent__" in described


def test_a_checkpoint_keeps_its_weights_and_its_empty_times(cluster: Cluster, namespace: str) -> None:
    histogram = {"referenceTimestamp": None, "bucketWeights": {"0": 10000, "12": 7}, "totalWeight": 1.25}
    checkpoint = {
        "apiVersion": "autoscaling.k8s.io/v1",
        "kind": "VerticalPodAutoscalerCheckpoint",
        "metadata": {"name": "web-a"},
        "spec": {"vpaObjectName": "web", "containerName": "a"},
        "status": {
            "lastUpdateTime": "2026-08-01T00:00:00Z",
            "version": "v3",
            "cpuHistogram": histogram,
            "memoryHistogram": {"referenceTimestamp": None},
            "firstSampleStart": None,
            "lastSampleStart": None,
            "totalSamplesCount": 3,
        },
    }
    create(cluster, namespace, checkpoint, dry_run=False)
    stored = json.loads(cluster.kubectl("get", "vpacheckpoint", "web-a", "-n", namespace, "-o", "json"))
    assert stored["status"] == checkpoint["status"]
    patch = json.dumps({"status": {"totalSamplesCount": 4}})
    cluster.kubectl("patch", "vpacheckpoint", "web-a", "-n", namespace, "--type=merge", "-p", patch)
    stored = json.loads(cluster.kubectl("get", "vpacheckpoint", "web-a", "-n", namespace, "-o", "json"))
    assert stored["status"]["totalSamplesCount"] == 4


@pytest.mark.parametrize(
    ("field", "value"),
    [("totalSamplesCount", "many"), ("lastUpdateTime", "noon"), ("cpuHistogram", {"totalWeight": "1"})],
)
def test_an_invalid_checkpoint_is_refused(cluster: Cluster, namespace: str, field: str, value: Any) -> None:
    checkpoint = {
        "apiVersion": "autoscaling.k8s.io/v1",
        "kind": "VerticalPodAutoscalerCheckpoint",
        "metadata": {"name": "web-a"},
        "status": {field: value},
    }
    assert f"status.{field}" in refusal(cluster, namespace, checkpoint)
