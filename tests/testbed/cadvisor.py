"""What the cAdvisor of a kubelet tells of containers, served for a Prometheus to scrape."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Self

from tests.testbed.certificates import ADDRESS

PATH = "/metrics/cadvisor"


@dataclass(frozen=True)
class _Container:
    """*seconds* of CPU used until *since*, a whole second of the epoch, and what is used from then on."""

    labels: str
    since: int
    seconds: float
    cores: float
    memory: float

    def total(self, now: int) -> float:
        return self.seconds + self.cores * (now - self.since)


class Cadvisor:
    """Usage for tests to set. A context manager; it serves in threads of its own, so a test may block.

    Samples carry the whole second they belong to, so rates come out exactly whenever a scrape happens.
    """

    def __init__(self) -> None:
        self._containers: dict[tuple[str, str, str], _Container] = {}
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                body = outer.text(int(time.time())).encode()
                self.send_response(200)
                self.send_header("Content-Type", "text/plain; version=0.0.4")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - as the base class has it
                """Scrapes are not worth a line."""

        self._server = ThreadingHTTPServer((ADDRESS, 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self.url = f"http://{ADDRESS}:{self._server.server_port}{PATH}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(timeout=20)

    def use(self, namespace: str, pod: str, container: str, *, cpu: float, memory: float) -> None:
        """A container uses *cpu* cores and *memory* bytes from now on."""
        now = int(time.time())
        before = self._containers.get((namespace, pod, container))
        self._containers[namespace, pod, container] = _Container(
            labels=f'{{namespace="{namespace}",pod="{pod}",container="{container}"}}',
            since=now,
            seconds=before.total(now) if before is not None else 0.0,
            cores=cpu,
            memory=memory,
        )

    def text(self, now: int) -> str:
        """All series as they are at *now*."""
        containers = list(self._containers.values())
        stamp = f"{now}000"
        lines = ["# TYPE container_cpu_usage_seconds_total counter"]
        lines += [
            f"container_cpu_usage_seconds_total{one.labels} {one.total(now)!r} {stamp}" for one in containers
        ]
        lines.append("# TYPE container_memory_working_set_bytes gauge")
        lines += [
            f"container_memory_working_set_bytes{one.labels} {one.memory} {stamp}" for one in containers
        ]
        return "\n".join(lines) + "\n"
