"""The HTTPS server of the webhook: it takes calls until nobody sends any more."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import ssl
import time
from collections.abc import AsyncIterator
from typing import Final

from admission.connections import Connection
from admission.handler import Handler
from admission.metrics import AdmissionMetrics

log = logging.getLogger(__name__)

LINGER: Final = 5.0
"""Seconds for which a server that is to end still takes calls: so long it may be somebody's endpoint."""
LAST_CALLS: Final = 2.0
"""Seconds after that for connections that are open still."""
EXPIRY: Final = 10.0
"""Seconds between two looks at idle connections."""
BACKLOG: Final = 1024


class PortError(Exception):
    """The port cannot be listened on."""


class Server:
    """Serves *handler* on a port; `serving` runs it."""

    def __init__(self, handler: Handler, *, metrics: AdmissionMetrics, context: ssl.SSLContext) -> None:
        self._handler = handler
        self._metrics = metrics
        self._context = context
        self._connections: set[Connection] = set()

    @contextlib.asynccontextmanager
    async def serving(self, port: int, *, linger: float = LINGER) -> AsyncIterator[None]:
        """Serve while the block runs, then see that no call is lost. Raises `PortError`."""
        loop = asyncio.get_running_loop()
        closing = False

        def connection() -> Connection:
            steps = self._metrics.steps
            return Connection(self._handler, steps, every=self._connections, closing=lambda: closing)

        try:
            server = await loop.create_server(connection, None, port, ssl=self._context, backlog=BACKLOG)
        except OSError as error:
            raise PortError(f"cannot listen on --port={port}: {error.strerror or error}") from error
        expiring = asyncio.create_task(self._expire(), name="idle connections")
        try:
            yield
            closing = True
            log.info("Taking the last calls", extra={"connections": len(self._connections)})
            await asyncio.sleep(linger)
            server.close()
            await self._drain()
        finally:
            expiring.cancel()
            server.close()
            for one in list(self._connections):
                one.abort()

    async def _expire(self) -> None:
        """Look after connections of which nothing is heard, until cancelled."""
        while True:
            await asyncio.sleep(EXPIRY)
            for one in list(self._connections):
                one.expire(time.monotonic())

    async def _drain(self) -> None:
        """Wait for those who have still something to say."""
        for _ in range(int(LAST_CALLS / 0.05)):
            if not self._connections:
                return
            await asyncio.sleep(0.05)
