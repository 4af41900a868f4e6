"""What the fake nodes' kubelets do to pods, seen through the real API server."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.testbed.api import ApiError, Json
from tests.testbed.cluster import Cluster
from tests.testbed.processes import attempts

SMALL = {"requests": {"cpu": "100m", "memory": "64Mi"}, "limits": {"cpu": "200m", "memory": "128Mi"}}
LARGER = {"requests": {"cpu": "150m", "memory": "96Mi"}, "limits": {"cpu": "300m", "memory": "192Mi"}}


def pod(name: str = "app", annotations: dict[str, str] | None = None, **spec: Any) -> Json:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "annotations": annotations or {}},
        "spec": {"containers": [{"name": "web", "image": "web:1", "resources": SMALL}]} | spec,
    }


def condition(status: Json, kind: str) -> Json | None:
    return next((one for one in status.get("conditions", ()) if one["type"] == kind), None)


class Pods:
    """The pod `app` of one namespace."""

    def __init__(self, cluster: Cluster, namespace: str) -> None:
        self._api = cluster.api
        self._namespace = namespace

    def create(self, body: Json) -> Json:
        self._api.create(body, self._namespace)
        return self.until("it runs", lambda status: status["phase"] == "Running")

    def get(self) -> Json:
        return self._api.get("Pod", "app", self._namespace)

    def until(self, what: str, holds: Any) -> Json:
        """The pod as soon as *holds* is true of its status."""
        for _ in attempts(20, what):
            now = self.get()
            if holds(now["status"]):
                return now
        raise AssertionError("unreachable")

    def annotate(self, **annotations: str | None) -> None:
        body = {"metadata": {"annotations": {f"kubelet.testbed/{k}": v for k, v in annotations.items()}}}
        self._api.patch("Pod", "app", self._namespace, body=body)

    def resize(self, resources: Json) -> Json:
        return self.resize_with({"spec": {"containers": [{"name": "web", "resources": resources}]}})

    def resize_with(self, body: Json) -> Json:
        return self._api.patch(
            "Pod", "app", self._namespace, body=body, subresource="resize", how="strategic"
        )


@pytest.fixture
def pods(cluster: Cluster, namespace: str) -> Pods:
    return Pods(cluster, namespace)


def test_a_pod_runs_with_the_resources_that_its_spec_asks_for(pods: Pods) -> None:
    running = pods.create(pod())
    (web,) = running["status"]["containerStatuses"]
    assert web["ready"]
    assert web["restartCount"] == 0
    assert "running" in web["state"]
    assert web["resources"] == SMALL
    assert web["allocatedResources"] == SMALL["requests"]
    assert running["status"]["qosClass"] == "Burstable"
    assert running["status"]["observedGeneration"] == running["metadata"]["generation"]
    ready = condition(running["status"], "Ready")
    assert ready is not None
    assert ready["status"] == "True"
    assert ready["observedGeneration"] == running["metadata"]["generation"]


def test_init_containers_are_done_and_sidecars_keep_running(pods: Pods) -> None:
    running = pods.create(
        pod(
            initContainers=[
                {"name": "setup", "image": "setup:1"},
                {"name": "side", "image": "side:1", "restartPolicy": "Always", "resources": SMALL},
            ]
        )
    )
    setup, side = running["status"]["initContainerStatuses"]
    assert setup["state"]["terminated"]["reason"] == "Completed"
    assert "running" in side["state"]
    assert side["resources"] == SMALL


def test_a_start_delay_keeps_a_pod_pending(pods: Pods, cluster: Cluster, namespace: str) -> None:
    cluster.api.create(pod(annotations={"kubelet.testbed/start-delay": "1h"}), namespace)
    scheduled = pods.until("it has a node", lambda status: condition(status, "PodScheduled") is not None)
    assert scheduled["spec"]["nodeName"]
    assert scheduled["status"]["phase"] == "Pending"
    pods.annotate(**{"start-delay": None})
    pods.until("it runs", lambda status: status["phase"] == "Running")


def test_a_resize_comes_into_force_without_a_restart(pods: Pods) -> None:
    pods.create(pod(annotations={"kubelet.testbed/resize-delay": "300ms"}))
    generation = pods.resize(LARGER)["metadata"]["generation"]
    started = pods.until("it is being resized", lambda status: condition(status, "PodResizeInProgress"))
    progress = condition(started["status"], "PodResizeInProgress")
    assert progress is not None
    assert progress["status"] == "True"
    assert "reason" not in progress
    assert progress["observedGeneration"] == generation
    (web,) = started["status"]["containerStatuses"]
    assert web["allocatedResources"] == LARGER["requests"]
    assert web["resources"] == SMALL

    done = pods.until("it is resized", lambda status: status["containerStatuses"][0]["resources"] == LARGER)
    assert condition(done["status"], "PodResizeInProgress") is None
    assert done["status"]["containerStatuses"][0]["restartCount"] == 0
    assert done["status"]["observedGeneration"] == generation


def test_a_resize_restarts_a_container_whose_policy_says_so(pods: Pods) -> None:
    policy = [{"resourceName": "memory", "restartPolicy": "RestartContainer"}]
    body = pod()
    body["spec"]["containers"][0]["resizePolicy"] = policy
    pods.create(body)
    only_cpu = {kind: LARGER[kind] | {"memory": SMALL[kind]["memory"]} for kind in ("requests", "limits")}
    for size, restarts in ((only_cpu, 0), (LARGER, 1)):
        pods.resize(size)
        done = pods.until(
            "it is resized", lambda status, size=size: status["containerStatuses"][0]["resources"] == size
        )
        assert done["status"]["containerStatuses"][0]["restartCount"] == restarts


@pytest.mark.parametrize(("mode", "reason"), [("deferred", "Deferred"), ("infeasible", "Infeasible")])
def test_a_resize_can_be_left_pending(pods: Pods, mode: str, reason: str) -> None:
    pods.create(pod(annotations={"kubelet.testbed/resize": mode, "kubelet.testbed/resize-delay": "20ms"}))
    generation = pods.resize(LARGER)["metadata"]["generation"]
    waiting = pods.until("it is pending", lambda status: condition(status, "PodResizePending"))
    pending = condition(waiting["status"], "PodResizePending")
    assert pending is not None
    assert (pending["status"], pending["reason"]) == ("True", reason)
    assert pending["observedGeneration"] == generation
    assert pending["message"]
    (web,) = waiting["status"]["containerStatuses"]
    assert web["resources"] == SMALL
    assert web["allocatedResources"] == SMALL["requests"]

    again = pods.resize({kind: LARGER[kind] | {"cpu": "400m"} for kind in LARGER})["metadata"]["generation"]
    newer = pods.until(
        "the newer size is pending",
        lambda status: (condition(status, "PodResizePending") or {}).get("observedGeneration") == again,
    )
    since = (condition(newer["status"], "PodResizePending") or {})["lastTransitionTime"]
    assert since == pending["lastTransitionTime"]

    pods.annotate(resize=None)
    done = pods.until(
        "it is resized", lambda status: status["containerStatuses"][0]["resources"]["limits"]["cpu"] == "400m"
    )
    assert condition(done["status"], "PodResizePending") is None


def test_a_pending_resize_that_is_taken_back_leaves_nothing(pods: Pods) -> None:
    pods.create(pod(annotations={"kubelet.testbed/resize": "deferred"}))
    pods.resize(LARGER)
    pods.until("it is pending", lambda status: condition(status, "PodResizePending"))
    generation = pods.resize(SMALL)["metadata"]["generation"]
    settled = pods.until(
        "nothing is pending",
        lambda status: (
            not condition(status, "PodResizePending") and status["observedGeneration"] == generation
        ),
    )
    assert settled["status"]["containerStatuses"][0]["resources"] == SMALL


def test_a_resize_can_fail(pods: Pods) -> None:
    pods.create(
        pod(annotations={"kubelet.testbed/resize": "error", "kubelet.testbed/resize-message": "below use"})
    )
    generation = pods.resize(LARGER)["metadata"]["generation"]
    failed = pods.until("it failed", lambda status: condition(status, "PodResizeInProgress"))
    progress = condition(failed["status"], "PodResizeInProgress")
    assert progress is not None
    assert (progress["reason"], progress["message"]) == ("Error", "below use")
    assert progress["observedGeneration"] == generation
    (web,) = failed["status"]["containerStatuses"]
    assert web["resources"] == SMALL
    assert web["allocatedResources"] == LARGER["requests"]

    pods.annotate(resize=None)
    done = pods.until("it is resized", lambda status: status["containerStatuses"][0]["resources"] == LARGER)
    assert condition(done["status"], "PodResizeInProgress") is None


def test_a_resize_beyond_the_node_is_refused_by_the_api_server(pods: Pods) -> None:
    pods.create(pod())
    with pytest.raises(ApiError) as refused:
        pods.resize({"requests": {"cpu": "64", "memory": "64Mi"}, "limits": {"cpu": "64", "memory": "128Mi"}})
    assert refused.value.status == 403
    assert "NodeCapacity" in json.dumps(refused.value.body["details"]["causes"])


def test_pod_level_resources_are_resized_too(pods: Pods) -> None:
    body = pod(resources={"requests": {"cpu": "1", "memory": "1Gi"}, "limits": {"cpu": "2", "memory": "2Gi"}})
    running = pods.create(body)
    assert running["status"]["resources"] == body["spec"]["resources"]
    grown = {"requests": {"cpu": "2", "memory": "2Gi"}, "limits": {"cpu": "3", "memory": "3Gi"}}
    pods.resize_with({"spec": {"resources": grown}})
    pods.until("the pod is resized", lambda status: status["resources"] == grown)


def test_a_container_is_killed_for_memory_on_demand_and_starts_again(pods: Pods) -> None:
    pods.create(pod(annotations={"kubelet.testbed/restart-delay": "300ms"}))
    pods.annotate(**{"oom-kill": "web"})
    killed = pods.until(
        "it is killed", lambda status: "terminated" in status["containerStatuses"][0]["state"]
    )
    (web,) = killed["status"]["containerStatuses"]
    assert web["state"]["terminated"]["reason"] == "OOMKilled"
    assert web["state"]["terminated"]["exitCode"] == 137
    assert (condition(killed["status"], "Ready") or {})["status"] == "False"

    back = pods.until("it runs again", lambda status: "running" in status["containerStatuses"][0]["state"])
    (web,) = back["status"]["containerStatuses"]
    assert web["restartCount"] == 1
    assert web["lastState"]["terminated"]["reason"] == "OOMKilled"
    assert web["resources"] == SMALL
    assert (condition(back["status"], "Ready") or {})["status"] == "True"
    assert "kubelet.testbed/oom-kill" not in back["metadata"]["annotations"]

    pods.annotate(**{"oom-kill": "*"})
    pods.until("it is killed again", lambda status: status["containerStatuses"][0]["restartCount"] == 2)


def test_a_jobs_pod_completes(cluster: Cluster, namespace: str) -> None:
    spec = {"containers": [{"name": "work", "image": "work:1"}], "restartPolicy": "Never"}
    template = {"metadata": {"annotations": {"kubelet.testbed/complete-after": "100ms"}}, "spec": spec}
    job = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": "once"},
        "spec": {"template": template},
    }
    cluster.api.create(job, namespace)
    for _ in attempts(20, "the job to succeed"):
        if cluster.api.get("Job", "once", namespace)["status"].get("succeeded") == 1:
            break
    (finished,) = cluster.api.list("Pod", namespace)
    assert finished["status"]["phase"] == "Succeeded"
    assert finished["status"]["containerStatuses"][0]["state"]["terminated"]["reason"] == "Completed"


def test_a_deleted_pod_is_gone_and_its_deployment_makes_another(cluster: Cluster, namespace: str) -> None:
    cluster.kubectl("create", "deployment", "web", "--image=web:1", "--replicas=2", "-n", namespace)
    cluster.kubectl("wait", "--for=condition=Available", "deployment/web", "-n", namespace)
    first = {one["metadata"]["uid"] for one in cluster.api.list("Pod", namespace)}
    cluster.api.delete("Pod", None, namespace)
    for _ in attempts(20, "two new pods to run"):
        now = cluster.api.list("Pod", namespace)
        running = {one["metadata"]["uid"] for one in now if one["status"]["phase"] == "Running"} - first
        if len(running) == 2:
            break
    assert len(running) == 2
