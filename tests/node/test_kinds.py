"""Each kind of workload once, as docs/real-nodes.md tells it."""

from __future__ import annotations

import time

import pytest

from tests.node.figures import Figures
from tests.node.workloads import (
    Namespace,
    container,
    is_ready,
    millicores,
    pod_spec,
    restarts,
    statuses,
)
from tests.testbed.api import Json
from tests.testbed.processes import attempts

pytestmark = pytest.mark.usefixtures("chart")

SECONDS = 60.0
SMALL = {"cpu": "50m", "memory": "32Mi"}
TARGET = {"cpu": "100m", "memory": "64Mi"}


def since(start: float) -> str:
    return f"{time.monotonic() - start:.1f} s"


def requests(resources: Json) -> Json:
    return dict(resources.get("requests", {}))


def spec_requests(pod: Json, name: str = "app") -> Json:
    spec = pod["spec"]
    every = [*spec["containers"], *spec.get("initContainers", ())]
    return requests(next(each for each in every if each["name"] == name).get("resources", {}))


def test_burstable_and_guaranteed_pods_are_resized_and_keep_their_class(
    namespace: Namespace, figures: Figures
) -> None:
    equal = {"cpu": "50m", "memory": "32Mi"}
    for name, app, expected in (
        ("burstable", container(requests=equal), {"requests": TARGET}),
        ("guaranteed", container(requests=equal, limits=equal), {"requests": TARGET, "limits": TARGET}),
    ):
        namespace.deployment(name, pod_spec(app, node="node-1"))
        namespace.vpa(name)
        first = namespace.pod(name)
        start = namespace.recommend(name, {"app": TARGET})
        after = namespace.in_force(name, {"app": expected}, seconds=SECONDS)
        figures(name, since(start))
        assert after["metadata"]["uid"] == first["metadata"]["uid"]
        assert restarts(after) == 0
        assert after["status"]["qosClass"] == name.capitalize()


def test_a_besteffort_pod_is_evicted_since_its_class_cannot_change_in_place(
    namespace: Namespace, figures: Figures
) -> None:
    namespace.deployment("effortless", pod_spec(container(), node="node-1"))
    namespace.vpa("effortless")
    first = namespace.pod("effortless")
    start = namespace.recommend("effortless", {"app": TARGET})
    after = replaced(namespace, "effortless", first)
    figures("replaced", since(start))
    assert spec_requests(after) == TARGET
    assert after["status"]["qosClass"] == "Burstable"


def test_all_containers_of_a_pod_are_resized_in_one_go(namespace: Namespace, figures: Figures) -> None:
    two = [container("app", requests=SMALL), container("other", port=8081, requests=SMALL)]
    namespace.deployment("pair", pod_spec(*two, node="node-1"))
    namespace.vpa("pair")
    other = {"cpu": "70m", "memory": "48Mi"}
    start = namespace.recommend("pair", {"app": TARGET, "other": other})
    sizes = {"app": {"requests": TARGET}, "other": {"requests": other}}
    after = namespace.in_force("pair", sizes, seconds=SECONDS)
    figures("resized", since(start))
    assert restarts(after) == 0
    assert after["metadata"]["generation"] == 2, "one resize"


def test_native_sidecars_and_init_containers_are_left_as_they_are(
    namespace: Namespace, figures: Figures
) -> None:
    sidecar = container("sidecar", port=8081, restartPolicy="Always", requests=SMALL)
    prepare = container("prepare", port=8082, requests=SMALL)
    del prepare["readinessProbe"]
    prepare["args"] = ["-mib=1", "-after=1s"]
    spec = pod_spec(container(requests=SMALL), node="node-1", initContainers=[prepare, sidecar])
    namespace.deployment("helped", spec)
    namespace.vpa("helped")
    wanted = dict.fromkeys(("app", "sidecar", "prepare"), TARGET)
    start = namespace.recommend("helped", wanted)
    after = namespace.in_force("helped", {"app": {"requests": TARGET}}, seconds=SECONDS)
    figures("resized", since(start))
    found = {one["name"]: requests(one.get("resources", {})) for one in statuses(after)}
    assert spec_requests(after, "prepare") == SMALL
    assert found["sidecar"] == SMALL
    assert restarts(after) == 0


