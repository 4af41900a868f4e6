"""Real Prometheus with a past of its own, and real Trickster in front of it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import urllib.parse
import urllib.request
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from tests.testbed import builds, folders, ports
from tests.testbed.certificates import ADDRESS
from tests.testbed.processes import Process, attempts

READY_SECONDS = 60.0

BLOCK = 54 * 3600
"""Seconds that one block holds; Prometheus' own sizes are two hours times powers of three."""


@dataclass(frozen=True)
class Series:
    """One series to be stored: *times* in seconds since the epoch, ascending."""

    metric: str
    labels: Mapping[str, str]
    times: NDArray[np.float64]
    values: NDArray[np.float64]


def backfill(data: Path, series: Iterable[Series]) -> None:
    """Write *series* into the folder *data* as blocks, with promtool; those of one metric come together.

    promtool reads its whole input once for each block that it writes, so it gets one file for each.
    """
    everything = list(series)
    if not everything:
        return
    first = int(min(one.times[0] for one in everything)) // BLOCK
    last = int(max(one.times[-1] for one in everything)) // BLOCK
    data.mkdir(parents=True, exist_ok=True)
    for number in range(first, last + 1):
        file = data / f"block-{number}.txt"
        with file.open("w", encoding="ascii") as output:
            for line in _open_metrics(everything, number * BLOCK, (number + 1) * BLOCK):
                output.write(line)
        command = [str(builds.binary("promtool")), "tsdb", "create-blocks-from", "--max-block-duration=54h"]
        command += ["--quiet", "openmetrics", str(file), str(data)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise RuntimeError(f"promtool failed: {done.stderr[-2000:]}")
        file.unlink()


def _open_metrics(series: Iterable[Series], start: int, end: int) -> Iterator[str]:
    """The samples of ``[start, end)`` as OpenMetrics text."""
    family = ""
    for one in series:
        low, high = np.searchsorted(one.times, [start, end])
        if low == high:
            continue
        name = one.metric.removesuffix("_total")
        if name != family:
            family = name
            yield f"# TYPE {name} {'counter' if one.metric.endswith('_total') else 'gauge'}\n"
        labels = ",".join(f'{label}="{value}"' for label, value in one.labels.items())
        head = f"{one.metric}{{{labels}}} "
        samples = zip(one.values[low:high].tolist(), one.times[low:high].tolist(), strict=True)
        yield "".join([f"{head}{value!r} {time:.3f}\n" for value, time in samples])
    yield "# EOF\n"


class _Server(Process):
    """A server on a free port that ends with this process."""

    def __init__(self, name: str, folder: Path, arguments: list[str | Path]) -> None:
        tied = [sys.executable, "-I", "-S", str(folders.HERE / "tied.py"), str(os.getpid())]
        command = [*tied, builds.binary(name), *arguments]
        super().__init__(name, command, log=folder / f"{name}.log", env=dict(os.environ), cwd=folder)

    def _wait(self, url: str) -> None:
        for _ in attempts(READY_SECONDS, f"{self.name} to be ready", self):
            try:
                with urllib.request.urlopen(url, timeout=2):
                    return
            except OSError:
                continue


class Prometheus(_Server):
    """A Prometheus over the blocks in *folder*/data. A context manager.

    It scrapes nothing but *scraped*, job → URL, each second.
    """

    def __init__(
        self, folder: Path, *, arguments: Iterable[str] = (), scraped: Mapping[str, str] | None = None
    ) -> None:
        self.port = ports.free()
        self.url = f"http://{ADDRESS}:{self.port}"
        self.data = folder / "data"
        self.data.mkdir(parents=True, exist_ok=True)
        config = folder / "prometheus.yml"
        jobs = [_job(name, url) for name, url in (scraped or {}).items()]
        config.write_text(json.dumps({"scrape_configs": jobs}), encoding="ascii")  # YAML reads JSON
        super().__init__(
            "prometheus",
            folder,
            [
                f"--config.file={config}",
                f"--storage.tsdb.path={self.data}",
                "--storage.tsdb.retention.time=3650d",
                f"--web.listen-address={ADDRESS}:{self.port}",
                *arguments,
            ],
        )

    def __enter__(self) -> Self:
        self.start()
        self.wait_until_ready()
        return self

    def wait_until_ready(self) -> None:
        """Until it answers queries."""
        self._wait(f"{self.url}/-/ready")


def _job(name: str, url: str) -> dict[str, Any]:
    parts = urllib.parse.urlsplit(url)
    return {
        "job_name": name,
        "scheme": parts.scheme,
        "metrics_path": parts.path,
        "scrape_interval": "1s",
        "scrape_timeout": "1s",
        "static_configs": [{"targets": [parts.netloc]}],
    }


class Trickster(_Server):
    """A Trickster in front of *origin*; *backend* are more options of its backend. A context manager.

    *version*: ``2`` is the newest, ``1`` is 1.1.5, which some clusters still have.
    """

    def __init__(
        self, folder: Path, *, origin: str, backend: Mapping[str, Any] | None = None, version: int = 2
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.port, self._metrics_port, other = ports.free(), ports.free(), ports.free()
        self.url = f"http://{ADDRESS}:{self.port}"
        listeners = {"front": self.port, "metrics": self._metrics_port, "other": other}
        configured = _trickster_1 if version == 1 else _trickster_2
        file = folder / "trickster.conf"
        file.write_text(configured(listeners, {"origin_url": origin, **(backend or {})}), encoding="ascii")
        program = "trickster-1" if version == 1 else "trickster"
        super().__init__(program, folder, ["-config", file])

    def __enter__(self) -> Self:
        self.start()
        self.wait_until_ready()
        return self

    def wait_until_ready(self) -> None:
        """Until it answers."""
        self._wait(f"{self.url}/trickster/ping")

    def requests(self, path: str = "query_range") -> dict[str, int]:
        """Cache status → requests of *path* so far, from its own metrics."""
        with urllib.request.urlopen(f"http://{ADDRESS}:{self._metrics_port}/metrics", timeout=5) as answer:
            text = answer.read().decode()
        counts: dict[str, int] = {}
        for line in text.splitlines():
            if line.startswith("trickster_proxy_requests_total{") and f'{path}"' in line:
                labels, value = line.rsplit(" ", 1)
                status = labels.split('cache_status="')[1].split('"')[0]
                counts[status] = counts.get(status, 0) + int(float(value))
        return counts


def _trickster_2(listeners: Mapping[str, int], backend: Mapping[str, Any]) -> str:
    """A configuration of Trickster 2."""
    names = {"front": "default", "metrics": "metrics", "other": "mgmt"}
    config = {
        "listeners": {names[each]: {"port": port, "address": ADDRESS} for each, port in listeners.items()},
        "caches": {"default": {"provider": "memory"}},
        "backends": {"default": {"provider": "prometheus", "is_default": True, **backend}},
        "logging": {"log_level": "warn"},
    }
    return json.dumps(config)  # YAML reads JSON


def _trickster_1(listeners: Mapping[str, int], backend: Mapping[str, Any]) -> str:
    """A configuration of Trickster 1, which reads TOML."""
    names = {"front": "frontend", "metrics": "metrics", "other": "reloading"}
    tables: dict[str, Mapping[str, Any]] = {
        names[each]: {"listen_port": port, "listen_address": ADDRESS} for each, port in listeners.items()
    }
    tables["caches.default"] = {"cache_type": "memory"}
    tables["origins.default"] = {"origin_type": "prometheus", "is_default": True, **backend}
    tables["logging"] = {"log_level": "warn"}
    lines = []
    for name, values in tables.items():
        lines.append(f"[{name}]")
        lines += [f"{key} = {json.dumps(value)}" for key, value in values.items()]  # TOML's too
    return "\n".join(lines) + "\n"
