"""Nothing is left of a run, however its process ends; and what tests do to a cluster's own components."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from tests.testbed import folders, runs, watchdog
from tests.testbed.api import Api, ApiError, Json
from tests.testbed.cluster import Cluster
from tests.testbed.nodes import FakeNodes, release_leases
from tests.testbed.processes import ProcessError, attempts
from tests.testbed.runs import REPOSITORY, Run

pytestmark = pytest.mark.cluster

CRASHING = """
import signal, time
from tests.testbed.runs import Run
signal.signal(signal.SIGINT, signal.default_int_handler)  # shells let their background jobs ignore it
run = Run()
for name in ("one", "two"):
    # A child of the child is to go as well.
    run.add(name, ["sh", "-c", "sleep 600 & sleep 600"]).start()
print(run.folder, flush=True)
try:
    time.sleep(600)
finally:
    run.close()
"""
SLEEPING = 6


@pytest.fixture
def crashing() -> Iterator[tuple[subprocess.Popen[str], Path]]:
    """Another process with a run of six sleeping processes, and the run's folder."""
    with subprocess.Popen(
        [sys.executable, "-c", CRASHING], cwd=REPOSITORY, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            folder = Path(process.stdout.readline().strip())
            for _ in attempts(10, "all of them to run"):
                if len(watchdog.marked(folder)) == SLEEPING:
                    break
            yield process, folder
        finally:
            process.kill()


def config_map(name: str) -> Json:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}}


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_nothing_is_left_when_the_process_is_killed(
    crashing: tuple[subprocess.Popen[str], Path], how: int
) -> None:
    process, folder = crashing
    process.send_signal(how)
    process.wait(timeout=10)
    for _ in attempts(10, "everything to be gone"):
        if not folder.exists() and not watchdog.marked(folder):
            break


def test_the_next_run_ends_what_a_killed_watchdog_left(
    crashing: tuple[subprocess.Popen[str], Path],
) -> None:
    process, folder = crashing
    (dog,) = (
        child
        for child in psutil.Process(process.pid).children()
        if str(folders.HERE / "watchdog.py") in child.cmdline()
    )
    dog.kill()
    process.kill()
    process.wait()
    assert watchdog.marked(folder)
    run = Run()
    run.close()
    assert not watchdog.marked(folder)
    assert not folder.exists()


def test_a_run_that_lives_is_not_reaped(crashing: tuple[subprocess.Popen[str], Path]) -> None:
    _, folder = crashing
    runs.reap()
    assert len(watchdog.marked(folder)) == SLEEPING


def test_a_process_that_ends_too_early_is_reported_with_its_log() -> None:
    run = Run()
    try:
        process = run.add("short", ["sh", "-c", "echo cannot; exit 3"]).start()
        with pytest.raises(ProcessError, match=r"short ended with 3; its log says:\ncannot"):
            for _ in attempts(10, "it to work", process):
                pass
    finally:
        run.close()


def test_two_clusters_live_side_by_side(cluster: Cluster, namespace: str) -> None:
    cluster.api.create(config_map("here"), namespace)
    with Cluster(nodes=[FakeNodes(count=1)]) as other:
        assert other.server != cluster.server
        other.create_namespace(namespace)
        with pytest.raises(ApiError) as missing:
            other.api.get("ConfigMap", "here", namespace)
        assert missing.value.status == 404
        assert [node["metadata"]["name"] for node in other.api.list("Node")] == ["fake-0"]
        assert cluster.folder != other.folder
    assert not other.folder.exists()
    assert cluster.api.get("ConfigMap", "here", namespace)


def test_a_person_gets_the_same_cluster() -> None:
    def testbed(*arguments: str) -> tuple[int, str]:
        command = [sys.executable, "-m", "tests.testbed", f"--name=test-{os.getpid()}", *arguments]
        done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)
        return done.returncode, done.stdout

    assert testbed("status")[0] == 1
    assert testbed("kubeconfig")[0] == 1
    try:
        assert testbed("up", "--fake-nodes=1")[0] == 0
        assert testbed("up")[0] == 1
        kubeconfig = Path(testbed("kubeconfig")[1].strip())
        kubectl = Path(sys.executable).parent / "kubectl"
        nodes = subprocess.check_output([kubectl, f"--kubeconfig={kubeconfig}", "get", "nodes"], text=True)
        assert "fake-0" in nodes
        code, text = testbed("status")
        assert code == 0
        assert "kube-apiserver" in text
    finally:
        assert testbed("down")[0] == 0
    assert not kubeconfig.exists()
    assert testbed("down")[0] == 1


@pytest.fixture(scope="module")
def pair() -> Iterator[Cluster]:
    """A cluster with two API servers, for being maltreated."""
    with Cluster(apiservers=2, nodes=[FakeNodes(count=1)]) as running:
        yield running


def test_objects_outlive_a_crash_of_etcd(pair: Cluster) -> None:
    pair.api.create(config_map("kept"), "default")
    etcd = pair.process("etcd")
    etcd.kill()
    with pytest.raises((ApiError, OSError)):
        pair.api.request("GET", "/readyz")
    etcd.start()
    pair.wait_until_ready()
    assert pair.api.get("ConfigMap", "kept", "default")


def test_an_api_server_comes_back_on_its_port_while_the_other_serves(pair: Cluster) -> None:
    first = pair.process("kube-apiserver")
    pair.api.create(config_map("before"), "default")
    first.kill()
    with pytest.raises(OSError, match="refused"):
        pair.api.get("ConfigMap", "before", "default")
    other = Api(pair.servers[1], pair.api.context)
    assert other.get("ConfigMap", "before", "default")
    other.close()
    first.start()
    pair.wait_until_ready()
    assert pair.api.get("ConfigMap", "before", "default")


def test_a_paused_api_server_keeps_its_connections_and_answers_later(pair: Cluster) -> None:
    server = pair.process("kube-apiserver")
    server.pause()
    with ThreadPoolExecutor(1) as thread:
        answer = thread.submit(pair.api.list, "Node")
        time.sleep(0.3)
        assert not answer.done()
        server.resume()
        assert len(answer.result(timeout=20)) == 1


def test_pods_run_again_after_kwok_was_restarted(pair: Cluster) -> None:
    kwok = pair.process("kwok")
    kwok.kill()
    release_leases(pair)
    kwok.start()
    containers = [{"name": "app", "image": "app:1"}]
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "app"}, "spec": {"containers": containers}}
    pair.api.create(pod, "default")
    for _ in attempts(20, "the pod to run"):
        if pair.api.get("Pod", "app", "default")["status"]["phase"] == "Running":
            break


def test_a_service_runs_under_its_own_account(cluster: Cluster, namespace: str) -> None:
    account = cluster.service_account(namespace, "reader")
    account.grant([{"apiGroups": [""], "resources": ["pods"], "verbs": ["list"]}], namespace=namespace)
    kubectl = [str(Path(sys.executable).parent / "kubectl"), f"--kubeconfig={account.kubeconfig}"]
    with cluster.spawn("allowed", [*kubectl, "get", "pods"]) as service:
        assert service.wait(20) == 0
    with cluster.spawn("forbidden", [*kubectl, "get", "secrets"]) as service:
        assert service.wait(20) == 1
    assert f'User "{account.user}" cannot list resource "secrets"' in service.logs()
    before = account.token
    assert account.rotate() != before
    with cluster.spawn("allowed", [*kubectl, "get", "pods"]) as service:
        assert service.wait(20) == 0