def test_the_pod_of_a_job_is_resized_and_finishes(namespace: Namespace, figures: Figures) -> None:
    app = container(requests=SMALL)
    app["args"] += ["-after=25s"]
    spec = pod_spec(app, node="node-1", restartPolicy="Never")
    namespace.controller("Job", "batch", spec, replicas=None)
    namespace.vpa("batch", kind="Job")
    first = namespace.pod("batch")
    start = namespace.recommend("batch", {"app": TARGET})
    namespace.in_force("batch", {"app": {"requests": TARGET}}, seconds=SECONDS)
    figures("resized", since(start))
    for _ in attempts(60, "the Job to be complete", pause=0.5):
        job = namespace.api.get("Job", "batch", namespace.name)
        if job["status"].get("succeeded") == 1:
            break
    assert namespace.pod("batch")["metadata"]["uid"] == first["metadata"]["uid"]


def test_a_statefulset_behind_a_budget_that_allows_none_is_resized_but_not_evicted(
    namespace: Namespace, figures: Figures
) -> None:
    namespace.controller(
        "StatefulSet", "store", pod_spec(container(requests=SMALL)), replicas=2, serviceName="store"
    )
    namespace.api.create(
        {
            "apiVersion": "policy/v1",
            "kind": "PodDisruptionBudget",
            "metadata": {"name": "store"},
            "spec": {"maxUnavailable": 0, "selector": {"matchLabels": {"app": "store"}}},
        },
        namespace.name,
    )
    namespace.vpa("store", kind="StatefulSet", minimum=2)
    first = {pod["metadata"]["uid"] for pod in namespace.pods("store")}
    start = namespace.recommend("store", {"app": TARGET})
    for _ in attempts(SECONDS, "both pods to be resized", pause=0.2):
        found = namespace.pods("store")
        if all(requests(statuses(pod)[0].get("resources", {})) == TARGET for pod in found):
            break
    figures("both resized", since(start))
    assert {pod["metadata"]["uid"] for pod in found} == first
    assert not any(map(restarts, found))


def test_a_daemonset_on_unlike_nodes_is_sized_on_each_as_far_as_the_node_can_hold(
    namespace: Namespace, figures: Figures
) -> None:
    namespace.controller("DaemonSet", "agent", pod_spec(container(requests=SMALL)), replicas=2)
    namespace.vpa("agent", kind="DaemonSet")
    small = millicores(namespace.api.get("Node", "node-2")["status"]["allocatable"]["cpu"])
    target = {"cpu": f"{small + 300}m", "memory": "64Mi"}
    start = namespace.recommend("agent", {"app": target})
    for _ in attempts(SECONDS, "the pod of the large node to be resized", pause=0.2):
        by_node = {pod["spec"]["nodeName"]: pod for pod in namespace.pods("agent")}
        if spec_requests(by_node["node-1"]) == target:
            break
    figures("resized on the large node", since(start))
    namespace.blocked("agent", "NoNodeFits")
    figures("NoNodeFits said", since(start))
    by_node = {pod["spec"]["nodeName"]: pod for pod in namespace.pods("agent")}
    assert spec_requests(by_node["node-2"]) == SMALL
    assert all(map(is_ready, by_node.values()))


def test_a_resource_that_an_hpa_scales_by_is_left_to_it(namespace: Namespace, figures: Figures) -> None:
    namespace.deployment("scaled", pod_spec(container(milli=20, requests=SMALL)), replicas=2)
    utilisation = {"type": "Utilization", "averageUtilization": 95}
    reference = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "scaled"}
    namespace.api.create(
        {
            "apiVersion": "autoscaling/v2",
            "kind": "HorizontalPodAutoscaler",
            "metadata": {"name": "scaled"},
            "spec": {
                "scaleTargetRef": reference,
                "minReplicas": 2,
                "maxReplicas": 3,
                "metrics": [{"type": "Resource", "resource": {"name": "cpu", "target": utilisation}}],
            },
        },
        namespace.name,
    )
    namespace.vpa("scaled", minimum=2)
    start = namespace.recommend("scaled", {"app": TARGET})
    for _ in attempts(SECONDS, "the condition", pause=0.2):
        if namespace.conditions("scaled").get("HPAConflict", {}).get("status") == "True":
            break
    for _ in attempts(SECONDS, "the memory to be resized", pause=0.2):
        found = [spec_requests(pod) for pod in namespace.pods("scaled")]
        if all(each["memory"] == TARGET["memory"] for each in found):
            break
    figures("memory of both resized", since(start))
    assert {each["cpu"] for each in found} == {"50m"}


def replaced(namespace: Namespace, app: str, first: Json) -> Json:
    """Wait until another pod than *first* is ready; it."""
    for _ in attempts(SECONDS, f"another pod of {app}", pause=0.2):
        found = namespace.pods(app)
        if len(found) == 1 and found[0]["metadata"]["uid"] != first["metadata"]["uid"] and is_ready(found[0]):
            return found[0]
    raise AssertionError
