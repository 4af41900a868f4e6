"""Requests to the real API server, straight and through a proxy that misbehaves."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.cluster.clients import connect, make, operator, until, versions
from tests.testbed.cluster import Cluster
from tests.testbed.faults import FaultProxy
from vpa.cluster import credentials, errors, reads, writes
from vpa.cluster.connection import Connection
from vpa.cluster.reflectors import running
from vpa.cluster.resources import CONFIG_MAPS, NAMESPACES, PODS
from vpa.objects.meta import PartialObject


@pytest.fixture
async def proxy(cluster: Cluster) -> AsyncIterator[FaultProxy]:
    with cluster.fault_proxy() as running:
        yield running


@pytest.fixture
async def connection(cluster: Cluster, proxy: FaultProxy) -> AsyncIterator[Connection]:
    async with await connect(cluster, proxy.url) as opened:
        yield opened


async def test_a_client_certificate_is_enough_to_be_let_in(cluster: Cluster) -> None:
    async with await Connection.open(kubeconfig=str(cluster.kubeconfig)) as connection:
        namespaces = await reads.list_all(connection, NAMESPACES, kind=PartialObject)
    assert "kube-system" in {item.metadata.name for item in namespaces}


async def test_a_missing_object_and_a_missing_permission_are_told_apart(
    cluster: Cluster, namespace: str
) -> None:
    account = await asyncio.to_thread(cluster.service_account, namespace, "nobody")
    async with await Connection.open(kubeconfig=str(account.kubeconfig)) as connection:
        with pytest.raises(errors.Forbidden, match=f'User "{account.user}" cannot get resource "pods"'):
            await reads.get(connection, PODS, "x", kind=PartialObject, namespace=namespace)
    async with await connect(cluster) as connection:
        with pytest.raises(errors.NotFound, match='pods "x" not found') as caught:
            await reads.get(connection, PODS, "x", kind=PartialObject, namespace=namespace)
    assert caught.value.reason == "NotFound"


async def test_a_list_is_read_page_by_page(cluster: Cluster, namespace: str) -> None:
    async with await connect(cluster) as connection:
        for number in range(7):
            await make(connection, namespace, f"c{number}")
        listing = reads.pages(connection, CONFIG_MAPS, kind=PartialObject, namespace=namespace, limit=3)
        found = [[item.metadata.name for item in page.items] async for page in listing]
    assert found == [["c0", "c1", "c2"], ["c3", "c4", "c5"], ["c6", "kube-root-ca.crt"]]


async def test_429_is_repeated_after_the_time_that_the_server_asks_for(
    connection: Connection, proxy: FaultProxy, namespace: str
) -> None:
    proxy.answer(429, retry_after=1, count=1)
    started = time.monotonic()
    await make(connection, namespace, "a")
    assert 1.0 <= time.monotonic() - started < 3.0
    assert proxy.count(method="POST") == 2


async def test_429_that_asks_for_more_time_than_there_is_is_told_at_once(
    connection: Connection, proxy: FaultProxy, namespace: str
) -> None:
    proxy.answer(429, retry_after=3600)
    with pytest.raises(errors.TooManyRequests) as caught:
        await reads.get(connection, CONFIG_MAPS, "a", kind=PartialObject, namespace=namespace)
    assert caught.value.retry_after == 3600
    assert proxy.count() == 1


async def test_an_eviction_is_never_repeated_by_itself(
    connection: Connection, proxy: FaultProxy, namespace: str
) -> None:
    proxy.answer(429, retry_after=1, method="POST")
    with pytest.raises(errors.TooManyRequests):
        await writes.evict(connection, namespace=namespace, name="p", uid="u")
    assert proxy.count(path="*/eviction") == 1


@pytest.mark.parametrize("code", [500, 502, 503, 504])
async def test_a_read_that_failed_on_the_server_is_repeated_a_few_times(
    connection: Connection, proxy: FaultProxy, namespace: str, code: int
) -> None:
    proxy.answer(code, count=2)
    await reads.get(connection, CONFIG_MAPS, "kube-root-ca.crt", kind=PartialObject, namespace=namespace)
    assert proxy.count() == 3


async def test_a_write_that_failed_on_the_server_is_not_repeated(
    connection: Connection, proxy: FaultProxy, namespace: str
) -> None:
    proxy.answer(500, method="POST")
    with pytest.raises(errors.ServerError):
        await make(connection, namespace, "a")
    assert proxy.count(method="POST") == 1


async def test_a_read_whose_connection_breaks_is_repeated(
    connection: Connection, proxy: FaultProxy, namespace: str
) -> None:
    proxy.drop(count=2)
    await reads.get(connection, CONFIG_MAPS, "kube-root-ca.crt", kind=PartialObject, namespace=namespace)


async def test_a_write_whose_connection_breaks_may_have_happened_and_is_not_repeated(
    connection: Connection, proxy: FaultProxy, namespace: str
) -> None:
    proxy.drop(method="POST", count=1)
    with pytest.raises(errors.Unreachable) as caught:
        await make(connection, namespace, "a")
    assert caught.value.sent
    assert caught.value.__cause__ is not None
    assert proxy.count(method="POST") == 1


async def test_a_write_that_cannot_have_been_seen_is_repeated(
    connection: Connection, proxy: FaultProxy, namespace: str
) -> None:
    proxy.refuse()
    creating = asyncio.create_task(make(connection, namespace, "a"))
    await asyncio.sleep(0.5)
    assert not creating.done()
    proxy.accept()
    await creating
    assert proxy.count(method="POST") == 1


async def test_every_request_has_an_end(connection: Connection, proxy: FaultProxy, namespace: str) -> None:
    proxy.stall()
    started = time.monotonic()
    with pytest.raises(errors.Unreachable, match="no answer in time"):
        await reads.get(
            connection, CONFIG_MAPS, "kube-root-ca.crt", kind=PartialObject, namespace=namespace, timeout=0.5
        )
    assert time.monotonic() - started < 2.0


async def test_a_page_of_a_proxy_with_code_200_is_no_object(
    connection: Connection, proxy: FaultProxy, namespace: str
) -> None:
    proxy.answer(200, body="<html>login</html>", content_type="text/html")
    with pytest.raises(errors.Unreadable):
        await reads.get(connection, CONFIG_MAPS, "a", kind=PartialObject, namespace=namespace)
    with pytest.raises(errors.Unreadable):
        await reads.list_all(connection, CONFIG_MAPS, kind=PartialObject, namespace=namespace)


async def test_after_401_the_token_file_is_read_again_at_once(
    cluster: Cluster, proxy: FaultProxy, namespace: str
) -> None:
    account = operator(cluster)
    async with await Connection.open(kubeconfig=str(account.kubeconfig_to(proxy.url))) as connection:
        account.rotate()
        proxy.answer(401, count=1)
        await reads.get(connection, CONFIG_MAPS, "kube-root-ca.crt", kind=PartialObject, namespace=namespace)
    assert [seen.status for seen in proxy.requests] == [401, 200]


async def test_a_token_that_stays_refused_is_an_error_after_one_request(
    connection: Connection, proxy: FaultProxy, namespace: str
) -> None:
    proxy.answer(401)
    with pytest.raises(errors.Unauthorized):
        await reads.get(connection, CONFIG_MAPS, "a", kind=PartialObject, namespace=namespace)
    assert proxy.count() == 1


async def test_requests_keep_to_the_rate_and_urgent_ones_pass_them(cluster: Cluster, namespace: str) -> None:
    async with await connect(cluster, qps=20, burst=2) as connection:
        started = time.monotonic()
        path = CONFIG_MAPS.path(namespace)
        queued = [asyncio.create_task(connection.request("GET", path)) for _ in range(12)]
        await asyncio.sleep(0)
        await connection.request("GET", path, urgent=True)
        assert time.monotonic() - started < 0.4
        await asyncio.gather(*queued)
        assert 0.45 <= time.monotonic() - started < 3.0


async def test_no_more_requests_are_open_at_once_than_allowed(
    cluster: Cluster, proxy: FaultProxy, namespace: str
) -> None:
    proxy.delay(0.3)
    async with await connect(cluster, proxy.url, concurrency=3) as connection:
        path = CONFIG_MAPS.path(namespace)
        await asyncio.gather(*(connection.request("GET", path) for _ in range(9)))
    arrivals = [seen.at for seen in proxy.requests]
    assert all(later - earlier >= 0.25 for earlier, later in zip(arrivals, arrivals[3:], strict=False))


async def test_the_fence_stops_writes_but_not_reads(cluster: Cluster, namespace: str) -> None:
    class NotNowError(Exception):
        pass

    def fence() -> None:
        raise NotNowError

    async with await connect(cluster) as connection:
        connection.fence = fence
        await reads.get(connection, CONFIG_MAPS, "kube-root-ca.crt", kind=PartialObject, namespace=namespace)
        with pytest.raises(NotNowError):
            await make(connection, namespace, "a")
        assert connection.requests["POST", 201] == 0


async def test_a_server_that_is_no_url_is_refused(cluster: Cluster) -> None:
    with pytest.raises(errors.ConfigurationError, match=r'API server "10\.0\.0\.1:6443" is no URL'):
        await Connection.open(kubeconfig=str(cluster.kubeconfig), servers=["10.0.0.1:6443"])


async def tunnel(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, asked: list[str]) -> None:
    """One connection of a small HTTP proxy that knows CONNECT only."""
    line = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")[0]
    asked.append(line)
    host, _, port = line.split()[1].rpartition(":")
    far_reader, far_writer = await asyncio.open_connection(host, int(port))
    writer.write(b"HTTP/1.1 200 OK\r\n\r\n")

    async def carry(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await source.read(65536):
                sink.write(data)
                await sink.drain()
        sink.close()

    await asyncio.gather(carry(reader, far_writer), carry(far_reader, writer))


async def test_requests_and_watches_go_through_an_http_proxy(
    cluster: Cluster, namespace: str, tmp_path: Path
) -> None:
    asked: list[str] = []
    server = await asyncio.start_server(lambda r, w: tunnel(r, w, asked), "127.0.0.1", 0)
    config = json.loads(cluster.kubeconfig.read_text())
    config["clusters"][0]["cluster"]["proxy-url"] = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    (tmp_path / "kubeconfig").write_text(json.dumps(config))
    async with server, await Connection.open(kubeconfig=str(tmp_path / "kubeconfig")) as connection:
        copy = versions(connection, namespace)
        async with running(copy, timeout=10):
            await make(connection, namespace, "a")
            await until(lambda: len(copy) == 1, "the event")
    address = cluster.server.removeprefix("https://")
    assert set(asked) == {f"CONNECT {address} HTTP/1.1"}


async def test_the_certificate_may_be_for_another_name_if_the_kubeconfig_says_so(
    cluster: Cluster, namespace: str, tmp_path: Path
) -> None:
    config = json.loads(cluster.kubeconfig.read_text())
    (tmp_path / "kubeconfig").write_text(json.dumps(config))
    for name, fits in (("kubernetes.default.svc", True), ("example.com", False)):
        config["clusters"][0]["cluster"]["tls-server-name"] = name
        (tmp_path / "kubeconfig").write_text(json.dumps(config))
        async with await Connection.open(kubeconfig=str(tmp_path / "kubeconfig")) as connection:
            reading = reads.list_all(connection, CONFIG_MAPS, kind=PartialObject, namespace=namespace)
            if fits:
                assert await reading
            else:
                with pytest.raises(
                    errors.Unreachable, match=r"its certificate is not trusted: .*example\.com"
                ):
                    await reading


async def test_a_refused_token_of_an_exec_plugin_is_replaced_by_running_it_again(
    cluster: Cluster, namespace: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(credentials, "PLUGIN_PAUSE", 0.0)
    account = await asyncio.to_thread(operator, cluster)
    (tmp_path / "token").write_text("not-a-token")
    program = tmp_path / "plugin"
    program.write_text(
        f"""#!/bin/sh
echo '{{"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential",
        "status": {{"token": "'$(cat {tmp_path}/token)'"}}}}'
"""
    )
    program.chmod(0o755)
    config = json.loads(cluster.kubeconfig.read_text())
    plugin = {"apiVersion": "client.authentication.k8s.io/v1", "command": str(program)}
    config["users"][0]["user"] = {"exec": plugin}
    (tmp_path / "kubeconfig").write_text(json.dumps(config))
    async with await Connection.open(kubeconfig=str(tmp_path / "kubeconfig")) as connection:
        with pytest.raises(errors.Unauthorized):
            await make(connection, namespace, "a")
        (tmp_path / "token").write_text(account.token)
        await make(connection, namespace, "a")
        program.unlink()
        await make(connection, namespace, "b")  # what it gave is good until it is refused
