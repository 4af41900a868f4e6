"""What keeps history safe and small: loading, saving and collecting checkpoints, forgetting what is over."""

from __future__ import annotations

import logging

from recommender.autoscalers import Served, containers_of
from recommender.collecting import collect
from recommender.engine import Engine
from recommender.lifetimes import PERIOD
from recommender.loading import CHECKPOINT_SOURCE, Loader
from recommender.mirrors import Mirrors
from recommender.ooms import Kill
from recommender.saving import Saver
from recommender.settings import Settings
from recommender.troubles import Troubles
from vpa.cluster.connection import Connection
from vpa.cluster.errors import ClusterError
from vpa.durations import SECOND
from vpa.telemetry import logs

log = logging.getLogger(__name__)


class Upkeep:
    """Done once in each tick; most of it is due much more rarely. *clock* is monotonic, *now* nanoseconds."""

    def __init__(
        self,
        settings: Settings,
        connection: Connection,
        mirrors: Mirrors,
        engine: Engine,
        *,
        loader: Loader,
        saver: Saver,
        clock: float,
    ) -> None:
        self._settings = settings
        self._rules = settings.rules
        self._connection = connection
        self._mirrors = mirrors
        self._engine = engine
        self._loader = loader
        self._saver = saver
        self._troubles = Troubles()
        self._collected_at = clock
        # Upstream looks for history that is over in its first tick too.
        self._forgot_at = clock if self._rules.history_by_controller else float("-inf")

    async def load_checkpoints(self) -> list[Kill]:
        """Load the checkpoints of VPAs that wait for them; returns kills of which nobody has heard yet."""
        self._engine.refresh()
        pending = [
            served
            for served in self._engine.autoscalers
            if served.resolved and (CHECKPOINT_SOURCE in served.fetching or self._loader.returned(served))
        ]
        if not pending:
            return []
        evicted = [kill for kills in self._mirrors.evictions.values() for kill in kills]
        kills: list[Kill] = []
        try:
            kills = await self._loader.load(pending, evicted)
        except ClusterError as error:
            self._troubles.bad("Loading checkpoints", error)
            self._engine.decisions.fetch_failed = True
        else:
            self._troubles.good("Loading checkpoints")
            self._engine.decisions.fetch_failed = False
        self._engine.autoscalers.dirty.update(served.key for served in pending)
        return kills

    async def maintain_checkpoints(self, *, clock: float, now: int) -> None:
        """Put new containers on the schedule, hurry what matters, and delete what nobody needs."""
        looked, self._engine.looked = self._engine.looked, set()
        for key in looked & self._engine.autoscalers.served.keys():
            self._saver.expect(self._engine.autoscalers.served[key])
        for checkpoint in self._engine.peaks.risen(self._engine.usage.memory.high):
            self._saver.rose(checkpoint)
        if not self._rules.spread_checkpoints:
            await self._saver.save_tick()
        if clock - self._collected_at > self._settings.loop.checkpoints_gc_interval / SECOND:
            await self._collect_checkpoints(clock, now)

    async def _collect_checkpoints(self, clock: float, now: int) -> None:
        vpas = self._mirrors.vpas
        if vpas.last_error is not None:
            return
        self._collected_at = clock
        aggregation = self._settings.aggregation
        try:
            await collect(
                self._connection,
                self._engine.autoscalers,
                {*vpas, *vpas.poison},
                selection=self._settings.selection,
                rules=self._rules,
                expiry=aggregation.memory_aggregation_interval
                * aggregation.memory_aggregation_interval_count,
                now=now,
            )
        except ClusterError as error:
            self._troubles.bad("Collecting checkpoints", error)
        else:
            self._troubles.good("Collecting checkpoints")

    def forget_history(self, *, clock: float, now: int) -> bool:
        """Forget history that is over, once an hour; whether it was time to."""
        if clock - self._forgot_at < PERIOD:
            return False
        self._forgot_at = clock
        for served in self._engine.autoscalers:
            self._set_aside(served)
        gone = self._engine.collect(now)
        if gone:
            log.log(logs.V2, "Forgot history that is over", extra={"rows": gone})
        return True

    def _set_aside(self, served: Served) -> None:
        """Containers that nobody names any more: their checkpoints are read again should they return."""
        present = self._engine.autoscalers.present(served)
        if present is not None:
            for container in containers_of(served):
                if container not in present:
                    self._loader.set_aside(served.key, container)
