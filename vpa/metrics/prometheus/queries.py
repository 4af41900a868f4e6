"""The text of queries: one canonical spelling, so that caches recognise a query that they know.

Nothing in a text depends on the time. Matchers are sorted, names in an alternation too.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from vpa.durations import SECOND, PrometheusDuration
from vpa.metrics.prometheus.names import Matcher, Names, choices

RATE_WINDOW = 300
"""Seconds: a rate looks at least so far back, or a slow scrape would leave it without two samples."""

_META = set("\\.+*?()|[]{}^$")

CPU_PARTS = ("cpu", "id")
"""Labels that tell apart what adds up to one container's CPU: one series a core, and one a run."""

SOURCES = ("job", "metrics_path")
"""Labels that tell apart who reports a container: a kubelet does it on two paths. Reports don't add up, and
neither do series that differ in any other label (replicas of Prometheus): the largest counts."""

MAX_NAME_IN_POD = 46
"""Characters of a controller's name that are sure to be in its pods' names, which are cut when too long."""


@dataclass(frozen=True, kw_only=True, slots=True, order=True)
class Shard:
    """Which pods a query asks for.

    *namespaces* none: all. *prefixes* none: all pods of the namespaces, but not those of *excluded*.
    *tail*: characters that a pod's name may end in; empty: any.
    """

    namespaces: tuple[str, ...] = ()
    prefixes: tuple[str, ...] = ()
    excluded: tuple[str, ...] = ()
    tail: str = ""


def escaped(text: str) -> str:
    """*text* as a regular expression that matches just it."""
    return "".join(f"\\{char}" if char in _META else char for char in text)


def matchers_of(matchers: Iterable[Matcher]) -> str:
    """``{a="b",c!="d"}``, sorted."""
    return "{" + ",".join(f"{label}{op}{_quoted(value)}" for label, op, value in sorted(set(matchers))) + "}"


def _quoted(text: str) -> str:
    inner = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{inner}"'


def _one_of(label: str, values: Sequence[str]) -> Matcher:
    if len(values) == 1:
        return (label, "=", values[0])
    return (label, "=~", "|".join(escaped(value) for value in sorted(set(values))))


def prefix_pattern(prefixes: Sequence[str]) -> str:
    """Names of pods of the controllers called *prefixes*."""
    whole = sorted({escaped(name) for name in prefixes if len(name) <= MAX_NAME_IN_POD})
    cut = sorted({escaped(name[:MAX_NAME_IN_POD]) for name in prefixes if len(name) > MAX_NAME_IN_POD})
    return "|".join([f"(?:{'|'.join(whole)})-.+"] * bool(whole) + [f"(?:{'|'.join(cut)}).*"] * bool(cut))


def shard_matchers(shard: Shard, *, namespace: str, pod: str) -> list[Matcher]:
    """The matchers of a shard on the labels called *namespace* and *pod*."""
    wanted = []
    if shard.namespaces:
        wanted.append(_one_of(namespace, shard.namespaces))
    if shard.prefixes:
        wanted.append((pod, "=~", prefix_pattern(shard.prefixes)))
    if shard.excluded:
        wanted.append((pod, "!~", prefix_pattern(shard.excluded)))
    if shard.tail:
        wanted.append((pod, "=~", f".*[{shard.tail}]"))
    return wanted


def container_selector(metric: str, names: Names, shard: Shard) -> str:
    """Series of real containers: not the pod's own, not the sandbox's."""
    wanted = [
        *names.matchers,
        *shard_matchers(shard, namespace=names.namespace, pod=names.pod),
        (names.container, "!=", ""),
        (names.container, "!=", "POD"),
    ]
    if not (shard.prefixes or shard.tail):
        wanted.append((names.pod, "!=", ""))
    if names.job:
        wanted.append(("job", "=", names.job))
    return metric + matchers_of(wanted)


def by_container(names: Names) -> str:
    """The labels that a container is known by."""
    return ", ".join((names.namespace, names.pod, names.container))


