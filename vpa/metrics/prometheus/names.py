"""How a cluster names its metrics and labels: by flags, by preset, or found out by one cheap query.

Upstream's defaults fit no cluster of today; so what was not given by a flag is taken from what is there.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from vpa.flags import flags_of
from vpa.metrics.settings import CADVISOR, DECKHOUSE, KUBE_PROMETHEUS, History

Matcher = tuple[str, str, str]
"""(label, operator, value), for example ``("container", "!=", "POD")``."""

CONTAINER_LABELS = (("pod", "container"), ("pod_name", "container_name"), ("pod_name", "name"))
"""(pod label, container label) that clusters have or had, the present one first."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Names:
    """Names of metrics and labels."""

    cpu_metric: str = "container_cpu_usage_seconds_total"
    cpu_is_rule: bool = False
    """The CPU metric is a recording rule that holds cores already, no counter."""
    memory_metric: str = "container_memory_working_set_bytes"
    job: str = ""
    matchers: tuple[Matcher, ...] = ()
    """Further matchers of the container metrics, each an equality; dropped where the series lack it."""
    namespace: str = "namespace"
    pod: str = "pod"
    container: str = "container"
    pod_labels: str = "kube_pod_labels"
    """Metric or selector of the series that carry pod labels; any expression is taken as it is."""
    pod_labels_prefix: str = "label_"
    pod_labels_namespace: str = "namespace"
    pod_labels_pod: str = "pod"
    fixed: frozenset[str] = frozenset()
    """Flags that the user wrote himself: what they name is not changed to what the cluster has."""


_MODERN: Mapping[str, Any] = {
    "container-pod-name-label": "pod",
    "container-name-label": "container",
    "metric-for-pod-labels": "kube_pod_labels",
    "pod-label-prefix": "label_",
    "pod-namespace-label": "namespace",
    "pod-name-label": "pod",
}

PRESETS: Mapping[str, Mapping[str, Any]] = {
    "": {},
    CADVISOR: {**_MODERN, "prometheus-cadvisor-job-name": ""},
    KUBE_PROMETHEUS: {
        **_MODERN,
        "prometheus-cadvisor-job-name": "kubelet",
        "metric-for-pod-labels": 'kube_pod_labels{job="kube-state-metrics"}',
    },
    DECKHOUSE: {
        **_MODERN,
        "prometheus-cadvisor-job-name": "kubelet",
        "metric-for-pod-labels": 'kube_pod_labels{job="kube-state-metrics"}',
    },
}
"""Preset → flag name → value."""

_PRESET_MATCHERS: Mapping[str, tuple[Matcher, ...]] = {
    KUBE_PROMETHEUS: (("metrics_path", "=", "/metrics/cadvisor"),),
}


def from_flags(history: History, given: Collection[str] = ()) -> Names:
    """The names that flags and preset say; a flag that the user wrote goes before the preset.

    *given*: the names of the flags that he wrote. A value other than the default is known to be written.
    """
    preset = PRESETS[history.history_preset]
    written = {flag.name for flag in flags_of(History) if getattr(history, flag.field) != flag.default}
    fixed = frozenset(given) | written

    def value(flag: str) -> str:
        own = getattr(history, flag.replace("-", "_"))
        return str(own if flag in fixed else preset.get(flag, own))

    rule = history.history_cpu_rule
    return Names(
        cpu_metric=rule or value("history-cpu-metric"),
        cpu_is_rule=bool(rule),
        memory_metric=value("history-memory-metric"),
        job=value("prometheus-cadvisor-job-name"),
        matchers=_PRESET_MATCHERS.get(history.history_preset, ()),
        namespace=value("container-namespace-label"),
        pod=value("container-pod-name-label"),
        container=value("container-name-label"),
        pod_labels=value("metric-for-pod-labels"),
        pod_labels_prefix=value("pod-label-prefix"),
        pod_labels_namespace=value("pod-namespace-label"),
        pod_labels_pod=value("pod-name-label"),
        fixed=fixed,
    )


def choices(names: Names) -> tuple[tuple[str, str], ...]:
    """(pod label, container label) worth looking for: the configured ones, then those that are known."""
    return tuple(dict.fromkeys(((names.pod, names.container), *CONTAINER_LABELS)))


def found(names: Names, series: Iterable[Mapping[str, str]]) -> tuple[Names, str]:
    """*names* as the cluster has them, and what was changed, in words.

    *series* are the labels of one series of container memory from each job. What is ``fixed`` stays.
    Without any series nothing is changed, and the words say so.
    """
    by_job = {labels.get("job", ""): labels for labels in series}
    if not by_job:
        return names, f"no series of {names.memory_metric} with a pod and a container was found"
    labels = by_job.get(names.job) or by_job[min(by_job)]
    changes: dict[str, str] = {}
    notes: list[str] = []
    if names.job and names.job not in by_job and "prometheus-cadvisor-job-name" not in names.fixed:
        changes["job"] = ""
        notes.append(f'any job instead of "{names.job}"')
    if not {"container-pod-name-label", "container-name-label"} & names.fixed:
        pod, container = next(
            (pair for pair in choices(names) if pair[0] in labels and pair[1] in labels),
            (names.pod, names.container),
        )
        if (pod, container) != (names.pod, names.container):
            changes |= {"pod": pod, "container": container}
            notes.append(f"labels {pod} and {container} instead of {names.pod} and {names.container}")
    if "container-namespace-label" not in names.fixed and names.namespace not in labels:
        other = next((one for one in ("namespace", "kubernetes_namespace") if one in labels), names.namespace)
        if other != names.namespace:
            changes["namespace"] = other
            notes.append(f"label {other} instead of {names.namespace}")
    changed = replace(
        names,
        matchers=tuple(one for one in names.matchers if labels.get(one[0]) == one[2]),
        job=changes.get("job", names.job),
        pod=changes.get("pod", names.pod),
        container=changes.get("container", names.container),
        namespace=changes.get("namespace", names.namespace),
    )
    return changed, "; ".join(notes)
