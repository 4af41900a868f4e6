"""A Service in front of several processes: connections go to its endpoints in turn, and stay there."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import threading
from types import TracebackType
from typing import Self

from tests.testbed.certificates import ADDRESS


class Balancer:
    """Forwards TCP connections. As with a real Service, removing an endpoint leaves its connections alone."""

    def __init__(self) -> None:
        self.port = 0
        self.refused = 0
        """Connections for which there was no endpoint, or one that did not answer."""
        self._endpoints: list[int] = []
        self._turn = itertools.count()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True, name="balancer")
        self._server: asyncio.Server | None = None

    def __enter__(self) -> Self:
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._listen(), self._loop).result(10)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        asyncio.run_coroutine_threadsafe(self._close(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    def add(self, port: int) -> None:
        """A new endpoint."""
        self._loop.call_soon_threadsafe(self._endpoints.append, port)

    def remove(self, port: int) -> None:
        """New connections no longer go to this endpoint."""
        self._loop.call_soon_threadsafe(self._endpoints.remove, port)

    async def _listen(self) -> None:
        self._server = await asyncio.start_server(self._forward, ADDRESS, 0)
        self.port = self._server.sockets[0].getsockname()[1]

    async def _close(self) -> None:
        if self._server is not None:
            self._server.close()
        tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            endpoint = self._endpoints[next(self._turn) % len(self._endpoints)]
            upstream_reader, upstream_writer = await asyncio.open_connection(ADDRESS, endpoint)
        except (OSError, ZeroDivisionError):
            self.refused += 1
            writer.close()
            return
        await asyncio.gather(forward(reader, upstream_writer), forward(upstream_reader, writer))


async def forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Pass on whatever comes, until it ends."""
    with contextlib.suppress(OSError):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    writer.close()
