"""A reverse proxy in front of Prometheus: asks for a token, and misbehaves as it is told.

It runs in a thread of its own, so a test may block.
"""

from __future__ import annotations

import asyncio
import ssl
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

import aiohttp
from aiohttp import web

from tests.testbed import ports
from tests.testbed.certificates import ADDRESS

Answer = tuple[int, Mapping[str, str], bytes]
"""Status, headers and body."""


@dataclass(frozen=True)
class Asked:
    """A request that arrived."""

    method: str
    path: str
    form: Mapping[str, str]
    """Parameters of the query, wherever they were."""
    headers: Mapping[str, str]


@dataclass
class PrometheusProxy:
    """A proxy to *origin* on a free port. A context manager; settings may be changed while it runs."""

    origin: str
    token: str = ""
    """What ``Authorization: Bearer`` has to carry; empty: anybody may come in."""
    tls: ssl.SSLContext | None = None
    delay: Callable[[Asked], float] = lambda asked: 0.0
    """Seconds before an answer."""
    before: Callable[[Asked], Answer | None] = lambda asked: None
    """An answer in place of the origin's."""
    after: Callable[[Asked, Answer], Answer] = lambda asked, answer: answer
    """What becomes of the origin's answer."""
    asked: list[Asked] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.port = ports.free()
        self.url = f"{'https' if self.tls else 'http'}://{ADDRESS}:{self.port}"
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._session: aiohttp.ClientSession | None = None
        self._runner: web.AppRunner | None = None

    def __enter__(self) -> Self:
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._start(), self._loop).result(timeout=20)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        asyncio.run_coroutine_threadsafe(self._stop(), self._loop).result(timeout=20)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(timeout=20)
        self._loop.close()

    async def _start(self) -> None:
        self._session = aiohttp.ClientSession(auto_decompress=False)
        application = web.Application(client_max_size=1 << 26)
        application.router.add_route("*", "/{path:.*}", self._serve)
        self._runner = web.AppRunner(application, access_log=None, shutdown_timeout=0.5)
        await self._runner.setup()
        await web.TCPSite(self._runner, ADDRESS, self.port, ssl_context=self.tls).start()

    async def _stop(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()
        if self._session is not None:
            await self._session.close()
        late = asyncio.all_tasks() - {asyncio.current_task()}  # answers that nobody waits for any more
        for task in late:
            task.cancel()
        await asyncio.gather(*late, return_exceptions=True)

    async def _serve(self, request: web.Request) -> web.Response:
        body = await request.read()
        form = {**request.query, **{k: str(v) for k, v in (await request.post()).items()}}
        asked = Asked(request.method, request.path, form, dict(request.headers))
        self.asked.append(asked)
        await asyncio.sleep(self.delay(asked))
        status, headers, content = await self._answer(asked, request, body)
        return web.Response(status=status, headers=dict(headers), body=content)

    async def _answer(self, asked: Asked, request: web.Request, body: bytes) -> Answer:
        if self.token and asked.headers.get("Authorization") != f"Bearer {self.token}":
            return 401, {}, b"Unauthorized"
        instead = self.before(asked)
        if instead is not None:
            return instead
        passed = {
            name: value
            for name, value in request.headers.items()
            if name.lower() not in ("host", "connection", "authorization", "content-length")
        }
        if self._session is None:
            raise RuntimeError("the proxy is not started")
        try:
            async with self._session.request(
                request.method, self.origin + request.path_qs, headers=passed, data=body
            ) as response:
                kept = {
                    name: value
                    for name, value in response.headers.items()
                    if name.lower() not in ("content-length", "transfer-encoding", "connection")
                }
                return self.after(asked, (response.status, kept, await response.read()))
        except aiohttp.ClientError as error:
            return 502, {}, str(error).encode()
