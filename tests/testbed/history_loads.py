"""Loads of `history_world` for tests: what came, and how the world itself has it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field

import numpy as np

from recommender import settings
from tests.testbed import history_world as world
from vpa import rules as rules_module
from vpa.metrics.history.batches import COMPLETE, HistoryBatch, Loaded
from vpa.metrics.history.grids import Grid, history_grid
from vpa.metrics.history.loading import HistoryLoader, Progress
from vpa.metrics.history.planning import Limits, Target
from vpa.metrics.history.tables import NANOSECONDS, Points
from vpa.metrics.prometheus import names as naming
from vpa.metrics.prometheus.client import Client

Sleep = Callable[[float], Awaitable[None]]


async def at_once(_: float) -> None:
    """Nobody waits."""


@dataclass
class Load:
    """One load and its outcome."""

    batches: list[HistoryBatch] = field(default_factory=list)
    progress: Progress = field(default_factory=Progress)

    @property
    def complete(self) -> list[HistoryBatch]:
        """Batches with everything."""
        return [batch for batch in self.batches if batch.stage == COMPLETE]

    def loaded(self) -> dict[str, Loaded]:
        """Name of a workload → what was found of it."""
        return {key[2]: one for batch in self.complete for key, one in batch.loaded().items()}

    def of(self, pod: str, container: str, resource: str) -> tuple[np.ndarray, np.ndarray]:
        """(seconds, amounts) of one container."""
        for batch in self.complete:
            for number, one in enumerate(batch.containers):
                if (one.pod, one.name) == (pod, container):
                    points: Points = getattr(batch, resource)
                    times, values = points.of(number)
                    return times / NANOSECONDS, values
        raise KeyError(pod, container)

    def all_points(self) -> dict[tuple[str, str, str], list[tuple[int, int]]]:
        """(pod, container, resource) → (time, amount) of everything."""
        found = {}
        for batch in self.complete:
            for number, one in enumerate(batch.containers):
                for resource in ("cpu", "memory"):
                    times, values = getattr(batch, resource).of(number)
                    found[one.pod, one.name, resource] = list(
                        zip(times.tolist(), values.tolist(), strict=True)
                    )
        return found


async def load(
    client: Client,
    now: float,
    *flags: str,
    targets: Iterable[Target] = world.TARGETS,
    grid: Grid | None = None,
    limits: Limits | None = None,
    sleep: Sleep = at_once,
    watch: Callable[[Progress], None] = lambda progress: None,
) -> Load:
    """Load history as the flags of a recommender say."""
    parsed = settings.TABLE.parse(flags)
    history = parsed.get(settings.History)
    result = Load()

    async def deliver(batch: HistoryBatch) -> None:
        result.batches.append(batch)

    loader = HistoryLoader(
        client=client,
        names=naming.from_flags(history, parsed.given),
        rules=parsed.get(rules_module.Rules),
        limits=limits or Limits(),
        sleep=sleep,
        jitter=lambda: 0.5,
        watch=watch,
    )
    wanted = grid or history_grid(
        now=now,
        length=int(history.history_length.seconds),
        step=int(history.history_resolution.seconds),
    )
    result.progress = await loader.load(targets, wanted, past=world.past(now), deliver=deliver)
    return result
