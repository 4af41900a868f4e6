"""Free ports of 127.0.0.1."""

from __future__ import annotations

import random
import socket

from tests.testbed.certificates import ADDRESS

# Below the range from which kernels take the local ports of outgoing connections: a server that is stopped
# and started again must not find its port taken by somebody's client.
_FIRST, _LAST = 15_000, 31_999


def free() -> int:
    """A port that nobody listens on now; nothing is reserved, so use it soon."""
    while True:
        port = random.randint(_FIRST, _LAST)
        if not listening(port):
            with socket.socket() as candidate:
                try:
                    candidate.bind((ADDRESS, port))
                except OSError:
                    continue
            return port


def listening(port: int) -> bool:
    """Whether somebody accepts connections on *port*."""
    with socket.socket() as client:
        client.settimeout(1)
        return client.connect_ex((ADDRESS, port)) == 0
