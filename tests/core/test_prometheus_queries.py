"""Queries have one spelling, and names are those of the cluster."""

from __future__ import annotations

import re

import pytest

from recommender import settings
from vpa.metrics.prometheus import names as naming
from vpa.metrics.prometheus import queries
from vpa.metrics.prometheus.names import Names
from vpa.metrics.prometheus.queries import Shard
from vpa.metrics.settings import History

MODERN = {
    "job": "kubelet",
    "namespace": "n",
    "pod": "p",
    "container": "c",
    "metrics_path": "/metrics/cadvisor",
}


def names_from(*args: str) -> Names:
    """The names that the recommender takes with these arguments."""
    filled = settings.TABLE.parse(args).fill(settings.Settings)
    return naming.from_flags(filled.history, filled.given)


def test_upstreams_flags_are_upstreams_names() -> None:
    names = names_from()
    assert names.cpu_metric == "container_cpu_usage_seconds_total"
    assert names.memory_metric == "container_memory_working_set_bytes"
    assert (names.job, names.namespace, names.pod, names.container) == (
        "kubernetes-cadvisor",
        "namespace",
        "pod_name",
        "name",
    )
    assert names.pod_labels == 'up{job="kubernetes-pods"}'
    assert (names.pod_labels_prefix, names.pod_labels_namespace, names.pod_labels_pod) == (
        "pod_label_",
        "kubernetes_namespace",
        "kubernetes_pod_name",
    )


@pytest.mark.parametrize(
    ("preset", "job"), [("cadvisor", ""), ("kube-prometheus", "kubelet"), ("deckhouse", "kubelet")]
)
def test_a_preset_needs_no_further_flags(preset: str, job: str) -> None:
    names = names_from(f"--history-preset={preset}")
    assert (names.job, names.pod, names.container) == (job, "pod", "container")
    assert names.pod_labels.startswith("kube_pod_labels")
    assert (names.pod_labels_prefix, names.pod_labels_pod) == ("label_", "pod")


def test_a_flag_wins_over_the_preset_even_with_its_default_value() -> None:
    names = names_from(
        "--history-preset=deckhouse", "--container-name-label=name", "--prometheus-cadvisor-job-name=mine"
    )
    assert (names.pod, names.container, names.job) == ("pod", "name", "mine")


def test_a_value_that_is_no_default_counts_as_written() -> None:
    history = History(history_preset="deckhouse", container_name_label="ctr")
    assert naming.from_flags(history).container == "ctr"


def test_a_recording_rule_takes_the_place_of_the_counter() -> None:
    names = names_from("--history-cpu-rule=pod:cpu:rate5m", "--history-preset=cadvisor")
    assert names.cpu_is_rule
    text = queries.cpu_history(names, Shard(namespaces=("a",)), step=3600)
    assert 'avg_over_time(pod:cpu:rate5m{container!="",container!="POD",namespace="a",pod!=""}[1h])' in text
    assert "rate(" not in text


def test_defaults_that_fit_nothing_give_way_to_what_is_there() -> None:
    names, note = naming.found(names_from(), [MODERN])
    assert (names.job, names.pod, names.container) == ("", "pod", "container")
    assert (
        note
        == 'any job instead of "kubernetes-cadvisor"; labels pod and container instead of pod_name and name'
    )


def test_what_the_user_wrote_is_kept_though_nothing_has_it() -> None:
    flags = ("--container-pod-name-label=pod_name", "--prometheus-cadvisor-job-name=kubernetes-cadvisor")
    names, note = naming.found(names_from(*flags), [MODERN])
    assert (names.job, names.pod, names.container) == ("kubernetes-cadvisor", "pod_name", "name")
    assert note == ""


@pytest.mark.parametrize(
    ("labels", "found"),
    [
        ({"pod_name": "p", "container_name": "c", "name": "k8s_c_p"}, ("pod_name", "container_name")),
        ({"pod": "p", "container": "c", "name": "0123abcd"}, ("pod", "container")),
        ({"pod_name": "p", "name": "c"}, ("pod_name", "name")),
    ],
)
def test_each_generation_of_label_names_is_found(labels: dict[str, str], found: tuple[str, str]) -> None:
    names, _ = naming.found(Names(), [{"job": "x", "namespace": "n", **labels}])
    assert (names.pod, names.container) == found


