"""The fault proxy in front of the real API server."""

from __future__ import annotations

import asyncio
import contextlib
import json
import ssl
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

import aiohttp
import pytest

from tests.testbed.api import Api, ApiError
from tests.testbed.cluster import Cluster
from tests.testbed.faults import FaultProxy

PODS = "/api/v1/pods"


@pytest.fixture
def token(cluster: Cluster, namespace: str) -> str:
    account = cluster.service_account(namespace, "reader")
    account.grant(
        [
            {
                "apiGroups": [""],
                "resources": ["pods", "configmaps"],
                "verbs": ["get", "list", "watch", "create"],
            }
        ]
    )
    return account.token


@pytest.fixture
def proxy(cluster: Cluster) -> Iterator[FaultProxy]:
    with cluster.fault_proxy() as running:
        yield running


@pytest.fixture
def api(cluster: Cluster, proxy: FaultProxy, token: str) -> Iterator[Api]:
    context = ssl.create_default_context(cafile=str(cluster.ca))
    with contextlib.closing(Api(proxy.url, context, token=token)) as client:
        yield client


@pytest.fixture
async def session(cluster: Cluster, proxy: FaultProxy, token: str) -> AsyncIterator[aiohttp.ClientSession]:
    context = ssl.create_default_context(cafile=str(cluster.ca))
    async with aiohttp.ClientSession(
        proxy.url,
        headers={"Authorization": f"Bearer {token}"},
        connector=aiohttp.TCPConnector(ssl=context),
        timeout=aiohttp.ClientTimeout(total=10),
    ) as client:
        yield client
    await asyncio.sleep(0.1)  # its transports end a moment after it


def watching(namespace: str) -> tuple[str, dict[str, str]]:
    """Path and query of a watch that begins with the ConfigMap of every namespace, `kube-root-ca.crt`."""
    return f"/api/v1/namespaces/{namespace}/configmaps", {"watch": "1"}


def config_map(cluster: Cluster, namespace: str, name: str) -> None:
    body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}}
    cluster.api.create(body, namespace)


def test_without_faults_requests_pass_as_they_are(api: Api, proxy: FaultProxy, namespace: str) -> None:
    assert api.request("GET", PODS)["kind"] == "PodList"
    path = f"/api/v1/namespaces/{namespace}/configmaps"
    body = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "one"},
        "data": {"k": "v" * 300_000},
    }
    assert api.request("POST", path, body)["data"] == body["data"]
    with pytest.raises(ApiError) as refused:
        api.request("GET", "/api/v1/secrets")
    assert refused.value.status == 403
    assert [(seen.method, seen.path, seen.status) for seen in proxy.requests] == [
        ("GET", PODS, 200),
        ("POST", path, 201),
        ("GET", "/api/v1/secrets", 403),
    ]
    assert proxy.count(path="/api/v1/*", method="GET") == 2


@pytest.mark.parametrize("status", [403, 410, 429, 500])
def test_chosen_paths_are_answered_with_an_error_so_many_times(
    api: Api, proxy: FaultProxy, status: int
) -> None:
    proxy.answer(status, path="/api/v1/po*", retry_after=7, count=2)
    for _ in range(2):
        with pytest.raises(ApiError) as refused:
            api.request("GET", PODS)
        assert refused.value.status == status
        assert refused.value.body["code"] == status
    assert api.request("GET", PODS)["kind"] == "PodList"


async def test_retry_after_is_sent(session: aiohttp.ClientSession, proxy: FaultProxy) -> None:
    proxy.answer(429, retry_after=7)
    async with session.get(PODS) as answer:
        assert answer.headers["Retry-After"] == "7"


def test_only_the_pages_asked_for_can_expire(api: Api, proxy: FaultProxy) -> None:
    proxy.answer(410, query={"continue": "?*"})
    assert api.request("GET", f"{PODS}?limit=1")["kind"] == "PodList"
    with pytest.raises(ApiError):
        api.request("GET", f"{PODS}?limit=1&continue=abc")


