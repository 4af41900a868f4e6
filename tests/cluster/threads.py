"""Servers of the tests that run beside them, each on an event loop in a thread of its own."""

from __future__ import annotations

import abc
import asyncio
import contextlib
import threading
from types import TracebackType
from typing import Self


class ThreadedServer(abc.ABC):
    """It listens while the block runs; a subclass says where, and what it does with connections."""

    def __init__(self, name: str) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, daemon=True, name=name)
        self._servers: list[asyncio.Server] = []

    @abc.abstractmethod
    async def listen(self) -> list[asyncio.Server]:
        """Start the servers."""

    def __enter__(self) -> Self:
        self._thread.start()
        self._servers = asyncio.run_coroutine_threadsafe(self.listen(), self.loop).result(10)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        asyncio.run_coroutine_threadsafe(self._close(), self.loop).result(10)
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(10)
        self.loop.close()

    async def _close(self) -> None:
        for server in self._servers:
            server.close()
        tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Pass on whatever comes, until it ends."""
    with contextlib.suppress(OSError):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    writer.close()
