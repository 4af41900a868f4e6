"""Pods of every kind of controller, and of none, at the live webhook."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Iterator

import jsonpatch
import pytest

from tests.cluster import roles
from tests.cluster.definitions import scalable
from tests.cluster.hooks import Hook
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
    workload,
)
from tests.testbed import builds
from tests.testbed.api import Json
from tests.testbed.cluster import Cluster
from tests.testbed.processes import attempts

SMALL = resources("100m", "100Mi")
TARGET = resources("250m", "200Mi")


@pytest.fixture(scope="module")
def webhook(cluster: Cluster) -> Iterator[Webhook]:
    account = cluster.service_account("kube-system", "vpa-admission-controller")
    roles.ours("admission-controller").grant_to(account)
    with Webhook(cluster=cluster, account=account) as running:
        yield running


@pytest.fixture
def scene(cluster: Cluster, namespace: str, webhook: Webhook) -> Scene:
    return Scene(cluster, namespace)


def app(limits: Json | None = None) -> Json:
    return container("app", SMALL, limits)


@pytest.mark.parametrize(
    "kind", ["Deployment", "ReplicaSet", "StatefulSet", "DaemonSet", "ReplicationController", "Job"]
)
def test_pods_of_a_built_in_controller_are_sized(scene: Scene, kind: str) -> None:
    version = {"Job": "batch/v1", "ReplicationController": "v1"}.get(kind, "apps/v1")
    scene.vpa("web", recommendation("app", "250m", "200Mi"), target=kind, api_version=version)
    for pod in scene.run(kind, "web", app(), replicas=2):
        assert requests(pod) == TARGET
        assert annotations_of(pod)[OBSERVED] == "app"


def test_pods_of_the_jobs_of_a_cron_job_are_sized_whatever_the_job_is_called(scene: Scene) -> None:
    scene.vpa("web", recommendation("app", "250m", "200Mi"), target="CronJob", api_version="batch/v1")
    scene.create(workload("CronJob", "web", [app()]))
    scene.cluster.kubectl("create", "job", "by-hand", "--from=cronjob/web", "-n", scene.namespace)
    (pod,) = scene.pods("web")
    assert requests(pod) == TARGET


WIDGETS = scalable("Widget", "example.org", status=True)


@pytest.fixture(scope="module")
def widgets(cluster: Cluster) -> Iterator[None]:
    """A kind of our own with a ``scale``."""
    cluster.api.create(WIDGETS)
    cluster.kubectl("wait", "--for=condition=Established", "crd/widgets.example.org")
    for _ in attempts(30, "widgets to be served"):
        with contextlib.suppress(LookupError):
            cluster.api.path("Widget.example.org")
            break
    yield
    cluster.api.delete("CustomResourceDefinition", "widgets.example.org")


def widget(scene: Scene, *, selector: str) -> Json:
    """A Widget with that selector in its scale, and how its children name it."""
    body = {
        "apiVersion": "example.org/v1",
        "kind": "Widget",
        "metadata": {"name": "web"},
        "spec": {"replicas": 1},
    }
    made = scene.create(body)
    status = {"status": {"replicas": 1, "selector": selector}}
    scene.cluster.api.patch("Widget.example.org", "web", scene.namespace, body=status, subresource="status")
    return owned_by(made)


def owned_by(owner: Json) -> Json:
    reference = {name: owner[name] for name in ("apiVersion", "kind")}
    reference |= {name: owner["metadata"][name] for name in ("name", "uid")}
    return {"ownerReferences": [reference | {"controller": True}]}


def of_widget(scene: Scene, kind: str, owner: Json) -> list[Json]:
    body = workload(kind, "web", [app()])
    body["metadata"] |= owner
    scene.create(body)
    return scene.pods("web")


@pytest.mark.usefixtures("widgets")
def test_pods_of_a_custom_resource_with_a_scale_are_sized(scene: Scene) -> None:
    scene.vpa("web", recommendation("app", "250m", "200Mi"), target="Widget", api_version="example.org/v1")
    owner = widget(scene, selector="app=web")
    pod = scene.create(pod_of("web-0", owner))
    assert requests(pod) == TARGET
    for kind in ("ReplicaSet", "StatefulSet"):
        scene.cluster.api.delete("Pod", None, scene.namespace)
        (pod, *_) = of_widget(scene, kind, owner)
        assert requests(pod) == TARGET


@pytest.mark.usefixtures("widgets")
def test_a_custom_resource_without_a_selector_lends_that_of_its_only_workload(scene: Scene) -> None:
    scene.vpa("web", recommendation("app", "250m", "200Mi"), target="Widget", api_version="example.org/v1")
    (pod,) = of_widget(scene, "Deployment", widget(scene, selector=""))
    assert requests(pod) == TARGET


def pod_of(name: str, owner: Json | None = None, labels: Json | None = None) -> Json:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": labels or {"app": "web"}, **(owner or {})},
        "spec": {"containers": [app()]},
    }


def test_a_pod_that_is_created_directly_is_left_alone(scene: Scene, webhook: Webhook) -> None:
    scene.vpa("web", recommendation("app", "250m", "200Mi"))
    before = webhook.figure("vpa_admission_controller_unchanged_pods_total", reason="NoController")
    pod = scene.create(pod_of("alone"))
    assert requests(pod) == SMALL
    assert annotations_of(pod) == {}
    after = webhook.figure("vpa_admission_controller_unchanged_pods_total", reason="NoController")
    assert after == before + 1


def test_mode_initial_sizes_new_pods(scene: Scene) -> None:
    scene.vpa("web", recommendation("app", "250m", "200Mi"), mode="Initial")
    (pod,) = scene.run("Deployment", "web", app())
    assert requests(pod) == TARGET


def test_mode_off_leaves_no_trace(scene: Scene) -> None:
    scene.vpa("web", recommendation("app", "250m", "200Mi"), mode="Off")
    (pod,) = scene.run("Deployment", "web", app())
    assert requests(pod) == SMALL
    assert annotations_of(pod) == {}


def test_of_two_vpas_the_oldest_is_followed(scene: Scene) -> None:
    scene.vpa("z-first", recommendation("app", "250m", "200Mi"), target_name="web")
    time.sleep(1.1)  # ages are in whole seconds
    scene.vpa("a-second", recommendation("app", "999m", "999Mi"), target_name="web")
    (pod,) = scene.run("Deployment", "web", app())
    assert requests(pod) == TARGET
    assert "by z-first:" in annotations_of(pod)["vpaUpdates"]


def test_a_dry_run_shows_what_would_be_created_and_creates_nothing(scene: Scene) -> None:
    scene.vpa("web", recommendation("app", "250m", "200Mi"), target="ReplicaSet")
    made = scene.create(workload("ReplicaSet", "web", [app()], replicas=0))
    text = json.dumps(pod_of("dry", owned_by(made)))
    answer = scene.cluster.kubectl(
        *("create", "--dry-run=server", "-o", "json", "-n", scene.namespace, "-f", "-"), stdin=text
    )
    assert requests(json.loads(answer)) == TARGET
    assert scene.cluster.api.list("Pod", scene.namespace) == []


def test_mode_auto_is_accepted_with_the_warning_that_kubectl_shows(scene: Scene) -> None:
    text = json.dumps(
        {
            "apiVersion": "autoscaling.k8s.io/v1",
            "kind": "VerticalPodAutoscaler",
            "metadata": {"name": "web"},
            "spec": {
                "targetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"},
                "updatePolicy": {"updateMode": "Auto"},
            },
        }
    )
    done = subprocess.run(
        [builds.binary("kubectl"), "apply", "-n", scene.namespace, "-f", "-"],
        env={"KUBECONFIG": str(scene.cluster.kubeconfig)},
        input=text,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stderr.startswith('Warning: spec.updatePolicy: "Auto" mode is deprecated and will be removed')


def test_native_side_cars_and_init_containers_are_left_alone(scene: Scene) -> None:
    scene.vpa(
        "web",
        recommendation("app", "250m", "200Mi"),
        recommendation("native", "300m", "300Mi"),
        recommendation("init", "300m", "300Mi"),
    )
    body = workload("Deployment", "web", [app()])
    native = {**container("native", SMALL), "restartPolicy": "Always"}
    body["spec"]["template"]["spec"]["initContainers"] = [container("init", SMALL), native]
    scene.create(body)
    (pod,) = scene.pods("web")
    assert requests(pod) == TARGET
    assert [one["resources"]["requests"] for one in pod["spec"]["initContainers"]] == [SMALL, SMALL]


def test_pod_level_resources_are_kept_valid(scene: Scene) -> None:
    scene.vpa("web", recommendation("app", "900m", "900Mi"))
    body = workload("Deployment", "web", [app()])
    body["spec"]["template"]["spec"]["resources"] = {
        "requests": resources("500m", "300Mi"),
        "limits": resources("600m", "400Mi"),
    }
    scene.create(body)
    (pod,) = scene.pods("web")
    assert requests(pod) == resources("500m", "300Mi")


def node_of(pod: Json) -> str:
    """The node that the DaemonSet controller made a pod for."""
    required = pod["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    name: str = required["nodeSelectorTerms"][0]["matchFields"][0]["values"][0]
    return name


def test_a_label_of_nodes_splits_the_pods_of_a_daemon_set(scene: Scene) -> None:
    nodes = sorted(node["metadata"]["name"] for node in scene.cluster.api.list("Node"))
    label = f"size-{scene.namespace}"
    scene.vpa("agent", target="DaemonSet", scope=label)
    groups = {
        "big": recommendation("app", "800m", "800Mi"),
        "small": recommendation("app", "200m", "200Mi"),
        "__absent__": recommendation("app", "400m", "400Mi"),
    }
    status = {"groups": [{"scopeValue": name, "containerRecommendations": [groups[name]]} for name in groups]}
    scene.cluster.api.patch(
        "VerticalPodAutoscaler", "agent", scene.namespace, body={"status": status}, subresource="status"
    )
    for node, size in zip(nodes, ("big", "small"), strict=False):
        scene.cluster.api.patch("Node", node, body={"metadata": {"labels": {label: size}}})
    pods = scene.run("DaemonSet", "agent", app())
    sizes = {node_of(pod): requests(pod)["cpu"] for pod in pods}
    assert sizes == dict(zip(nodes, ("800m", "200m", "400m"), strict=True))


def test_what_vpa_admit_says_is_what_the_live_webhook_does(scene: Scene) -> None:
    policy = {"containerName": "*", "maxAllowed": resources("300m")}
    scene.limit_range(
        {"type": "Container", "max": resources("1", "1Gi"), "default": resources("400m", "500Mi")}
    )
    scene.vpa("web", recommendation("app", "250m", "200Mi"), recommendation("proxy", "777m", "3Gi"))
    scene.vpa(
        "db",
        recommendation("app", "500m"),
        target="StatefulSet",
        resourcePolicy={"containerPolicies": [policy]},
    )
    scene.vpa("off", recommendation("app", "1"), target="DaemonSet", mode="Off")
    with Hook(scene.cluster, "a-recorder", scene.namespace) as recorder:
        scene.run(
            "Deployment", "web", app(), container("proxy", SMALL, resources("200m", "400Mi")), replicas=2
        )
        scene.run("StatefulSet", "db", app(limits=SMALL))
        scene.run("DaemonSet", "off", app())
        scene.run("Deployment", "free", app())
    created = [review["request"]["object"] for review in recorder.reviews]
    assert len(created) >= 7
    for number, pod in enumerate(created):  # the API server names them later
        pod["metadata"].setdefault("name", f"pod-{number}")
        pod["metadata"].setdefault("namespace", scene.namespace)
    others = scene.cluster.kubectl(
        *("get", "vpa,limitranges,deployments,replicasets,statefulsets,daemonsets", "-o", "json"),
        *("-n", scene.namespace),
    )
    items = [*json.loads(others)["items"], *created]
    said = subprocess.run(
        [sys.executable, "-m", "vpa.cli", "admit", "-f", "-", "-o", "json"],
        input=json.dumps({"apiVersion": "v1", "kind": "List", "items": items}),
        capture_output=True,
        text=True,
        check=True,
    )
    live = {_sizes(pod) for pod in scene.cluster.api.list("Pod", scene.namespace)}
    foretold = {
        _sizes(_patched(pod, row["patch"])) for pod, row in zip(created, json.loads(said.stdout), strict=True)
    }
    assert live == foretold
    assert len(live) == 4


def _patched(pod: Json, patch: list[Json]) -> Json:
    result: Json = jsonpatch.apply_patch(pod, patch)
    return result


def _sizes(pod: Json) -> str:
    """Everything that the webhook may set, of pods that are otherwise alike."""
    names = ("vpaUpdates", OBSERVED)
    texts = {name: annotations_of(pod).get(name) for name in names}
    return json.dumps(
        [
            pod["metadata"]["labels"]["app"],
            texts,
            [requests(pod, i) | {"limits": limits(pod, i)} for i in range(len(pod["spec"]["containers"]))],
        ],
        sort_keys=True,
    )
