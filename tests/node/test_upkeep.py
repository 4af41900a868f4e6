"""Our own Deployments while they are replaced and killed: nobody notices, and nothing needs help."""

from __future__ import annotations

import contextlib
import threading
import time
from collections import Counter
from collections.abc import Iterator

import pytest

from tests.node.figures import Figures
from tests.node.installation import COMPONENTS, SYSTEM, Chart
from tests.node.workloads import Namespace, container, is_ready, millicores, pod_spec, restarts
from tests.testbed.api import ApiError, Json
from tests.testbed.cluster import Cluster
from tests.testbed.processes import attempts
from tests.testbed.realnodes.nodes import RealNodes

TARGET = {"cpu": "40m", "memory": "48Mi"}
LEASES = {"updater": "vpa-updater-lease", "recommender": "vpa-recommender-lease"}


class Load:
    """Creates pods of one ReplicaSet all the time, keeps none of them, and looks at what each would get."""

    def __init__(self, namespace: Namespace) -> None:
        self._namespace = namespace
        namespace.deployment("load", pod_spec(container(requests={"cpu": "10m", "memory": "16Mi"})))
        namespace.vpa("load", mode="Initial")
        namespace.recommend("load", {"app": TARGET})
        pod = namespace.pod("load")
        self._body: Json = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "generateName": "load-",
                "labels": pod["metadata"]["labels"],
                "ownerReferences": pod["metadata"]["ownerReferences"],
            },
            "spec": pod_spec(container(requests={"cpu": "10m", "memory": "16Mi"})),
        }
        self.created = 0
        self.wrong: list[str] = []
        self.slowest = 0.0
        self._over = threading.Event()

    def create(self) -> Json:
        """One pod as the API server would store it."""
        path = f"{self._namespace.api.path('Pod', None, self._namespace.name)}?dryRun=All"
        return self._namespace.api.request("POST", path, self._body)

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Create pods, some twenty a second, while the block runs."""
        for _ in attempts(30, "the webhook to know the recommendation", pause=0.2):
            if _requests(self.create()) == TARGET:
                break
        thread = threading.Thread(target=self._go)
        thread.start()
        try:
            yield
        finally:
            self._over.set()
            thread.join()

    def _go(self) -> None:
        while not self._over.wait(0.05):
            start = time.monotonic()
            try:
                found = _requests(self.create())
                if found != TARGET:
                    self.wrong.append(f"admitted with {found}")
            except (ApiError, OSError) as error:
                self.wrong.append(str(error))
            self.slowest = max(self.slowest, time.monotonic() - start)
            self.created += 1


@pytest.mark.brief
def test_a_rolling_update_under_load_leaves_no_pod_without_its_size_and_loses_no_recommendation(
    chart: Chart, real: Cluster, namespace: Namespace, figures: Figures
) -> None:
    namespace.deployment("busy", pod_spec(container(milli=100, mib=40)))
    namespace.vpa("busy", mode="Off", recommender=None)
    before = recommended(namespace, "busy", cpu=100)
    count = samples(namespace)
    load = Load(namespace)
    with load.running():
        start = time.monotonic()
        for component in COMPONENTS:
            real.kubectl("rollout", "restart", f"deployment/{chart.deployment(component)}", "-n", SYSTEM)
        chart.wait(180)
        for component in COMPONENTS:
            for _ in attempts(60, f"the old pods of {component} to be gone", pause=0.2):
                if len(real.api.list("Pod", SYSTEM, labelSelector=_label(component))) == 2:
                    break
        figures("seconds", round(time.monotonic() - start))
    figures("pods", load.created)
    figures("slowest", round(load.slowest, 2))
    assert load.wrong == []
    assert load.created > 100
    after = recommended(namespace, "busy", cpu=100)
    assert set(after) == set(before)
    assert samples(namespace) >= max(count, 1), "checkpoints are saved before the end, and gone on with"


def test_each_of_our_pods_may_be_killed_and_resizes_go_on(
    chart: Chart, namespace: Namespace, figures: Figures
) -> None:
    resized = Resized(namespace)
    for component in COMPONENTS:
        start = time.monotonic()
        for pod in chart.pods(component):
            path = namespace.api.path("Pod", pod["metadata"]["name"], SYSTEM)
            namespace.api.request("DELETE", f"{path}?gracePeriodSeconds=0")
        resized.again(seconds=120)
        chart.wait()
        figures(f"{component}_seconds", round(time.monotonic() - start))


def test_a_lost_api_server_restarts_no_more_than_the_leaders_who_cannot_renew_their_leases(
    chart: Chart, real: Cluster, namespace: Namespace, figures: Figures
) -> None:
    resized = Resized(namespace)
    before = lives(chart)
    apiserver = real.process("kube-apiserver")
    apiserver.kill()
    time.sleep(8)
    apiserver.start()
    real.wait_until_ready()
    start = time.monotonic()
    resized.again(seconds=90)
    figures("seconds", round(time.monotonic() - start))
    after = lives(chart)
    assert after.keys() == before.keys()
    restarted = Counter(
        component for component, uid in after if after[component, uid] > before[component, uid]
    )
    assert restarted["admission-controller"] == 0
    assert max(restarted["updater"], restarted["recommender"]) <= 1


def test_a_lost_node_with_the_leader_on_it_is_survived(
    chart: Chart, real: Cluster, nodes: RealNodes, namespace: Namespace, figures: Figures
) -> None:
    """One replica of each is on each node; the lease of the lost leader has to run out."""
    lost = leader_node(real, "updater")
    left = next(node.name for node in nodes.nodes if node.name != lost)
    resized = Resized(namespace, node=left)
    start = time.monotonic()
    nodes[lost].kill()
    try:
        resized.again(seconds=120)
        figures("seconds", round(time.monotonic() - start))
    finally:
        nodes[lost].start()
    nodes.wait_for(real, nodes[lost])
    chart.wait()


class Resized:
    """A pod that is resized again and again, which needs the updater, and the webhook's lease."""

    def __init__(self, namespace: Namespace, *, node: str = "node-2") -> None:
        self._namespace = namespace
        self._cpu = 20
        namespace.deployment("again", pod_spec(container(requests={"cpu": "20m"}), node=node))
        namespace.vpa("again")

    def again(self, *, seconds: float) -> None:
        """Recommend more, and wait until it is in force."""
        self._cpu += 20
        self._namespace.recommend("again", {"app": {"cpu": f"{self._cpu}m"}})
        sizes = {"app": {"requests": {"cpu": f"{self._cpu}m"}}}
        assert is_ready(self._namespace.in_force("again", sizes, seconds=seconds))


