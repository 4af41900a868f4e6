"""A Service in front of several processes: connections go to its endpoints in turn, and stay there."""

from __future__ import annotations

import asyncio
import itertools

from tests.cluster.threads import ThreadedServer, forward
from tests.testbed.certificates import ADDRESS


class Balancer(ThreadedServer):
    """Forwards TCP connections. As with a real Service, removing an endpoint leaves its connections alone."""

    def __init__(self) -> None:
        super().__init__("balancer")
        self.port = 0
        self.refused = 0
        """Connections for which there was no endpoint, or one that did not answer."""
        self._endpoints: list[int] = []
        self._turn = itertools.count()

    def add(self, port: int) -> None:
        """A new endpoint."""
        self.loop.call_soon_threadsafe(self._endpoints.append, port)

    def remove(self, port: int) -> None:
        """New connections no longer go to this endpoint."""
        self.loop.call_soon_threadsafe(self._endpoints.remove, port)

    async def listen(self) -> list[asyncio.Server]:
        server = await asyncio.start_server(self._forward, ADDRESS, 0)
        self.port = server.sockets[0].getsockname()[1]
        return [server]

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            endpoint = self._endpoints[next(self._turn) % len(self._endpoints)]
            upstream_reader, upstream_writer = await asyncio.open_connection(ADDRESS, endpoint)
        except (OSError, ZeroDivisionError):
            self.refused += 1
            writer.close()
            return
        await asyncio.gather(forward(reader, upstream_writer), forward(upstream_reader, writer))
