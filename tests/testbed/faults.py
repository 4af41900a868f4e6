"""A proxy between a client and the API server that misbehaves as it is told.

It ends TLS on both sides, so a client proves who it is with a token, not with a certificate. It runs in a
thread of its own: a test may block, or run an event loop, as it likes.
"""

from __future__ import annotations

import asyncio
import contextlib
import fnmatch
import json
import socket
import ssl
import struct
import sys
import threading
import time
from collections.abc import AsyncIterator, Coroutine, Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self, TypeVar

import aiohttp
from aiohttp import web
from yarl import URL

from tests.testbed import ports
from tests.testbed.certificates import ADDRESS, Certificate

T = TypeVar("T")

_NOT_PASSED_ON = {"connection", "host", "keep-alive", "te", "transfer-encoding", "upgrade"}
_RESET = struct.pack("ii", 1, 0)


@dataclass
class Seen:
    """A request that reached the proxy."""

    at: float
    """`time.monotonic` on arrival."""
    method: str
    path: str
    query: Mapping[str, str]
    status: int | None = None
    """The status of the answer; None while there is none, and for ever when the connection was dropped."""

    @property
    def watch(self) -> bool:
        """Whether it is a watch."""
        return self.query.get("watch", "") in ("1", "true")


@dataclass(frozen=True)
class Match:
    """Some requests: *path* is a glob, so are the values of *query*; None is any."""

    path: str = "*"
    method: str | None = None
    watch: bool | None = None
    query: Mapping[str, str] = field(default_factory=dict)

    def __call__(self, seen: Seen) -> bool:
        """Whether *seen* is one of them."""
        return (
            fnmatch.fnmatchcase(seen.path, self.path)
            and self.method in (None, seen.method)
            and self.watch in (None, seen.watch)
            and all(fnmatch.fnmatchcase(seen.query.get(key, ""), glob) for key, glob in self.query.items())
        )


@dataclass(frozen=True)
class _Answer:
    status: int
    headers: Mapping[str, str]
    body: bytes


@dataclass(frozen=True)
class _Drop:
    pass


@dataclass(frozen=True)
class _Delay:
    seconds: float


@dataclass(frozen=True)
class _Stall:
    after_lines: int


@dataclass(frozen=True)
class _Cut:
    after_lines: int
    clean: bool


@dataclass(frozen=True)
class _Slow:
    bytes_per_second: float


_Act = _Answer | _Drop | _Delay | _Stall | _Cut | _Slow


@dataclass
class _Fault:
    match: Match
    act: _Act
    remaining: float


class _Dropped(Exception):  # noqa: N818 - it is no error
    """The client's connection is to be reset."""