def test_a_connection_is_dropped_instead_of_an_answer(api: Api, proxy: FaultProxy) -> None:
    proxy.drop(path=PODS, count=1)
    with pytest.raises(ConnectionError):
        api.request("GET", PODS)
    assert proxy.requests[0].status is None
    assert api.request("GET", PODS)["kind"] == "PodList"


def test_an_answer_comes_late(api: Api, proxy: FaultProxy) -> None:
    proxy.delay(0.3, count=1)
    started = time.monotonic()
    api.request("GET", PODS)
    assert time.monotonic() - started >= 0.3


def test_bytes_trickle(api: Api, proxy: FaultProxy) -> None:
    size = len(api.raw("GET", PODS, headers={}))
    proxy.slow(size * 4)
    started = time.monotonic()
    assert api.request("GET", PODS)["kind"] == "PodList"
    assert time.monotonic() - started >= 0.2


async def test_a_watch_is_cut_in_the_middle_of_a_line(
    session: aiohttp.ClientSession, proxy: FaultProxy, cluster: Cluster, namespace: str
) -> None:
    path, query = watching(namespace)
    proxy.cut(watch=True, after_lines=1, count=1)
    received = b""

    async def read() -> None:
        nonlocal received
        async with session.get(path, params=query) as answer:
            async for piece in answer.content.iter_any():
                received += piece

    async with asyncio.timeout(10):
        reading = asyncio.create_task(read())
        await asyncio.to_thread(config_map, cluster, namespace, "first")
        await asyncio.to_thread(config_map, cluster, namespace, "second")
        with pytest.raises(aiohttp.ClientError):
            await reading
    first, half = received.split(b"\n")
    assert json.loads(first)["type"] in ("ADDED", "MODIFIED")
    assert half
    with pytest.raises(ValueError, match="line 1"):
        json.loads(half)


async def test_a_cut_can_look_like_a_clean_end(
    session: aiohttp.ClientSession, proxy: FaultProxy, namespace: str
) -> None:
    path, query = watching(namespace)
    proxy.cut(watch=True, clean=True)
    async with asyncio.timeout(10), session.get(path, params=query) as answer:
        half = await answer.read()
    assert half.startswith(b"{")
    assert not half.endswith(b"\n")


async def test_a_watch_stalls_until_healed(
    session: aiohttp.ClientSession, proxy: FaultProxy, cluster: Cluster, namespace: str
) -> None:
    path, query = watching(namespace)
    proxy.stall(watch=True, after_lines=1)
    async with asyncio.timeout(10), session.get(path, params=query) as answer:
        await answer.content.readline()  # kube-root-ca.crt
        await asyncio.to_thread(config_map, cluster, namespace, "late")
        waiting = asyncio.ensure_future(answer.content.readline())
        done, _ = await asyncio.wait([waiting], timeout=0.3)
        assert not done
        proxy.heal()
        assert json.loads(await waiting)["object"]["metadata"]["name"] == "late"


async def test_open_connections_are_broken_and_new_ones_refused(
    session: aiohttp.ClientSession, proxy: FaultProxy, namespace: str
) -> None:
    path, query = watching(namespace)
    async with asyncio.timeout(10):
        async with session.get(path, params=query) as answer:
            await answer.content.readline()
            proxy.refuse()
            proxy.break_connections()
            with pytest.raises(aiohttp.ClientError):
                await answer.content.readline()
        with pytest.raises(aiohttp.ClientConnectorError):
            await session.get(PODS)
        proxy.accept()
        async with session.get(PODS) as answer:
            assert answer.status == 200


async def test_an_error_event_can_be_put_into_a_watch(
    session: aiohttp.ClientSession, proxy: FaultProxy, namespace: str
) -> None:
    path, query = watching(namespace)
    event: dict[str, Any] = {"type": "ERROR", "object": {"kind": "Status", "code": 410, "reason": "Expired"}}
    proxy.answer(200, watch=True, body=json.dumps(event) + "\n")
    async with session.get(path, params=query) as answer:
        assert json.loads(await answer.read()) == event
