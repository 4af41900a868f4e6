"""The webhook's server, byte by byte: what API servers send, and what nobody should."""

from __future__ import annotations

import asyncio
import json
import ssl
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pytest
import trustme

from admission import connections, tls
from admission.choosing import Choice
from admission.connections import KEPT_OPEN, LARGEST_HEAD, MOST_WAITING, PATIENCE, Connection
from admission.handler import LARGEST
from admission.server import Server
from admission.settings import Certificates
from tests.core.admission_kit import PODS, Bench, patch_of, review
from tests.core.pods import container, pod, vpa
from tests.testbed import ports
from vpa.objects.pods import Pod

CA = trustme.CA(key_type=trustme.KeyType.ECDSA)
TARGET = {"app": {"cpu": "250m"}}
REVIEW = json.dumps(review(PODS, pod(container("app", {"cpu": "100m"})))).encode()


@pytest.fixture(autouse=True)
def quick_to_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "DEAF", 0.1)


def call(body: bytes = REVIEW, *headers: str, method: str = "POST", version: str = "1.1") -> bytes:
    lines = [
        f"{method} /?timeout=10s HTTP/{version}",
        "Host: webhook",
        "Content-Type: application/json",
        f"Content-Length: {len(body)}",
        *headers,
    ]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


@dataclass
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def patch(self) -> list[Any]:
        return patch_of(json.loads(self.body)["response"])


class Client:
    """A connection to the server."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    def send(self, data: bytes) -> None:
        self.writer.write(data)

    async def answer(self, *, bodiless: bool = False) -> Answer:
        async with asyncio.timeout(20):
            head = (await self.reader.readuntil(b"\r\n\r\n")).decode()
            first, *lines = head.strip().split("\r\n")
            headers = dict(line.lower().split(": ", 1) for line in lines)
            size = 0 if bodiless else int(headers.get("content-length", 0))
            return Answer(int(first.split()[1]), headers, await self.reader.readexactly(size))

    async def is_closed(self) -> bool:
        async with asyncio.timeout(20):
            return await self.reader.read() == b""


class Served:
    """A running server, and what it serves."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        context = tls.server_context(Certificates())
        leaf = CA.issue_cert("localhost", key_type=trustme.KeyType.ECDSA)
        chain = b"".join(blob.bytes() for blob in leaf.cert_chain_pems)
        tls.load(context, chain, leaf.private_key_pem.bytes())
        self.server = Server(bench.handler, metrics=bench.metrics, context=context)
        self.port = ports.free()

    @asynccontextmanager
    async def client(self) -> AsyncIterator[Client]:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        CA.configure_trust(context)
        reader, writer = await asyncio.open_connection("localhost", self.port, ssl=context)
        try:
            yield Client(reader, writer)
        finally:
            writer.transport.abort()


@asynccontextmanager
async def served(bench: Bench | None = None, *, linger: float = 0.0) -> AsyncIterator[Served]:
    running = Served(bench or Bench(vpa(TARGET)))
    async with running.server.serving(running.port, linger=linger):
        yield running


