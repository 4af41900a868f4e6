"""Flags of history: where Prometheus is, how to get in, and how its metrics and labels are named.

Names and defaults are upstream's; what upstream has not is named in ``docs/history.md``.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from vpa.durations import SECOND, Duration, PrometheusDuration
from vpa.flags import Group, flag, one_of

CADVISOR = "cadvisor"
KUBE_PROMETHEUS = "kube-prometheus"
DECKHOUSE = "deckhouse"


@dataclass(frozen=True, kw_only=True, slots=True)
class History(Group):
    """Where history comes from, and Prometheus."""

    prometheus_address: str = flag(
        "http://prometheus.monitoring.svc",
        "Address of Prometheus; several, comma-separated, are tried in order.",
    )
    prometheus_insecure: bool = flag(False, "Don't verify the certificate of Prometheus.")
    prometheus_ca_file: str = flag("", "Certificates to verify Prometheus by; empty: the system's.")
    prometheus_client_cert_file: str = flag("", "Client certificate for Prometheus.")
    prometheus_client_key_file: str = flag("", "Its key.")
    prometheus_headers: str = flag(
        "",
        "More headers for Prometheus: comma-separated name=value pairs, such as X-Scope-OrgID=a.",
        secret=True,
    )
    username: str = flag("", "User for Prometheus; also the environment's PROMETHEUS_USERNAME.")
    password: str = flag(
        "", "Password for Prometheus; also the environment's PROMETHEUS_PASSWORD.", secret=True
    )
    prometheus_bearer_token: str = flag("", "Bearer token for Prometheus.", secret=True)
    prometheus_bearer_token_file: str = flag(
        "", "File with the bearer token for Prometheus; read again when it changes."
    )
    prometheus_query_timeout: Duration = flag(Duration.of(minutes=5), "Longest time of one query.")
    prometheus_query_concurrency: int = flag(4, "Most queries to Prometheus at one time.")
    history_preset: str = flag(
        "",
        "Metric and label names of a common installation, in place of the defaults of the flags below.",
        kind=one_of("", CADVISOR, KUBE_PROMETHEUS, DECKHOUSE),
    )
    history_length: PrometheusDuration = flag(PrometheusDuration.parse("8d"), "How far back history reaches.")
    history_resolution: PrometheusDuration = flag(
        PrometheusDuration.parse("1h"), "Step of history, and the range of its rates."
    )
    prometheus_cadvisor_job_name: str = flag(
        "kubernetes-cadvisor", "Prometheus job of the container metrics; empty: any."
    )
    history_cpu_metric: str = flag("container_cpu_usage_seconds_total", "Metric of CPU usage.")
    history_cpu_rule: str = flag(
        "", "Recording rule that holds CPU usage in cores already; read in place of the counter."
    )
    history_memory_metric: str = flag("container_memory_working_set_bytes", "Metric of memory usage.")
    metric_for_pod_labels: str = flag('up{job="kubernetes-pods"}', "Metric that carries the labels of pods.")
    pod_label_prefix: str = flag("pod_label_", "Prefix of pod labels in it.")
    pod_namespace_label: str = flag("kubernetes_namespace", "Label of the namespace in it.")
    pod_name_label: str = flag("kubernetes_pod_name", "Label of the pod's name in it.")
    container_namespace_label: str = flag("namespace", "Label of the namespace in container metrics.")
    container_pod_name_label: str = flag("pod_name", "Label of the pod's name in container metrics.")
    container_name_label: str = flag("name", "Label of the container's name in container metrics.")

    @property
    def addresses(self) -> tuple[str, ...]:
        """The addresses in order, without a slash at the end."""
        return tuple(a.strip().rstrip("/") for a in self.prometheus_address.split(",") if a.strip())

    @property
    def headers(self) -> dict[str, str]:
        """Header name → value."""
        pairs = (pair.partition("=") for pair in self.prometheus_headers.split(",") if pair.strip())
        return {name.strip(): value.strip() for name, _, value in pairs}

    def credentials(self, environment: Mapping[str, str] = os.environ) -> tuple[str, str] | None:
        """User and password for basic authentication, as upstream finds them: both flags, else both of
        ``PROMETHEUS_USERNAME`` and ``PROMETHEUS_PASSWORD``, else none."""
        if self.username and self.password:
            return self.username, self.password
        user, password = environment.get("PROMETHEUS_USERNAME"), environment.get("PROMETHEUS_PASSWORD")
        return (user, password) if user and password else None

    def problems(self) -> Iterator[str]:
        if not self.addresses:
            yield "--prometheus-address is empty; give the URL of Prometheus"
        for address in self.addresses:
            if not address.startswith(("http://", "https://")):
                yield f'--prometheus-address "{address}" must begin with http:// or https://'
        if self.prometheus_bearer_token and self.prometheus_bearer_token_file and self.username:
            yield (
                "--prometheus-bearer-token, --prometheus-bearer-token-file and --username "
                "exclude each other; give one of them"
            )
        if bool(self.prometheus_client_cert_file) != bool(self.prometheus_client_key_file):
            yield "--prometheus-client-cert-file and --prometheus-client-key-file belong together"
        for name in ("history_length", "history_resolution", "prometheus_query_timeout"):
            if getattr(self, name) <= 0:
                yield f"--{name.replace('_', '-')} must be longer than 0"
        if self.history_resolution % SECOND:
            yield "--history-resolution must be whole seconds, such as 30s or 1h"
        if self.history_length < self.history_resolution:
            yield "--history-length must be at least --history-resolution"
        if self.prometheus_query_concurrency < 1:
            yield "--prometheus-query-concurrency must be at least 1"
