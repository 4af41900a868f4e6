"""The HTTPS server of the webhook: it takes calls until nobody sends any more."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import ssl
import time
from collections.abc import AsyncIterator
from typing import Final

from aiohttp import web
from aiohttp.abc import AbstractStreamWriter
from aiohttp.http import RawRequestMessage
from aiohttp.streams import StreamReader
from aiohttp.web_protocol import RequestHandler

from admission.handler import LARGEST, Call, Handler, Reply
from admission.metrics import AdmissionMetrics

log = logging.getLogger(__name__)

LINGER: Final = 5.0
"""Seconds for which a server that is to end still takes calls: so long it may be somebody's endpoint."""
LAST_CALLS: Final = 2.0
"""Seconds after that for connections that are open still."""
KEPT_OPEN: Final = 3600.0
"""Seconds for which an idle connection is kept. API servers close theirs after 90: were we to do it first, a
call might be on its way already."""
BACKLOG: Final = 1024


class PortError(Exception):
    """The port cannot be listened on."""


class Server:
    """Serves *handler* on a port; `serving` runs it."""

    def __init__(self, handler: Handler, *, metrics: AdmissionMetrics, context: ssl.SSLContext) -> None:
        self._handler = handler
        self._metrics = metrics
        self._context = context
        self._closing = False
        self._runner: web.ServerRunner | None = None

    @contextlib.asynccontextmanager
    async def serving(self, port: int, *, linger: float = LINGER) -> AsyncIterator[int]:
        """Serve while the block runs, then see that no call is lost; gives the port (for *port* 0)."""
        server = web.Server(
            self._serve,
            request_factory=_request,
            access_log=None,
            keepalive_timeout=KEPT_OPEN,
            lingering_time=1.0,
        )
        self._runner = runner = web.ServerRunner(server, shutdown_timeout=1.0)
        await runner.setup()
        try:
            site = web.TCPSite(runner, None, port, ssl_context=self._context, backlog=BACKLOG)
            try:
                await site.start()
            except OSError as error:
                raise PortError(f"cannot listen on --port={port}: {error.strerror or error}") from error
            yield runner.addresses[0][1]
            await self._drain(site, server, linger)
        finally:
            await runner.cleanup()

    async def _drain(self, site: web.TCPSite, server: web.Server, linger: float) -> None:
        """Go on for a while, closing each connection with its next answer; then wait for the others."""
        self._closing = True
        log.info("Taking the last calls", extra={"connections": len(server.connections)})
        await asyncio.sleep(linger)
        await site.stop()
        for _ in range(int(LAST_CALLS / 0.05)):
            if not server.connections:
                return
            await asyncio.sleep(0.05)

    async def _serve(self, request: web.BaseRequest) -> web.StreamResponse:
        started = time.perf_counter()
        reply = await self._reply(request)
        response = web.Response(status=reply.status, body=reply.body, content_type=reply.content_type)
        if self._closing:
            response.force_close()
        built = time.perf_counter()
        await response.prepare(request)
        await response.write_eof()
        steps = self._metrics.execution_latency
        now = time.perf_counter()
        steps.observe(now - built, step="write_response")
        steps.observe(now - started, step="total")
        return response

    async def _reply(self, request: web.BaseRequest) -> Reply:
        try:
            body = await request.read()
        except web.HTTPRequestEntityTooLarge:
            return self._handler.too_large()
        call = Call(
            body=body,
            content_type=request.headers.get("Content-Type", ""),
            method=request.method,
            query=request.raw_path.partition("?")[2],
        )
        return await self._handler.answer(call)


def _request(
    message: RawRequestMessage,
    payload: StreamReader,
    protocol: RequestHandler,
    writer: AbstractStreamWriter,
    task: asyncio.Task[None],
) -> web.BaseRequest:
    """aiohttp's request, with room for bodies of our size."""
    loop = asyncio.get_running_loop()
    return web.BaseRequest(message, payload, protocol, writer, task, loop, client_max_size=LARGEST + 1)