def recommended(namespace: Namespace, vpa: str, *, cpu: int) -> Json:
    """Container → target, as soon as there is one of at least *cpu* millicores."""
    for _ in attempts(90, f"a recommendation for {vpa}", pause=0.5):
        status = namespace.api.get("VerticalPodAutoscaler", vpa, namespace.name).get("status", {})
        found = status.get("recommendation", {}).get("containerRecommendations", ())
        if found and all(millicores(one["target"]["cpu"]) >= cpu for one in found):
            return {one["containerName"]: one["target"] for one in found}
    raise AssertionError


def samples(namespace: Namespace) -> int:
    """The samples in all checkpoints of the namespace."""
    found = namespace.api.list("VerticalPodAutoscalerCheckpoint", namespace.name)
    return sum(one.get("status", {}).get("totalSamplesCount", 0) for one in found)


def lives(chart: Chart) -> dict[tuple[str, str], int]:
    """(component, uid of a pod) → how often it was restarted."""
    return {(each, pod["metadata"]["uid"]): restarts(pod) for each in COMPONENTS for pod in chart.pods(each)}


def leader_node(cluster: Cluster, component: str) -> str:
    """The node of the pod that holds the component's lease."""
    holder = cluster.api.get("Lease", LEASES[component], SYSTEM)["spec"]["holderIdentity"]
    pod = cluster.api.get("Pod", holder.rpartition("_")[0], SYSTEM)
    return str(pod["spec"]["nodeName"])


def _label(component: str) -> str:
    return f"app.kubernetes.io/component={component}"


def _requests(pod: Json) -> Json:
    return dict(pod["spec"]["containers"][0]["resources"].get("requests", {}))
