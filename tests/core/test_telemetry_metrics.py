"""Metrics: exact names, whole arrays, and upstream's tables."""

from __future__ import annotations

from collections import Counter as Tally

import numpy as np
import pytest
from prometheus_client.core import CounterMetricFamily, InfoMetricFamily
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector, CollectorRegistry

from admission.metrics import AdmissionMetrics
from recommender.metrics import ObjectLabels, QualityMetrics, RecommenderMetrics
from updater.metrics import UpdaterMetrics
from vpa.telemetry import exposition
from vpa.telemetry.endpoints import new_registry
from vpa.telemetry.metrics import Counter, Family, Gauge, Histogram, size_label

EXECUTION = "0.01 0.02 0.05 0.1 0.2 0.5 1 2 5 10 20 30 40 50 60 70 80 90 100 120 150 240 300"
LATENCY = "1 2 5 7.5 10 20 30 40 50 60 90 120 150 180 240 300 600 900 1800"
REQUESTS = "0.01 0.02 0.05 0.1 0.2 0.3 0.4 0.5 0.6 0.7 0.8 0.9 1 2 5 10 20 30 60 120 300"
RELATIVE = (
    "-1 -0.75 -0.5 -0.25 -0.1 -0.05 -0.025 -0.01 -0.005 -0.0025 -0.001 0 "
    "0.001 0.0025 0.005 0.01 0.025 0.05 0.1 0.25 0.5 0.75 1 2.5 5 10 25 50 100"
)
CORES = "0.01 0.02 0.04 0.08 0.16 0.32 0.64 1.28 2.56 5.12 10.24 20.48 40.96 81.92 163.84 327.68 655.36"
BYTES = (
    "1e+06 2e+06 4e+06 8e+06 1.6e+07 3.2e+07 6.4e+07 1.28e+08 2.56e+08 5.12e+08 1.024e+09 2.048e+09 "
    "4.096e+09 8.192e+09 1.6384e+10 3.2768e+10 6.5536e+10"
)

# Name, type, labels and buckets of upstream 1.8.
UPSTREAM = [
    (
        "vpa_recommender_vpa_objects_count",
        "gauge",
        "update_mode has_recommendation api matches_pods unsupported_config",
        "",
    ),
    ("vpa_recommender_recommendation_latency_seconds", "histogram", "", LATENCY),
    ("vpa_recommender_execution_latency_seconds", "histogram", "step", EXECUTION),
    ("vpa_recommender_aggregate_container_states_count", "gauge", "", ""),
    ("vpa_recommender_metric_server_responses", "counter", "is_error client_name", ""),
    ("vpa_recommender_prometheus_client_api_requests_count", "counter", "code method", ""),
    ("vpa_recommender_prometheus_client_api_requests_duration_seconds", "histogram", "code method", REQUESTS),
    ("vpa_resources_get_resources_count", "counter", "source", ""),
    (
        "vpa_quality_usage_recommendation_relative_diffs",
        "histogram",
        "update_mode resource is_oom",
        RELATIVE,
    ),
    (
        "vpa_quality_usage_sample_missing_recommendation_count",
        "counter",
        "update_mode resource is_oom",
        "",
    ),
    (
        "vpa_quality_cpu_recommendation_over_usage_diffs_cores",
        "histogram",
        "update_mode recommendation_missing",
        CORES,
    ),
    (
        "vpa_quality_mem_recommendation_over_usage_diffs_bytes",
        "histogram",
        "update_mode recommendation_missing is_oom",
        BYTES,
    ),
    (
        "vpa_quality_cpu_recommendation_lower_equal_usage_diffs_cores",
        "histogram",
        "update_mode recommendation_missing",
        CORES,
    ),
    (
        "vpa_quality_mem_recommendation_lower_equal_usage_diffs_bytes",
        "histogram",
        "update_mode recommendation_missing is_oom",
        BYTES,
    ),
    ("vpa_quality_cpu_recommendations_cores", "histogram", "update_mode", CORES),
    ("vpa_quality_mem_recommendations_bytes", "histogram", "update_mode is_oom", BYTES),
    (
        "vpa_quality_relative_recommendation_changes",
        "histogram",
        "update_mode resource vpa_size_log2",
        RELATIVE,
    ),
    ("vpa_updater_controlled_pods_total", "gauge", "vpa_size_log2 update_mode", ""),
    ("vpa_updater_evictable_pods_total", "gauge", "vpa_size_log2 update_mode", ""),
    ("vpa_updater_evicted_pods_total", "counter", "vpa_size_log2 update_mode vpa_name vpa_namespace", ""),
    ("vpa_updater_vpas_with_evictable_pods_total", "gauge", "vpa_size_log2 update_mode", ""),
    ("vpa_updater_vpas_with_evicted_pods_total", "gauge", "vpa_size_log2 update_mode", ""),
    (
        "vpa_updater_failed_eviction_attempts_total",
        "counter",
        "vpa_size_log2 update_mode reason vpa_name vpa_namespace",
        "",
    ),
    ("vpa_updater_in_place_updatable_pods_total", "gauge", "vpa_size_log2", ""),
    ("vpa_updater_in_place_updated_pods_total", "counter", "vpa_size_log2 vpa_name vpa_namespace", ""),
    ("vpa_updater_vpas_with_in_place_updatable_pods_total", "gauge", "vpa_size_log2", ""),
    ("vpa_updater_vpas_with_in_place_updated_pods_total", "gauge", "vpa_size_log2", ""),
    (
        "vpa_updater_failed_in_place_update_attempts_total",
        "counter",
        "vpa_size_log2 reason vpa_name vpa_namespace",
        "",
    ),
    (
        "vpa_updater_in_place_infeasible_skip_pods_total",
        "counter",
        "vpa_size_log2 vpa_name vpa_namespace",
        "",
    ),
    ("vpa_updater_execution_latency_seconds", "histogram", "step", EXECUTION),
    ("vpa_admission_controller_admission_pods_total", "counter", "applied", ""),
    ("vpa_admission_controller_admission_latency_seconds", "histogram", "status resource", REQUESTS),
    ("vpa_admission_controller_execution_latency_seconds", "histogram", "step", EXECUTION),
]


