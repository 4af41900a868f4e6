"""All flags of the recommender: upstream's 1.8 and ours."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from vpa import process, settings
from vpa.durations import Duration
from vpa.flags import Group, Kind, Table, flag, one_of
from vpa.gates import parse_bool
from vpa.metrics import settings as metrics
from vpa.rules import Rules

CHECKPOINT = "checkpoint"
PROMETHEUS = "prometheus"
METRICS_API = "metrics-api"


def _switch(text: str) -> str:
    return text if text == "auto" else str(parse_bool(text)).lower()


@dataclass(frozen=True, kw_only=True, slots=True)
class Loop(Group):
    """The recommender's loop."""

    recommender_name: str = flag(
        settings.DEFAULT_RECOMMENDER,
        "Handle VPAs that name this recommender; the default one also those that name none.",
    )
    recommender_interval: Duration = flag(Duration.of(minutes=1), "Time between two ticks.")
    memory_saver: bool = flag(False, "Track only pods that a VPA matches.")
    update_worker_count: int = flag(10, "Statuses and checkpoints that are written at the same time.")
    min_checkpoints: int = flag(10, "Deprecated.", inert=True)
    checkpoints: str = flag(
        "true",
        "Write checkpoints; auto: unless --storage=prometheus.",
        kind=Kind("true|false|auto", _switch, str, bare="true"),
        upstream="auto",
    )
    checkpoints_timeout: Duration = flag(
        Duration.of(minutes=1), "Time for writing checkpoints in one tick; the rest is written in the next."
    )
    checkpoints_gc_interval: Duration = flag(
        Duration.of(minutes=10), "Time between two searches for checkpoints without a VPA."
    )

    def problems(self) -> Iterator[str]:
        if self.recommender_interval <= 0:
            yield "--recommender-interval must be longer than 0"
        if self.update_worker_count < 1:
            yield "--update-worker-count must be at least 1, or no VPA would ever be updated"


@dataclass(frozen=True, kw_only=True, slots=True)
class Serving(process.Serving):
    """Metrics and health."""

    address: str = flag(":8942", "Where /metrics and /health-check are served.")


@dataclass(frozen=True, kw_only=True, slots=True)
class Lease(process.LeaderElection):
    """One active instance among several."""

    leader_elect_resource_name: str = flag("vpa-recommender-lease", "Name of the lease.")


@dataclass(frozen=True, kw_only=True, slots=True)
class UsageSource(Group):
    """Where present usage comes from."""

    usage_source: str = flag(
        METRICS_API, "Where usage is read each tick.", kind=one_of(METRICS_API, PROMETHEUS)
    )
    use_external_metrics: bool = flag(False, "Read usage from the external metrics API (alpha).")
    external_metrics_cpu_metric: str = flag("", "External metric of CPU usage; empty: none (alpha).")
    external_metrics_memory_metric: str = flag("", "External metric of memory usage; empty: none (alpha).")

    def problems(self) -> Iterator[str]:
        if self.use_external_metrics and self.usage_source == PROMETHEUS:
            yield "--use-external-metrics and --usage-source=prometheus exclude each other; give one of them"


@dataclass(frozen=True, kw_only=True, slots=True)
class History(metrics.History):
    """Where history comes from, and Prometheus."""

    storage: str = flag("", "prometheus: read history from Prometheus at start; anything else: checkpoints.")


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """What the recommender is told at start."""

    behaviour: settings.Behaviour
    rules: Rules
    selection: settings.Selection
    loop: Loop
    estimation: settings.Estimation
    aggregation: settings.Aggregation
    status_writes: settings.StatusWrites
    sizing: settings.Sizing
    usage_source: UsageSource
    history: History
    connection: process.Connection
    lease: Lease
    serving: Serving
    logging: process.Logging
    given: frozenset[str] = frozenset()
    """Names of the flags that the user wrote himself."""

    @property
    def writes_checkpoints(self) -> bool:
        """Whether this process writes checkpoints."""
        if self.loop.checkpoints == "auto":
            return self.history.storage != PROMETHEUS
        return self.loop.checkpoints == "true"


TABLE = Table.of(Settings)