class FaultProxy:
    """Listens on a free port while the ``with`` block lasts; `url` goes into a client's kubeconfig.

    The first fault that matches a request and has not used up its *count* is applied to it. The keywords of
    `answer`, `drop` … that choose requests are those of `Match`.
    """

    def __init__(self, upstream: str, *, ca: str, certificate: Certificate) -> None:
        self._upstream = URL(upstream)
        self._client_tls = ssl.create_default_context(cafile=ca)
        self._server_tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        self._server_tls.load_cert_chain(certificate.chain, certificate.key)
        self._port = ports.free()
        self._lock = threading.Lock()
        self._faults: list[_Fault] = []
        self._requests: list[Seen] = []
        self._loop: asyncio.AbstractEventLoop
        self._healed: asyncio.Event
        self._stop: asyncio.Event
        self._runner: web.ServerRunner
        self._site: web.TCPSite | None = None
        self._server: web.Server
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._main()), daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        self._ready.wait()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()

    @property
    def url(self) -> str:
        """Where clients connect to."""
        return f"https://{ADDRESS}:{self._port}"

    # ---- faults

    def answer(
        self,
        status: int,
        *,
        body: str | bytes | None = None,
        retry_after: int | None = None,
        content_type: str = "application/json",
        count: float | None = None,
        **match: Any,
    ) -> None:
        """Answer with *status* instead of asking the API server; the body is a Status unless given."""
        if body is None:
            reason = {403: "Forbidden", 404: "NotFound", 410: "Expired", 429: "TooManyRequests"}.get(
                status, ""
            )
            body = json.dumps(
                {
                    "kind": "Status",
                    "apiVersion": "v1",
                    "status": "Failure",
                    "message": f"the fault proxy answers {status}",
                    "reason": reason or "InternalError",
                    "code": status,
                }
            )
        headers = {"Content-Type": content_type}
        if retry_after is not None:
            headers["Retry-After"] = str(retry_after)
        content = body.encode() if isinstance(body, str) else body
        self._add(_Answer(status, headers, content), count, match)

    def drop(self, *, count: float | None = None, **match: Any) -> None:
        """Reset the connection instead of answering."""
        self._add(_Drop(), count, match)

    def delay(self, seconds: float, *, count: float | None = None, **match: Any) -> None:
        """Wait before the request is passed on, until `heal` at most."""
        self._add(_Delay(seconds), count, match)

    def stall(self, *, after_lines: int = 0, count: float | None = None, **match: Any) -> None:
        """Pass on the answer's head and so many lines, then nothing until `heal`."""
        self._add(_Stall(after_lines), count, match)

    def cut(
        self, *, after_lines: int = 0, clean: bool = False, count: float | None = None, **match: Any
    ) -> None:
        """Pass on so many lines and half of the next, then reset; *clean* ends the body in order instead."""
        self._add(_Cut(after_lines, clean), count, match)

    def slow(self, bytes_per_second: float, *, count: float | None = None, **match: Any) -> None:
        """Let the answer's body trickle."""
        self._add(_Slow(bytes_per_second), count, match)

    def heal(self) -> None:
        """Forget all faults; what was stalled or delayed goes on."""
        with self._lock:
            self._faults.clear()

        async def wake() -> None:
            self._healed.set()
            self._healed = asyncio.Event()

        self._run(wake())

    def break_connections(self) -> None:
        """Reset every connection that is open now."""

        async def reset_all() -> None:
            for connection in list(self._server.connections):
                _reset(connection.transport)

        self._run(reset_all())

    def refuse(self) -> None:
        """Listen no more: new connections are refused, open ones stay."""

        async def close() -> None:
            if self._site is not None:
                await self._site.stop()
                self._site = None

        self._run(close())

    def accept(self) -> None:
        """Listen again after `refuse`."""
        self._run(self._listen())

    # ---- what was asked

    @property
    def requests(self) -> list[Seen]:
        """All requests so far, oldest first."""
        with self._lock:
            return list(self._requests)

    def count(self, **match: Any) -> int:
        """How many requests match."""
        matches = Match(**match)
        return sum(map(matches, self.requests))

    def forget(self) -> None:
        """Count from zero again."""
        with self._lock:
            self._requests.clear()

    # ---- inside

    def _add(self, act: _Act, count: float | None, match: Mapping[str, Any]) -> None:
        with self._lock:
            self._faults.append(_Fault(Match(**match), act, float("inf") if count is None else count))

    def _take(self, seen: Seen) -> _Act | None:
        """Note the request; the fault that is due for it."""
        with self._lock:
            self._requests.append(seen)
            for fault in self._faults:
                if fault.remaining > 0 and fault.match(seen):
                    fault.remaining -= 1
                    return fault.act
        return None

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(timeout=30)

    async def _main(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._healed, self._stop = asyncio.Event(), asyncio.Event()
        self._server = web.Server(self._handle, access_log=None, handler_cancellation=True)
        self._runner = web.ServerRunner(self._server, shutdown_timeout=0)
        await self._runner.setup()
        await self._listen()
        async with aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(
                ssl=self._client_tls,
                limit=0,
                # Before, a connection whose end a busy peer is slow to confirm would outlive the loop.
                enable_cleanup_closed=sys.version_info < (3, 12, 8),
            ),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=5),
            auto_decompress=False,
            skip_auto_headers=("User-Agent", "Accept", "Accept-Encoding", "Content-Type"),
        ) as self._session:
            self._ready.set()
            await self._stop.wait()
            for connection in list(self._server.connections):
                _reset(connection.transport)
            await self._runner.cleanup()
        await asyncio.sleep(0.1)  # time for TLS connections that were in use to close

    async def _listen(self) -> None:
        if self._site is None:
            site = web.TCPSite(
                self._runner, ADDRESS, self._port, ssl_context=self._server_tls, reuse_address=True
            )
            await site.start()
            self._site = site

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        seen = Seen(time.monotonic(), request.method, request.path, dict(request.query))
        act = self._take(seen)
        try:
            if isinstance(act, _Delay):
                await self._pause(act.seconds)
                act = None
            if isinstance(act, _Drop):
                raise _Dropped
            if isinstance(act, _Answer):
                seen.status = act.status
                return web.Response(status=act.status, headers=act.headers, body=act.body)
            return await self._pass_on(request, seen, act)
        except (aiohttp.ClientError, _Dropped):
            _reset(request.transport)
            return web.Response()

    async def _pass_on(self, request: web.BaseRequest, seen: Seen, act: _Act | None) -> web.StreamResponse:
        headers = {
            name: value for name, value in request.headers.items() if name.lower() not in _NOT_PASSED_ON
        }
        url = self._upstream.join(URL(request.raw_path, encoded=True))
        data = request.content if request.body_exists else None
        async with self._session.request(
            request.method, url, headers=headers, data=data, allow_redirects=False
        ) as answer:
            passed = web.StreamResponse(status=answer.status, reason=answer.reason)
            for name, value in answer.headers.items():
                if name.lower() not in _NOT_PASSED_ON:
                    passed.headers.add(name, value)
            await passed.prepare(request)
            seen.status = answer.status
            async for piece in self._shaped(answer.content.iter_any(), act):
                await passed.write(piece)
            await passed.write_eof()
            return passed

    async def _shaped(self, body: AsyncIterator[bytes], act: _Act | None) -> AsyncIterator[bytes]:
        """The body as the fault *act* lets it through."""
        if isinstance(act, _Slow):
            async for piece in body:
                for start in range(0, len(piece), step := max(1, int(act.bytes_per_second / 20))):
                    yield piece[start : start + step]
                    await self._pause(step / act.bytes_per_second)
        elif isinstance(act, _Cut):
            lines = _lines(body)
            for _ in range(act.after_lines):
                yield await anext(lines, b"")
            line = await anext(lines, b"")
            yield line[: len(line) // 2]
            if not act.clean:
                # What was written should arrive: a reset also throws away what the client has not read yet.
                await asyncio.sleep(0.05)
                raise _Dropped
        elif isinstance(act, _Stall):
            lines = _lines(body)
            for _ in range(act.after_lines):
                yield await anext(lines, b"")
            await self._pause(None)
            async for line in lines:
                yield line
        else:
            async for piece in body:
                yield piece

    async def _pause(self, seconds: float | None) -> None:
        """Wait, for ever with None; `heal` ends it."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._healed.wait(), seconds)


async def _lines(body: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """*body* by lines, each with its end; the last one may have none."""
    rest = b""
    async for piece in body:
        *whole, rest = (rest + piece).split(b"\n")
        for line in whole:
            yield line + b"\n"
    if rest:
        yield rest


def _reset(transport: asyncio.BaseTransport | None) -> None:
    """Close a connection with a TCP reset."""
    if isinstance(transport, asyncio.Transport):
        connection = transport.get_extra_info("socket")
        if connection is not None:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        transport.abort()
