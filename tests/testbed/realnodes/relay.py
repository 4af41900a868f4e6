"""Lets this machine into a network namespace: connections to a port here go on to the same port in there.

    python relay.py PORT NAMESPACE-FILE

The listening socket is made out here; then the process moves in there, where what it opens from then on is.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import socket
import sys

LOOPBACK = "127.0.0.1"
CLONE_NEWNET = 0x40000000
CHUNK = 1 << 16


def move_into(namespace: str) -> None:
    """Let this thread open its sockets in the network namespace of the file *namespace* from now on."""
    libc = ctypes.CDLL(None, use_errno=True)
    descriptor = os.open(namespace, os.O_RDONLY)
    try:
        if libc.setns(descriptor, CLONE_NEWNET) != 0:
            raise OSError(ctypes.get_errno(), f"cannot enter {namespace}")
    finally:
        os.close(descriptor)


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while chunk := await reader.read(CHUNK):
            writer.write(chunk)
            await writer.drain()
        if writer.can_write_eof():
            writer.write_eof()
        return
    writer.transport.abort()


async def relay(listener: socket.socket) -> None:
    """Carry connections until the process is ended."""
    port = listener.getsockname()[1]

    async def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            inner_reader, inner_writer = await asyncio.open_connection(LOOPBACK, port)
        except OSError:  # nobody listens in there: reset, which is the nearest to a refusal that is left
            writer.transport.abort()
            return
        await asyncio.gather(_pump(reader, inner_writer), _pump(inner_reader, writer))
        inner_writer.close()
        writer.close()

    server = await asyncio.start_server(carry, sock=listener)
    await server.serve_forever()


if __name__ == "__main__":
    outside = socket.create_server((LOOPBACK, int(sys.argv[1])))
    move_into(sys.argv[2])
    asyncio.run(relay(outside))