def test_the_operators_path_is_asked_for_only_where_series_have_it() -> None:
    operator = naming.from_flags(History(history_preset="kube-prometheus"))
    with_path, _ = naming.found(operator, [MODERN])
    assert 'metrics_path="/metrics/cadvisor"' in queries.memory_now(with_path, Shard())
    without, _ = naming.found(operator, [{k: v for k, v in MODERN.items() if k != "metrics_path"}])
    assert "metrics_path=" not in queries.memory_now(without, Shard())


def test_an_empty_cluster_changes_nothing_and_says_so() -> None:
    names, note = naming.found(Names(), [])
    assert names == Names()
    assert note.startswith("no series of container_memory_working_set_bytes")


def test_cpu_of_the_past_is_summed_over_cores_and_runs_but_not_over_copies() -> None:
    text = queries.cpu_history(Names(job="kubelet"), Shard(namespaces=("b", "a")), step=3600)
    assert text == (
        "max by (namespace, pod, container) (sum by (namespace, pod, container, job, metrics_path) "
        "(max by (namespace, pod, container, job, metrics_path, cpu, id) "
        '(rate(container_cpu_usage_seconds_total{container!="",container!="POD",job="kubelet",'
        'namespace=~"a|b",pod!=""}[1h]))))'
    )


def test_memory_of_the_past_is_the_peak_of_each_step_or_as_upstream_its_end() -> None:
    shard = Shard(namespaces=("a",))
    selector = 'container_memory_working_set_bytes{container!="",container!="POD",namespace="a",pod!=""}'
    by = "max by (namespace, pod, container)"
    assert (
        queries.memory_history(Names(), shard, step=3600, peaks=True)
        == f"{by} (max_over_time({selector}[1h]))"
    )
    assert queries.memory_history(Names(), shard, step=3600, peaks=False) == f"{by} ({selector})"


def test_a_rate_over_a_short_step_looks_back_far_enough_for_two_scrapes() -> None:
    assert "[5m]" in queries.cpu_history(Names(), Shard(), step=60)
    assert "[15m]" in queries.cpu_history(Names(), Shard(), step=900)


@pytest.mark.parametrize(
    ("pod", "matched"),
    [
        ("web-6d4cf56db6-x2x4z", True),
        ("api-0", True),
        ("webby-6d4cf56db6-x2x4z", False),
        ("web", False),
        ("a" * 46 + "aaaa-6d4cf56db6-x2x4z", True),
    ],
)
def test_a_workloads_pods_are_found_by_the_beginning_of_their_names(pod: str, matched: bool) -> None:
    pattern = queries.prefix_pattern(["web", "api", "a" * 60])
    assert bool(re.fullmatch(pattern, pod)) is matched


def test_names_with_dots_match_only_themselves() -> None:
    text = queries.memory_now(Names(), Shard(namespaces=("a.b", "c")))
    assert 'namespace=~"a\\\\.b|c"' in text


@pytest.mark.parametrize(
    ("flag", "query"),
    [
        ("kube_pod_labels", 'last_over_time(kube_pod_labels{namespace=~"a|b"}[8d])'),
        ('up{job="kubernetes-pods"}', 'last_over_time(up{job="kubernetes-pods",namespace=~"a|b"}[8d])'),
        (
            'kube_pod_labels{job="kube-state-metrics"}[60s]',
            'last_over_time(kube_pod_labels{job="kube-state-metrics",namespace=~"a|b"}[8d])',
        ),
        ("{__name__=\"up\",x='}'}[8d]", 'last_over_time({__name__="up",x=\'}\',namespace=~"a|b"}[8d])'),
        ("max by (pod) (kube_pod_labels)", "max by (pod) (kube_pod_labels)"),
    ],
)
def test_pod_labels_are_read_over_the_whole_time(flag: str, query: str) -> None:
    assert queries.pod_labels(Names(pod_labels=flag), ["b", "a"], window=8 * 86400) == query
