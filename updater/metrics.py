"""The updater's metrics, by upstream's names, labels and buckets."""

from __future__ import annotations

from prometheus_client.registry import CollectorRegistry

from vpa.telemetry.metrics import EXECUTION_BUCKETS, Counter, Gauge, Histogram

_PREFIX = "vpa_updater_"

SIZES = tuple(str(size) for size in range(20))
"""The values of ``vpa_size_log2`` that gauges without a mode always show."""


class UpdaterMetrics:
    """The passes and what became of pods."""

    def __init__(self, registry: CollectorRegistry) -> None:
        mode = ["vpa_size_log2", "update_mode"]
        vpa = ["vpa_name", "vpa_namespace"]

        def gauge(name: str, text: str, labels: list[str]) -> Gauge:
            return Gauge(_PREFIX + name, text, labels, registry=registry)

        def counter(name: str, text: str, labels: list[str]) -> Counter:
            return Counter(_PREFIX + name, text, labels, registry=registry)

        self.controlled = gauge("controlled_pods_total", "Pods that a VPA controls.", mode)
        self.evictable = gauge("evictable_pods_total", "Pods that could be evicted.", mode)
        self.evicted = counter("evicted_pods_total", "Pods evicted.", [*mode, *vpa])
        self.with_evictable = gauge(
            "vpas_with_evictable_pods_total", "VPAs with pods that could be evicted.", mode
        )
        self.with_evicted = gauge("vpas_with_evicted_pods_total", "VPAs with pods that were evicted.", mode)
        self.failed_evictions = counter(
            "failed_eviction_attempts_total", "Evictions that failed.", [*mode, "reason", *vpa]
        )
        self.updatable = gauge(
            "in_place_updatable_pods_total", "Pods that could be resized.", ["vpa_size_log2"]
        )
        self.updated = counter("in_place_updated_pods_total", "Pods resized.", ["vpa_size_log2", *vpa])
        self.with_updatable = gauge(
            "vpas_with_in_place_updatable_pods_total",
            "VPAs with pods that could be resized.",
            ["vpa_size_log2"],
        )
        self.with_updated = gauge(
            "vpas_with_in_place_updated_pods_total", "VPAs with pods that were resized.", ["vpa_size_log2"]
        )
        self.failed_updates = counter(
            "failed_in_place_update_attempts_total",
            "Resizes that failed.",
            ["vpa_size_log2", "reason", *vpa],
        )
        self.infeasible_skips = counter(
            "in_place_infeasible_skip_pods_total",
            "Pods left alone because the same resize was infeasible before.",
            ["vpa_size_log2", *vpa],
        )
        self.execution_latency = Histogram(
            _PREFIX + "execution_latency_seconds",
            "Time spent in each step of a pass.",
            ["step"],
            buckets=EXECUTION_BUCKETS,
            registry=registry,
        )

    def begin_pass(self) -> None:
        """Forget the gauges of the last pass; those without a mode show every size at 0."""
        for gauge in (self.controlled, self.evictable, self.with_evictable, self.with_evicted):
            gauge.forget()
        for gauge in (self.updatable, self.with_updatable, self.with_updated):
            for size in SIZES:
                gauge.set(0, vpa_size_log2=size)
