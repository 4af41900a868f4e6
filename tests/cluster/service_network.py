"""The network of Services for processes of this machine: what kube-proxy and the cluster's DNS are to pods.

A proxy that understands ``CONNECT``. The API server reaches webhooks through it by their Service's address
(an egress selector), a service of ours reaches others by their Service's name (``HTTPS_PROXY``); so neither
needs to be told anything but what it would be told in a cluster.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from pathlib import Path
from types import TracebackType

import yaml

from tests.cluster.threads import ThreadedServer, forward
from tests.testbed.certificates import ADDRESS


class ServiceNetwork(ThreadedServer):
    """Tunnels to ports of this machine, by ``HOST:PORT`` of a Service; ``localhost`` is this machine too."""

    def __init__(self) -> None:
        super().__init__("service network")
        self.url = ""
        """For ``HTTPS_PROXY``."""
        self._routes: dict[str, int] = {}
        self._folder = Path(tempfile.mkdtemp(prefix="egress-"))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        super().__exit__(kind, error, trace)
        shutil.rmtree(self._folder)

    def route(self, address: str, port: int) -> None:
        """Let *address* (``HOST:PORT``) lead to *port* of this machine."""
        self._routes[address] = port

    def egress(self) -> str:
        """The kube-apiserver's argument that sends its calls of webhooks and aggregated APIs through here."""
        selection = {
            "name": "cluster",
            "connection": {
                "proxyProtocol": "HTTPConnect",
                "transport": {"uds": {"udsName": str(self._folder / "socket")}},
            },
        }
        file = self._folder / "egress.yaml"
        kind = {"apiVersion": "apiserver.k8s.io/v1beta1", "kind": "EgressSelectorConfiguration"}
        file.write_text(yaml.safe_dump(kind | {"egressSelections": [selection]}))
        return f"--egress-selector-config-file={file}"

    async def listen(self) -> list[asyncio.Server]:
        tcp = await asyncio.start_server(self._serve, ADDRESS, 0)
        self.url = f"http://{ADDRESS}:{tcp.sockets[0].getsockname()[1]}"
        return [tcp, await asyncio.start_unix_server(self._serve, self._folder / "socket")]

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            address = head.split(maxsplit=2)[1].decode()
            host, _, port = address.rpartition(":")
            own = int(port) if host in ("localhost", ADDRESS) else None
            target = self._routes.get(address, own)
            if target is None:
                raise ConnectionRefusedError(address)
            far_reader, far_writer = await asyncio.open_connection(ADDRESS, target)
        except (OSError, asyncio.IncompleteReadError):
            writer.write(b"HTTP/1.1 502 Bad Gateway\r\n\r\n")
            writer.close()
            return
        writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
        await asyncio.gather(forward(reader, far_writer), forward(far_reader, writer))
