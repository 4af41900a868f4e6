"""Present usage from Prometheus, for clusters without metrics-server: two aligned queries each minute."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from vpa.metrics.history.fetching import decoded
from vpa.metrics.history.grids import Grid
from vpa.metrics.history.planning import CPU, MEMORY
from vpa.metrics.history.tables import NANOSECONDS, Key, lay
from vpa.metrics.prometheus import names as naming
from vpa.metrics.prometheus import queries
from vpa.metrics.prometheus.client import Client, Query
from vpa.metrics.prometheus.names import Names
from vpa.metrics.prometheus.queries import Shard
from vpa.metrics.usage import ABSENT, Usage, UsageBuilder
from vpa.rules import Rules

LAG = 15
"""Seconds that a query stays behind the present, so that the newest scrape is stored everywhere."""


@dataclass(kw_only=True, slots=True)
class PrometheusUsage:
    """Reads the usage of all containers, or of those of one namespace."""

    client: Client
    names: Names
    rules: Rules
    namespace: str = ""
    interval: int = 60
    """Seconds; queries are made for multiples of it, so that all who ask within one share a cached answer."""
    note: str = ""
    """What was found out about names of metrics and labels."""
    _named: bool = False
    _unusable: int = 0

    async def poll(self, now: float) -> Usage:
        """Usage at the last multiple of the interval; `PrometheusError` when it cannot be had."""
        at = int(now - LAG) // self.interval * self.interval
        await self._learn_names(at)
        self._unusable = 0
        shard = Shard(namespaces=(self.namespace,) if self.namespace else ())
        cpu, memory = await asyncio.gather(
            self._read(CPU, queries.cpu_now(self.names, shard), at),
            self._read(MEMORY, queries.memory_now(self.names, shard), at),
        )
        built = UsageBuilder(skipped=self._unusable)
        for key in dict.fromkeys((*cpu, *memory)):
            built.add(*key, at * NANOSECONDS, cpu.get(key, ABSENT), memory.get(key, ABSENT))
        return built.build()

    async def _learn_names(self, at: int) -> None:
        if self._named:
            return
        query = Query.instant(queries.probe(self.names), at=at)
        matrix = await decoded(await self.client.ask(query), query)
        self.names, self.note = naming.found(self.names, matrix.labels)
        self._named = bool(matrix.labels)

    async def _read(self, resource: str, text: str, at: int) -> dict[Key, int]:
        query = Query.instant(text, at=at)
        matrix = await decoded(await self.client.ask(query), query)
        grid = Grid(at, at, self.interval)
        part = lay(matrix, grid=grid, resource=resource, names=self.names, rules=self.rules)
        counts = part.counts
        self._unusable += counts.not_a_number + counts.negative + counts.nameless
        return {
            part.keys[index]: value for index, value in zip(part.index, part.values.tolist(), strict=True)
        }