class Slow(Bench):
    """Somebody has to be asked for the owner of each pod of *asked*, and answers when told to."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.told = asyncio.Event()
        self.asked = 1

    def known(self, pod: Pod, namespace: str) -> Choice | None:
        if self.asked > 0:
            self.asked -= 1
            return None
        return super().known(pod, namespace)

    async def choose(self, pod: Pod, namespace: str, *, patience: float) -> Choice:
        await self.told.wait()
        return await super().choose(pod, namespace, patience=patience)


async def test_calls_of_one_connection_are_answered_one_after_the_other() -> None:
    async with served() as running, running.client() as client:
        for _ in range(200):
            client.send(call())
            answer = await client.answer()
            assert answer.status == 200
            assert answer.headers["content-type"] == "application/json"
            assert answer.headers["date"].endswith("gmt")
            assert "connection" not in answer.headers
            assert answer.patch != []
        for step in ("write_response", "total"):
            assert running.bench.metrics.execution_latency.count(step=step) == 200


async def test_a_call_may_come_in_any_pieces() -> None:
    async with served() as running, running.client() as client:
        data = call()
        for start in range(0, len(data), 97):
            client.send(data[start : start + 97])
            await asyncio.sleep(0)
        assert (await client.answer()).patch != []


async def test_a_body_in_chunks_is_put_together() -> None:
    head = b"POST / HTTP/1.1\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
    parts = [REVIEW[start : start + 100] for start in range(0, len(REVIEW), 100)]
    chunks = b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts)
    async with served() as running, running.client() as client:
        client.send(head + chunks + b"0\r\n\r\n")
        assert (await client.answer()).patch != []


async def test_calls_that_do_not_wait_for_answers_get_them_in_their_order() -> None:
    unreadable = call(b"{")
    async with served(Slow(vpa(TARGET))) as running, running.client() as client:
        client.send(call() + unreadable + call() * (2 * MOST_WAITING))
        await asyncio.sleep(0.1)
        assert isinstance(running.bench, Slow)
        running.bench.told.set()
        assert (await client.answer()).patch != []
        assert (await client.answer()).status == 400
        for _ in range(2 * MOST_WAITING):
            assert (await client.answer()).patch != []


async def test_who_leaves_while_an_owner_is_asked_for_does_no_harm() -> None:
    bench = Slow(vpa(TARGET))
    async with served(bench) as running:
        async with running.client() as client:
            client.send(call())
            await asyncio.sleep(0.1)
        async with running.client() as client:
            client.send(call())
            assert (await client.answer()).patch != []


async def test_who_asks_before_sending_a_body_is_told_to_go_on() -> None:
    async with served() as running, running.client() as client:
        head, _, body = call(REVIEW, "Expect: 100-continue").partition(b"\r\n\r\n")
        client.send(head + b"\r\n\r\n")
        assert (await client.answer()).status == 100
        client.send(body)
        assert (await client.answer()).patch != []


@pytest.mark.parametrize(
    "data", [call(version="1.0"), call(REVIEW, "Connection: close")], ids=["HTTP/1.0", "close"]
)
async def test_a_connection_is_closed_for_those_who_want_it(data: bytes) -> None:
    async with served() as running, running.client() as client:
        client.send(data)
        answer = await client.answer()
        assert answer.patch != []
        assert answer.headers["connection"] == "close"
        assert await client.is_closed()


async def test_the_answer_to_head_has_no_body() -> None:
    async with served() as running, running.client() as client:
        client.send(call(b"", method="HEAD"))
        assert (await client.answer(bodiless=True)).status == 405
        client.send(call())
        assert (await client.answer()).patch != []


@pytest.mark.parametrize("how", ["by its length", "in chunks"])
async def test_a_body_that_is_too_large_is_refused_before_it_has_come(how: str) -> None:
    head = b"POST / HTTP/1.1\r\nContent-Type: application/json\r\n"
    async with served() as running, running.client() as client:
        if how == "by its length":
            client.send(head + b"Content-Length: %d\r\n\r\nab" % (LARGEST + 1))
        else:
            chunk = b"100000\r\n" + b" " * 0x100000 + b"\r\n"
            client.send(head + b"Transfer-Encoding: chunked\r\n\r\n" + chunk * 6)
        answer = await client.answer()
        assert answer.status == 413
        assert answer.headers["connection"] == "close"
        assert answer.body == b"request payload too large\n"
        assert await client.is_closed()
        assert running.bench.metrics.latency.count(status="error", resource="unknown") == 1


async def test_the_largest_body_is_read() -> None:
    body = REVIEW + b" " * (LARGEST - len(REVIEW))
    async with served() as running, running.client() as client:
        client.send(call(body))
        assert (await client.answer()).patch != []


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"\x16\x03\x01 hello", 400),
        (b"GET / HTTP/7.7\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nContent-Length: many\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n", 405),
        (b"GET / HTTP/1.1\r\nX: " + b"x" * (LARGEST_HEAD + 1), 431),
    ],
)
async def test_what_is_no_call_gets_a_sentence_and_the_end(data: bytes, status: int) -> None:
    async with served() as running, running.client() as client:
        client.send(data)
        answer = await client.answer()
        assert answer.status == status
        assert answer.body.endswith(b"\n")
        assert await client.is_closed()


async def test_at_the_end_each_answer_closes_its_connection_and_none_is_lost() -> None:
    running = Served(Bench(vpa(TARGET)))
    ended = asyncio.Event()

    async def serve() -> None:
        async with running.server.serving(running.port, linger=0.5):
            started.set()
            await ended.wait()

    started = asyncio.Event()
    serving = asyncio.create_task(serve())
    await started.wait()
    async with running.client() as idle, running.client() as busy, running.client() as fresh:
        busy.send(call())
        assert "connection" not in (await busy.answer()).headers
        ended.set()
        await asyncio.sleep(0.1)
        for one in (busy, fresh):
            one.send(call())
            answer = await one.answer()
            assert answer.patch != []
            assert answer.headers["connection"] == "close"
            assert await one.is_closed()
        await serving
        assert await idle.is_closed()


class Wire(asyncio.Transport):
    """A transport that only remembers how it ended."""

    def __init__(self) -> None:
        super().__init__()
        self.end = ""

    def close(self) -> None:
        self.end = "closed"

    def abort(self) -> None:
        self.end = "aborted"

    def write(self, data: Any) -> None:
        pass


@pytest.mark.parametrize(
    ("sent", "quiet", "end"),
    [
        (b"", PATIENCE + 1, ""),
        (b"", KEPT_OPEN + 1, "closed"),
        (call(), KEPT_OPEN - 1, ""),
        (call()[:-1], PATIENCE - 1, ""),
        (call()[:-1], PATIENCE + 1, "aborted"),
    ],
)
def test_idle_connections_are_kept_long_and_half_calls_are_not(sent: bytes, quiet: float, end: str) -> None:
    bench, wire = Bench(vpa(TARGET)), Wire()
    connection = Connection(bench.handler, bench.metrics.steps, every=set(), closing=lambda: False)
    connection.connection_made(wire)
    if sent:
        connection.data_received(sent)
    connection.expire(time.monotonic() + quiet)
    assert wire.end == end