def cpu_history(names: Names, shard: Shard, *, step: int) -> str:
    """Mean cores of each container over each step of *step* seconds."""
    selector = container_selector(names.cpu_metric, names, shard)
    if names.cpu_is_rule:
        inner = f"avg_over_time({selector}[{seconds(step)}])"
    else:
        inner = f"rate({selector}[{seconds(max(step, RATE_WINDOW))}])"
    return _cpu(inner, names)


def memory_history(names: Names, shard: Shard, *, step: int, peaks: bool) -> str:
    """Largest working set of each container in each step; without *peaks* the one at its end."""
    selector = container_selector(names.memory_metric, names, shard)
    inner = f"max_over_time({selector}[{seconds(step)}])" if peaks else selector
    return f"max by ({by_container(names)}) ({inner})"


def cpu_now(names: Names, shard: Shard) -> str:
    """Cores of each container between its two newest scrapes."""
    selector = container_selector(names.cpu_metric, names, shard)
    return _cpu(selector if names.cpu_is_rule else f"irate({selector}[{seconds(RATE_WINDOW)}])", names)


def memory_now(names: Names, shard: Shard) -> str:
    """Working set of each container at its newest scrape."""
    return f"max by ({by_container(names)}) ({container_selector(names.memory_metric, names, shard)})"


def _cpu(inner: str, names: Names) -> str:
    key = by_container(names)
    source = ", ".join((key, *SOURCES))
    part = ", ".join((source, *CPU_PARTS))
    return f"max by ({key}) (sum by ({source}) (max by ({part}) ({inner})))"


def probe(names: Names) -> str:
    """One series of container memory from each job, to see which labels there are."""
    alternatives = [
        names.memory_metric + matchers_of([(pod, "!=", ""), (container, "!=", "")])
        for pod, container in choices(names)
    ]
    return f"topk by (job) (1, {' or '.join(alternatives)})"


OWNER_METRICS = (
    ("kube_pod_owner", "Pod", "pod"),
    ("kube_replicaset_owner", "ReplicaSet", "replicaset"),
    ("kube_job_owner", "Job", "job_name"),
)
"""(metric of kube-state-metrics, kind of the owned object, label with its name)."""


def owners(
    metric: str, name_label: str, namespaces: Sequence[str], *, window: int, exported: bool = False
) -> str:
    """Owners of all pods, ReplicaSets or Jobs that were there within *window* seconds.

    *exported*: the label ``namespace`` is that of kube-state-metrics itself, as without ``honor_labels``.
    """
    wanted = [_one_of("exported_namespace" if exported else "namespace", namespaces)] if namespaces else []
    labels = ["namespace", name_label, "exported_namespace", f"exported_{name_label}"]
    by = ", ".join([*labels, "owner_kind", "owner_name", "owner_is_controller"])
    return f"max by ({by}) (last_over_time({metric}{matchers_of(wanted)}[{seconds(window)}]))"


_SELECTOR = re.compile(
    r"\s*(?P<metric>[a-zA-Z_:][\w:]*)?\s*"
    r"(?:\{(?P<matchers>(?:[^{}\"']|\"(?:[^\"\\]|\\.)*\"|'(?:[^'\\]|\\.)*')*)\})?"
    r"\s*(?:\[[^\]]*\])?\s*",
    re.ASCII,
)


def pod_labels(names: Names, namespaces: Sequence[str], *, window: int) -> str:
    """Labels of all pods that were there within *window* seconds.

    What the flag has is a selector in nearly every case; a range behind it is replaced by the window, or
    only the pods of the last minute would be found. Any other expression is left as it is.
    """
    found = _SELECTOR.fullmatch(names.pod_labels)
    if found is None or not (found["metric"] or found["matchers"]):
        return names.pod_labels
    inner = [part for part in ((found["matchers"] or "").strip().rstrip(","),) if part]
    if namespaces:
        inner.append(matchers_of([_one_of(names.pod_labels_namespace, namespaces)])[1:-1])
    selector = (found["metric"] or "") + "{" + ",".join(inner) + "}"
    return f"last_over_time({selector}[{seconds(window)}])"


def seconds(length: int) -> str:
    """A length of time as Prometheus prints it: ``1h``, ``5m``, ``1m30s``."""
    return str(PrometheusDuration(length * SECOND))
