"""The recommender's metrics, by upstream's names, labels and buckets."""

from __future__ import annotations

import itertools
from collections import Counter as Tally
from typing import NamedTuple

from prometheus_client.registry import CollectorRegistry

from vpa.telemetry.metrics import EXECUTION_BUCKETS, REQUEST_BUCKETS, Counter, Gauge, Histogram

_PREFIX = "vpa_recommender_"
_QUALITY = "vpa_quality_"

_LATENCY = (1, 2, 5, 7.5, 10, 20, 30, 40, 50, 60, 90, 120, 150, 180, 240, 300, 600, 900, 1800)
_CORES = tuple(0.01 * 2**i for i in range(17))
_BYTES = tuple(1e6 * 2**i for i in range(17))
_NEGATIVE = (-1, -0.75, -0.5, -0.25, -0.1, -0.05, -0.025, -0.01, -0.005, -0.0025, -0.001)
_POSITIVE = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 10, 25, 50, 100)
_RELATIVE = (*_NEGATIVE, 0, *_POSITIVE)

MODES = ("Off", "Initial", "Recreate", "Auto", "InPlaceOrRecreate", "InPlace")
APIS = ("v1beta1", "v1beta2", "v1")
_BOOLS = ("false", "true")


class ObjectLabels(NamedTuple):
    """How ``vpa_objects_count`` tells VPAs apart; booleans are ``true`` and ``false``."""

    update_mode: str
    has_recommendation: str
    api: str
    matches_pods: str
    unsupported_config: str


class RecommenderMetrics:
    """The loop and its surroundings."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.objects = Gauge(
            _PREFIX + "vpa_objects_count", "VPAs by kind.", ObjectLabels._fields, registry=registry
        )
        self.recommendation_latency = Histogram(
            _PREFIX + "recommendation_latency_seconds",
            "Time from the creation of a VPA to its first recommendation.",
            buckets=_LATENCY,
            registry=registry,
        )
        self.execution_latency = Histogram(
            _PREFIX + "execution_latency_seconds",
            "Time spent in each step of the loop.",
            ["step"],
            buckets=EXECUTION_BUCKETS,
            registry=registry,
        )
        self.aggregates = Gauge(
            _PREFIX + "aggregate_container_states_count",
            "Rows of history that are kept.",
            registry=registry,
        )
        self.usage_responses = Counter(
            _PREFIX + "metric_server_responses",
            "Answers to queries for usage.",
            ["is_error", "client_name"],
            registry=registry,
        )
        self.prometheus_requests = Counter(
            _PREFIX + "prometheus_client_api_requests_count",
            "Requests to Prometheus.",
            ["code", "method"],
            registry=registry,
        )
        self.prometheus_duration = Histogram(
            _PREFIX + "prometheus_client_api_requests_duration_seconds",
            "Time of requests to Prometheus.",
            ["code", "method"],
            buckets=REQUEST_BUCKETS,
            registry=registry,
        )
        self.resources_read = Counter(
            "vpa_resources_get_resources_count",
            "Reads of container resources, by where they were found.",
            ["source"],
            registry=registry,
        )
        self.publish_objects(Tally())

    def publish_objects(self, objects: Tally[ObjectLabels]) -> None:
        """Set ``vpa_objects_count``; combinations that no VPA has are 0."""
        known = itertools.product(MODES, _BOOLS, APIS, _BOOLS, _BOOLS)
        for labels in {ObjectLabels(*each) for each in known} | objects.keys():
            self.objects.set(objects[labels], **labels._asdict())


class OwnMetrics:
    """What upstream has no figures of."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.status_writes = Counter(
            _PREFIX + "status_writes_total",
            "Statuses by what became of them: written, unneeded, failed, refused, foreign (by others).",
            ["result"],
            registry=registry,
        )
        self.checkpoint_writes = Counter(
            _PREFIX + "checkpoint_writes_total",
            "Checkpoints by what became of their write: written, unchanged, kept, failed.",
            ["result"],
            registry=registry,
        )
        self.checkpoint_loads = Counter(
            _PREFIX + "checkpoint_loads_total",
            "Checkpoints by what became of them at loading: loaded, known, absent, broken.",
            ["result"],
            registry=registry,
        )
        self.ooms = Counter(
            _PREFIX + "oom_kills_total",
            "Kills for lack of memory by what became of them: recorded, too old, failed, unknown.",
            ["result"],
            registry=registry,
        )
        self.usage_age = Gauge(
            _PREFIX + "usage_age_seconds",
            "Time since usage was last read.",
            registry=registry,
        )
        self.dropped_samples = Counter(
            _PREFIX + "dropped_samples_total",
            "Readings that became no sample: of unknown pods, stamped in the future, unreadable.",
            ["reason"],
            registry=registry,
        )


class QualityMetrics:
    """How well recommendations fit usage."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.relative_diff = Histogram(
            _QUALITY + "usage_recommendation_relative_diffs",
            "(usage - recommendation) / recommendation of each sample.",
            ["update_mode", "resource", "is_oom"],
            buckets=_RELATIVE,
            registry=registry,
        )
        self.missing_recommendation = Counter(
            _QUALITY + "usage_sample_missing_recommendation_count",
            "Samples of containers without a recommendation.",
            ["update_mode", "resource", "is_oom"],
            registry=registry,
        )
        self.cpu_over = Histogram(
            _QUALITY + "cpu_recommendation_over_usage_diffs_cores",
            "How far the recommendation was above the usage.",
            ["update_mode", "recommendation_missing"],
            buckets=_CORES,
            registry=registry,
        )
        self.memory_over = Histogram(
            _QUALITY + "mem_recommendation_over_usage_diffs_bytes",
            "How far the recommendation was above the usage.",
            ["update_mode", "recommendation_missing", "is_oom"],
            buckets=_BYTES,
            registry=registry,
        )
        self.cpu_under = Histogram(
            _QUALITY + "cpu_recommendation_lower_equal_usage_diffs_cores",
            "How far the recommendation was below the usage, or equal to it.",
            ["update_mode", "recommendation_missing"],
            buckets=_CORES,
            registry=registry,
        )
        self.memory_under = Histogram(
            _QUALITY + "mem_recommendation_lower_equal_usage_diffs_bytes",
            "How far the recommendation was below the usage, or equal to it.",
            ["update_mode", "recommendation_missing", "is_oom"],
            buckets=_BYTES,
            registry=registry,
        )
        self.cpu = Histogram(
            _QUALITY + "cpu_recommendations_cores",
            "The recommendation at each CPU sample.",
            ["update_mode"],
            buckets=_CORES,
            registry=registry,
        )
        self.memory = Histogram(
            _QUALITY + "mem_recommendations_bytes",
            "The recommendation at each memory sample.",
            ["update_mode", "is_oom"],
            buckets=_BYTES,
            registry=registry,
        )
        self.relative_change = Histogram(
            _QUALITY + "relative_recommendation_changes",
            "new / old - 1 of each recommendation.",
            ["update_mode", "resource", "vpa_size_log2"],
            buckets=_RELATIVE,
            registry=registry,
        )


class AllMetrics:
    """All families, registered."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.loop = RecommenderMetrics(registry)
        self.quality = QualityMetrics(registry)
        self.own = OwnMetrics(registry)