@pytest.fixture
def registry() -> CollectorRegistry:
    return CollectorRegistry()


def families(registry: CollectorRegistry) -> dict[str, Family]:
    """The families of a registry by name."""
    found = {collector for collector in registry._collector_to_names if isinstance(collector, Family)}
    return {family.name: family for family in found}


def touch(family: Family) -> None:
    """Make one series visible."""
    labels = dict.fromkeys(family.labels, "x")
    if isinstance(family, Histogram):
        family.observe(0.015, **labels)
    elif isinstance(family, Counter):
        family.inc(1, **labels)
    elif isinstance(family, Gauge):
        family.set(1, **labels)


@pytest.mark.parametrize(("name", "kind", "labels", "buckets"), UPSTREAM, ids=[row[0] for row in UPSTREAM])
def test_upstreams_metric_is_exposed_with_its_name_type_labels_and_buckets(
    name: str, kind: str, labels: str, buckets: str, registry: CollectorRegistry
) -> None:
    for metrics in (RecommenderMetrics, QualityMetrics, UpdaterMetrics, AdmissionMetrics):
        metrics(registry)
    family = families(registry)[name]
    touch(family)
    text = exposition.render(registry)
    assert f"# TYPE {name} {kind}\n" in text
    shown = "".join(f'{label}="x",' for label in labels.split())
    if kind == "histogram":
        for bucket in [*buckets.split(), "+Inf"]:
            assert f'{name}_bucket{{{shown}le="{bucket}"}} ' in text
        lines = [line for line in text.splitlines() if line.startswith(f"{name}_bucket")]
        assert len(lines) == len(buckets.split()) + 1
    else:
        series = f"{name}{{{shown[:-1]}}}" if shown else name
        assert f"\n{series} 1\n" in text


def test_no_other_metric_of_upstreams_prefixes_exists_unmeant(registry: CollectorRegistry) -> None:
    for metrics in (RecommenderMetrics, QualityMetrics, UpdaterMetrics, AdmissionMetrics):
        metrics(registry)
    assert set(families(registry)) == {row[0] for row in UPSTREAM}


def test_objects_are_published_for_all_combinations_and_unknown_modes_stay(
    registry: CollectorRegistry,
) -> None:
    metrics = RecommenderMetrics(registry)
    shop = ObjectLabels("Recreate", "true", "v1", "true", "false")
    strange = ObjectLabels("Strange", "false", "v1", "true", "false")
    metrics.publish_objects(Tally({shop: 3, strange: 1}))
    text = exposition.render(registry)
    series = [line for line in text.splitlines() if line.startswith("vpa_recommender_vpa_objects_count{")]
    assert len(series) == 145
    assert metrics.objects.value(**shop._asdict()) == 3
    metrics.publish_objects(Tally())
    assert metrics.objects.value(**shop._asdict()) == 0
    assert metrics.objects.value(**strange._asdict()) == 1


def test_a_pass_of_the_updater_begins_with_every_size_at_zero_and_no_mode(
    registry: CollectorRegistry,
) -> None:
    metrics = UpdaterMetrics(registry)
    metrics.controlled.set(5, vpa_size_log2="2", update_mode="Recreate")
    metrics.updatable.set(7, vpa_size_log2="2")
    metrics.begin_pass()
    text = exposition.render(registry)
    assert "vpa_updater_controlled_pods_total{" not in text
    assert 'vpa_updater_in_place_updatable_pods_total{vpa_size_log2="2"} 0\n' in text
    assert 'vpa_updater_in_place_updatable_pods_total{vpa_size_log2="19"} 0\n' in text


