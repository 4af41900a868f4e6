"""All flags of the updater: upstream's 1.8 and ours."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from vpa import process, settings
from vpa.durations import Duration
from vpa.flags import Group, Table, flag
from vpa.rules import Rules


@dataclass(frozen=True, kw_only=True, slots=True)
class Loop(Group):
    """The updater's loop."""

    updater_interval: Duration = flag(
        Duration.of(minutes=1), "Time between two passes, and the longest of one."
    )
    eviction_rate_limit: float = flag(
        -1.0, "Pods evicted a second, and likewise resized; 0 or less: no limit."
    )
    eviction_rate_burst: int = flag(1, "Pods that may be evicted at once.")
    use_admission_controller_status: bool = flag(
        True, "Act only while the lease of the admission controller says that it runs."
    )
    admission_controller_status_lease_name: str = flag("vpa-admission-controller", "Name of that lease.")
    admission_controller_status_lease_namespace: str = flag(
        "", "Its namespace; empty: that of the environment's NAMESPACE, else kube-system."
    )
    admission_controller_status_lease_timeout: Duration = flag(
        Duration.of(minutes=1), "Age from which that lease counts for nothing."
    )

    def problems(self) -> Iterator[str]:
        if self.updater_interval <= 0:
            yield "--updater-interval must be longer than 0"
        if self.admission_controller_status_lease_timeout <= 0:
            yield "--admission-controller-status-lease-timeout must be longer than 0"


@dataclass(frozen=True, kw_only=True, slots=True)
class Connection(process.Connection):
    """The way to the API server."""

    # Half of all pods may be due at once, and each takes one request.

    kube_api_qps: float = flag(
        100.0, "Most API requests a second, on average; 0 or less: no limit.", upstream=50.0
    )
    kube_api_burst: float = flag(200.0, "Most API requests at once.", upstream=100.0)


@dataclass(frozen=True, kw_only=True, slots=True)
class Serving(process.Serving):
    """Metrics and health."""

    address: str = flag(":8943", "Where /metrics and /health-check are served.")


@dataclass(frozen=True, kw_only=True, slots=True)
class Lease(process.LeaderElection):
    """One active instance among several."""

    leader_elect_resource_name: str = flag("vpa-updater", "Name of the lease.")


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """What the updater is told at start."""

    behaviour: settings.Behaviour
    rules: Rules
    selection: settings.Selection
    loop: Loop
    updating: settings.Updating
    sizing: settings.Sizing
    connection: Connection
    lease: Lease
    serving: Serving
    logging: process.Logging


TABLE = Table.of(Settings)
