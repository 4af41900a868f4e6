"""The updater's metrics, by upstream's names, labels and buckets."""

from __future__ import annotations

from collections.abc import Container

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


class OwnMetrics:
    """What upstream does not count."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.pods = Gauge(
            _PREFIX + "pods",
            "Pods by what the last pass decided: resize, evict or none, and why.",
            ["action", "reason"],
            registry=registry,
        )
        self.refusals = Counter(
            _PREFIX + "refusals_total",
            "Evictions and resizes that the API server did not take, by what its answer means.",
            ["action", "reason"],
            registry=registry,
        )
        self.withdrawn = Counter(
            _PREFIX + "withdrawn_total",
            "Evictions and resizes that were planned and not sent after all, by reason.",
            ["action", "reason"],
            registry=registry,
        )
        self.replacements = Counter(
            _PREFIX + "replacements_total",
            "New pods in place of evicted ones, by whether they came with their target.",
            ["carries_target"],
            registry=registry,
        )
        self.breakers = Gauge(
            _PREFIX + "loop_breakers_open",
            "VPAs whose pods are not evicted because replacements came without their target; cluster: all.",
            ["scope"],
            registry=registry,
        )
        self.available = Gauge(
            _PREFIX + "rule_available",
            "1 where the permission or API that a rule needs is there, else 0.",
            ["rule"],
            registry=registry,
        )
        self.condition_writes = Counter(
            _PREFIX + "condition_writes_total",
            "Writes of conditions of VPAs.",
            ["result"],
            registry=registry,
        )


class AllMetrics:
    """All families, registered."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.loop = UpdaterMetrics(registry)
        self.own = OwnMetrics(registry)
        self.named: set[tuple[str, str]] = set()
        """VPAs that have series of their own, by namespace and name."""

    def forget(self, vpas: Container[tuple[str, str]]) -> None:
        """Drop the series of all VPAs but these."""
        loop = self.loop
        for key in [key for key in self.named if key not in vpas]:
            self.named.discard(key)
            for family in (
                loop.evicted,
                loop.failed_evictions,
                loop.updated,
                loop.failed_updates,
                loop.infeasible_skips,
            ):
                family.forget(vpa_namespace=key[0], vpa_name=key[1])