@pytest.mark.parametrize(
    ("pods", "label"), [(0, "0"), (1, "0"), (2, "1"), (3, "1"), (4, "2"), (1023, "9"), (2**25, "20")]
)
def test_the_size_label_is_the_binary_logarithm(pods: int, label: str) -> None:
    assert size_label(pods) == label


def test_an_array_is_observed_as_its_values_one_by_one(registry: CollectorRegistry) -> None:
    one = Histogram("one", "One by one.", ["mode"], buckets=(-1, 0, 0.5, 2), registry=registry)
    many = Histogram("many", "At once.", ["mode"], buckets=(-1, 0, 0.5, 2), registry=registry)
    values = np.array([-3.0, -1.0, -0.5, 0.0, 0.5, 0.625, 2.0, 7.0])
    for value in values:
        one.observe(float(value), mode="m")
    many.observe_many(values[:3], mode="m")
    many.observe_many(values[3:], mode="m")
    many.observe_many(values[:0], mode="empty")
    text = exposition.render(registry)
    assert "empty" not in text
    assert [line[3:] for line in text.splitlines() if line.startswith("one")] == [
        line[4:] for line in text.splitlines() if line.startswith("many")
    ]
    assert 'one_bucket{mode="m",le="-1"} 2\n' in text
    assert 'one_bucket{mode="m",le="0"} 4\n' in text
    assert 'one_bucket{mode="m",le="0.5"} 5\n' in text
    assert 'one_bucket{mode="m",le="2"} 7\n' in text
    assert 'one_bucket{mode="m",le="+Inf"} 8\n' in text
    assert many.count(mode="m") == 8
    assert many.sum(mode="m") == pytest.approx(values.sum())


def test_a_block_is_timed_even_when_it_fails(registry: CollectorRegistry) -> None:
    steps = Histogram("steps", "Steps.", ["step"], buckets=(1,), registry=registry)
    with pytest.raises(ZeroDivisionError), steps.time(step="total"):
        _ = 1 / 0
    assert steps.count(step="total") == 1
    assert 0 <= steps.sum(step="total") < 1


def test_a_wrong_label_is_a_mistake_and_not_another_series(registry: CollectorRegistry) -> None:
    counter = Counter("c", "C.", ["a"], registry=registry)
    with pytest.raises(ValueError, match="c has the labels"):
        counter.inc(b="x")


def test_series_of_what_is_gone_can_be_forgotten(registry: CollectorRegistry) -> None:
    counter = Counter("c", "C.", ["name", "mode"], registry=registry)
    for name in ("a", "b"):
        for mode in ("x", "y"):
            counter.inc(name=name, mode=mode)
    counter.forget(name="a")
    assert counter.value(name="a", mode="x") == 0
    assert counter.value(name="b", mode="x") == 1
    assert 'name="a"' not in exposition.render(registry)


def test_two_metrics_of_one_name_in_one_registry_are_refused(registry: CollectorRegistry) -> None:
    Counter("c", "C.", registry=registry)
    with pytest.raises(ValueError, match="Duplicated"):
        Gauge("c", "C.", registry=registry)


def test_label_values_and_help_are_escaped(registry: CollectorRegistry) -> None:
    gauge = Gauge("g", "One\nline \\.", ["a"], registry=registry)
    gauge.set(1.5, a='x"y\\z\n')
    assert exposition.render(registry) == (
        '# HELP g One\\nline \\\\.\n# TYPE g gauge\ng{a="x\\"y\\\\z\\n"} 1.5\n'
    )


def test_what_we_expose_is_what_prometheus_parses() -> None:
    registry = new_registry()
    RecommenderMetrics(registry)
    Histogram("h", "H.", buckets=(0.1, 1), registry=registry).observe(0.5)
    parsed = {family.name: family for family in text_string_to_metric_families(exposition.render(registry))}
    assert [sample.value for sample in parsed["h"].samples] == [0, 1, 1, 0.5, 1]
    assert parsed["process_resident_memory_bytes"].samples[0].value > 1_000_000
    assert "process_cpu_seconds" in parsed
    assert "python_info" in parsed
    assert not any(name.endswith("_created") for name in parsed)


def test_collectors_of_the_library_keep_the_names_of_their_samples(registry: CollectorRegistry) -> None:
    class Foreign(Collector):
        def collect(self) -> list[CounterMetricFamily | InfoMetricFamily]:
            return [
                CounterMetricFamily("jobs", "Jobs.", value=2, created=1.0),
                InfoMetricFamily("build", "Build.", value={"version": "1"}),
            ]

    registry.register(Foreign())
    assert exposition.render(registry) == (
        "# HELP jobs_total Jobs.\n# TYPE jobs_total counter\njobs_total 2\n"
        '# HELP build_info Build.\n# TYPE build_info gauge\nbuild_info{version="1"} 1\n'
    )
