"""The flags about how a process runs, shared by the services: connection, leader election, metrics, logs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from vpa.durations import Duration
from vpa.flags import Group, Kind, flag, one_of

_SEVERITIES = ("INFO", "WARNING", "ERROR", "FATAL")


def _severity(text: str) -> str:
    if text.isdecimal() and int(text) < len(_SEVERITIES):
        return _SEVERITIES[int(text)]
    if text.upper() in _SEVERITIES:
        return text.upper()
    raise ValueError(f"use one of {', '.join(_SEVERITIES)} or 0 to {len(_SEVERITIES) - 1}")


SEVERITY: Kind[str] = Kind("severity", _severity, str)


@dataclass(frozen=True, kw_only=True, slots=True)
class Connection(Group):
    """The way to the API server."""

    kubeconfig: str = flag("", "Path of a kubeconfig; empty: the pod's own service account.")
    kube_api_qps: float = flag(50.0, "Most API requests a second, on average; 0 or less: no limit.")
    kube_api_burst: float = flag(100.0, "Most API requests at once.")
    kube_api_servers: str = flag(
        "",
        "Comma-separated URLs of several API servers, in the order of preference: when one does not answer, "
        "the next is asked. Empty: the one that the kubeconfig or the pod's environment names.",
    )

    @property
    def servers(self) -> tuple[str, ...]:
        """Those URLs."""
        return tuple(url for each in self.kube_api_servers.split(",") if (url := each.strip()))


@dataclass(frozen=True, kw_only=True, slots=True)
class Serving(Group):
    """Metrics and health."""

    address: str = flag("", "Where /metrics and /health-check are served.")
    profiling: bool = flag(False, "Serve /debug/pprof/ beside the metrics.")
    authenticate_metrics: bool = flag(
        False,
        "Serve /metrics and /debug/pprof/ only to bearers of a token that the API server lets get them.",
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class LeaderElection(Group):
    """One active instance among several."""

    leader_elect: bool = flag(False, "Work only while holding the lease, so that a second instance waits.")
    leader_elect_lease_duration: Duration = flag(
        Duration.of(seconds=15), "A lease that was not renewed for this long may be taken over."
    )
    leader_elect_renew_deadline: Duration = flag(
        Duration.of(seconds=10), "The leader stops when it could not renew for this long."
    )
    leader_elect_retry_period: Duration = flag(Duration.of(seconds=2), "Time between two tries.")
    leader_elect_resource_lock: str = flag("leases", "Kind of the lock object.", kind=one_of("leases"))
    leader_elect_resource_name: str = flag("", "Name of the lease.")
    leader_elect_resource_namespace: str = flag("kube-system", "Namespace of the lease.")

    def problems(self) -> Iterator[str]:
        if not self.leader_elect:
            return
        lease, renew = self.leader_elect_lease_duration, self.leader_elect_renew_deadline
        if lease <= renew:
            yield (
                f"--leader-elect-lease-duration ({lease}) must be longer than "
                f"--leader-elect-renew-deadline ({renew})"
            )
        # A retry is jittered by up to 20 %; upstream too refuses deadlines that leave no room for one.
        if renew * 5 <= self.leader_elect_retry_period * 6:
            yield (
                f"--leader-elect-renew-deadline ({renew}) must be longer than 1.2 times "
                f"--leader-elect-retry-period ({self.leader_elect_retry_period})"
            )
        if self.leader_elect_retry_period <= 0:
            yield "--leader-elect-retry-period must be longer than 0"
        if not self.leader_elect_resource_name:
            yield "--leader-elect-resource-name must not be empty"


@dataclass(frozen=True, kw_only=True, slots=True)
class Logging(Group):
    """Logs."""

    v: int = flag(4, "Verbosity: 0 is what an operator must know, 2 each decision, 4 and more for debugging.")
    log_format: str = flag("text", "Form of a log line.", kind=one_of("text", "json"))
    skip_headers: bool = flag(False, "Leave the header (severity, time, place) out of text lines.")
    vmodule: str = flag("", "Verbosity by module: comma-separated name=N pairs.")
    stderrthreshold: str = flag("INFO", "Severity from which logs go to stderr.", kind=SEVERITY, inert=True)
    logtostderr: bool = flag(True, "Logs go to stderr.", inert=True)
    alsologtostderr: bool = flag(False, "Logs go to stderr too.", inert=True)
    alsologtostderrthreshold: str = flag("INFO", "Severity from which they do.", kind=SEVERITY, inert=True)
    legacy_stderr_threshold_behavior: bool = flag(True, "How thresholds combine.", inert=True)
    log_dir: str = flag("", "Folder of log files.", inert=True)
    log_file: str = flag("", "One log file.", inert=True)
    log_file_max_size: int = flag(1800, "Its largest size in MiB.", inert=True)
    log_backtrace_at: str = flag(":0", "file:line whose logs carry a stack trace.", inert=True)
    add_dir_header: bool = flag(False, "Show folders in headers.", inert=True)
    one_output: bool = flag(False, "Write each line to one severity's file only.", inert=True)
    skip_log_headers: bool = flag(False, "Leave headers out of log files.", inert=True)
