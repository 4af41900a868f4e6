"""The flags that change a number or a decision, in groups; services and CLI accept them under these names.

Flags that only say how a process runs (addresses, timers, files) are in `vpa.process` and in the services'
own ``settings.py``. Percentages are fractions; durations are whole nanoseconds (`vpa.durations.Duration`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from vpa.durations import Duration
from vpa.flags import QUANTITY, SAFE, UPSTREAM, Group, flag, one_of
from vpa.gates import FeatureGates
from vpa.quantities import Quantity

DEFAULT_RECOMMENDER = "default"


@dataclass(frozen=True, kw_only=True, slots=True)
class Behaviour(Group):
    """What holds for every decision."""

    compatibility: str = flag(
        SAFE,
        "safe: our rules; upstream: every rule as upstream 1.8 has it. A rule's own flag wins over this one.",
        kind=one_of(SAFE, UPSTREAM),
    )
    feature_gates: FeatureGates = flag(
        FeatureGates(),
        "Comma-separated Name=bool pairs: CPUStartupBoost, InPlace, PerVPAConfig (alpha), AllAlpha, AllBeta.",
    )
    default_update_mode: str = flag(
        "Recreate",
        "What an unset update mode and Auto mean.",
        kind=one_of("Recreate", "InPlaceOrRecreate"),
    )

    def notices(self) -> Iterator[str]:
        yield from self.feature_gates.notices()


@dataclass(frozen=True, kw_only=True, slots=True)
class Selection(Group):
    """Which VPAs are handled."""

    vpa_object_namespace: str = flag("", "Handle VPAs and pods of this namespace only; empty: of all.")
    ignored_vpa_object_namespaces: str = flag(
        "", "Comma-separated namespaces whose VPAs are left alone. Not together with --vpa-object-namespace."
    )

    @property
    def ignored(self) -> frozenset[str]:
        """The ignored namespaces."""
        return frozenset(name for name in self.ignored_vpa_object_namespaces.split(",") if name)

    def handles(self, namespace: str) -> bool:
        """Whether VPAs of *namespace* are ours."""
        return namespace not in self.ignored and self.vpa_object_namespace in ("", namespace)

    def problems(self) -> Iterator[str]:
        if self.vpa_object_namespace and self.ignored_vpa_object_namespaces:
            yield (
                "--vpa-object-namespace and --ignored-vpa-object-namespaces are mutually exclusive; "
                "give one of them"
            )


@dataclass(frozen=True, kw_only=True, slots=True)
class Estimation(Group):
    """From usage to recommended numbers."""

    target_cpu_percentile: float = flag(0.9, "CPU usage percentile that the target is based on.")
    recommendation_lower_bound_cpu_percentile: float = flag(
        0.5, "CPU usage percentile that the lower bound is based on."
    )
    recommendation_upper_bound_cpu_percentile: float = flag(
        0.95, "CPU usage percentile that the upper bound is based on."
    )
    target_memory_percentile: float = flag(0.9, "Percentile of memory peaks that the target is based on.")
    recommendation_lower_bound_memory_percentile: float = flag(
        0.5, "Percentile of memory peaks that the lower bound is based on."
    )
    recommendation_upper_bound_memory_percentile: float = flag(
        0.95, "Percentile of memory peaks that the upper bound is based on."
    )
    recommendation_margin_fraction: float = flag(0.15, "Share of the usage that is added as safety margin.")
    confidence_interval_cpu: Duration = flag(
        Duration.of(hours=24), "Length of history at which the CPU bounds have confidence 1."
    )
    confidence_interval_memory: Duration = flag(
        Duration.of(hours=24), "Length of history at which the memory bounds have confidence 1."
    )
    pod_recommendation_min_cpu_millicores: float = flag(
        25.0, "Least CPU of a pod in millicores, divided among its containers."
    )
    pod_recommendation_min_memory_mb: float = flag(
        250.0, "Least memory of a pod in MiB, divided among its containers."
    )
    round_cpu_millicores: int = flag(1, "CPU is rounded up to a multiple of so many millicores.")
    round_memory_bytes: int = flag(1, "Memory is rounded up to a multiple of so many bytes.")
    humanize_memory: bool = flag(
        False, "Deprecated, use --round-memory-bytes: memory with two decimals in the largest fitting unit."
    )
    cpu_integer_post_processor_enabled: bool = flag(
        False,
        "Round CPU up to whole cores for containers that the VPA's annotation "
        "vpa-post-processor.kubernetes.io/<container>_integerCPU=true names.",
    )
    container_recommendation_max_allowed_cpu: Quantity | None = flag(
        None, "Most CPU of a container whose policy has no maximum of its own.", kind=QUANTITY
    )
    container_recommendation_max_allowed_memory: Quantity | None = flag(
        None, "Most memory of a container whose policy has no maximum of its own.", kind=QUANTITY
    )

    def problems(self) -> Iterator[str]:
        for name in ("confidence_interval_cpu", "confidence_interval_memory"):
            if getattr(self, name) <= 0:
                yield f"--{name.replace('_', '-')} must be longer than 0"

    def notices(self) -> Iterator[str]:
        if self.humanize_memory:
            yield "--humanize-memory is deprecated; use --round-memory-bytes"


@dataclass(frozen=True, kw_only=True, slots=True)
class Aggregation(Group):
    """How usage becomes history."""

    memory_aggregation_interval: Duration = flag(
        Duration.of(hours=24), "Length of the window of which the largest memory use is one sample."
    )
    memory_aggregation_interval_count: int = flag(
        8, "History that saw nothing for so many memory aggregation intervals is dropped."
    )
    memory_histogram_decay_half_life: Duration = flag(
        Duration.of(hours=24), "Time after which a memory peak counts half."
    )
    cpu_histogram_decay_half_life: Duration = flag(
        Duration.of(hours=24), "Time after which a CPU sample counts half."
    )
    oom_bump_up_ratio: float = flag(1.2, "Memory at an OOM kill counts as used times this.")
    oom_min_bump_up_bytes: float = flag(
        104857600.0, "Memory at an OOM kill counts as used plus at least this."
    )

    def problems(self) -> Iterator[str]:
        for name in (
            "memory_aggregation_interval",
            "memory_histogram_decay_half_life",
            "cpu_histogram_decay_half_life",
        ):
            if getattr(self, name) <= 0:
                yield f"--{name.replace('_', '-')} must be longer than 0"


@dataclass(frozen=True, kw_only=True, slots=True)
class Updating(Group):
    """When pods are changed."""

    min_replicas: int = flag(2, "Pods of a group with fewer live replicas are not evicted.")
    eviction_tolerance: float = flag(0.5, "Share of a group's pods that may be down at the same time.")
    pod_update_threshold: float = flag(
        0.1, "A pod within its bounds is changed when it is off by this share."
    )
    in_recommendation_bounds_eviction_lifetime_threshold: Duration = flag(
        Duration.of(hours=12), "A pod within its bounds is changed only when it is older than this."
    )
    evict_after_oom_threshold: Duration = flag(
        Duration.of(minutes=10),
        "A pod that is OOM-killed within this time after its start is changed at once.",
    )
    in_place_skip_disruption_budget: bool = flag(
        False, "Resizes that restart no container do not count against the disruption budget."
    )
    ignore_hpa: bool = flag(
        False,
        "Change resources by which a HorizontalPodAutoscaler scales the same target too.",
        upstream=True,
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class Sizing(Group):
    """What a pod is given."""

    cap_to_node: bool = flag(
        False,
        "Give no pod more than the largest schedulable node that fits its selectors and taints can hold.",
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class Boosting(Group):
    """What a starting pod is given on top."""

    max_allowed_cpu_boost: Quantity | None = flag(
        None, "Most CPU that a startup boost may give; unset: no limit.", kind=QUANTITY
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class StatusWrites(Group):
    """When a status is written."""

    status_write_threshold: float = flag(
        0.01,
        "A bound that moved by less than this share waits up to an hour to be written; 0: any change is.",
        upstream=0.0,
    )
