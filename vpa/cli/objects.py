"""Kubernetes objects from files: what ``kubectl get … -o yaml|json`` prints, or a person wrote by hand."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import yaml

from vpa.objects import autoscalers, checkpoints, limits, meta, nodes, pods, workloads

T = TypeVar("T")

KINDS: dict[str, type[Any]] = {
    "CronJob": workloads.CronJob,
    "DaemonSet": workloads.Workload,
    "Deployment": workloads.Workload,
    "HorizontalPodAutoscaler": limits.HorizontalPodAutoscaler,
    "Job": workloads.Workload,
    "LimitRange": limits.LimitRange,
    "Node": nodes.Node,
    "Pod": pods.Pod,
    "PodDisruptionBudget": limits.PodDisruptionBudget,
    "ReplicaSet": workloads.Workload,
    "ReplicationController": workloads.ReplicationController,
    "ResourceQuota": limits.ResourceQuota,
    "StatefulSet": workloads.Workload,
    "VerticalPodAutoscaler": autoscalers.VerticalPodAutoscaler,
    "VerticalPodAutoscalerCheckpoint": checkpoints.Checkpoint,
}

CLUSTER_SCOPED = frozenset({"Node"})


class InputError(ValueError):
    """Bad input; the message is the one sentence that the user sees."""


class _Loader(yaml.CSafeLoader):
    """YAML as kubectl reads it: a bare timestamp stays text."""


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
    for first, resolvers in yaml.CSafeLoader.yaml_implicit_resolvers.items()
}


@dataclass(frozen=True)
class Item:
    """One object: the plain data as read, and its struct."""

    data: dict[str, Any]
    object: Any
    kind: str
    namespace: str
    name: str


@dataclass(frozen=True)
class Unreadable:
    """An object that is left out since its fields are not what they should be."""

    kind: str
    namespace: str
    name: str
    problem: str


@dataclass
class Objects:
    """All objects of one call, in input order."""

    items: list[Item] = field(default_factory=list)
    ignored: Counter[str] = field(default_factory=Counter)
    unreadable: list[Unreadable] = field(default_factory=list)

    def within(self, namespaces: Collection[str]) -> Objects:
        """Those in *namespaces*, and what is in none; all where no namespace is given."""
        if not namespaces:
            return self
        kept = [item for item in self.items if not item.namespace or item.namespace in namespaces]
        return Objects(kept, self.ignored, self.unreadable)

    def of(self, kind: type[T]) -> list[T]:
        """All objects of one struct type, in input order."""
        return [item.object for item in self.items if type(item.object) is kind]

    def of_kind(self, kind: str) -> list[Item]:
        """All objects of one Kubernetes kind, in input order."""
        return [item for item in self.items if item.kind == kind]


def read(paths: Iterable[str], *, stdin: Any = None, spared: Collection[str] = ()) -> Objects:
    """Read every file of *paths* (``-`` is standard input); an :class:`InputError` names file and object.

    Objects of the kinds *spared* that cannot be read are left out, and are in ``unreadable``.
    """
    result = Objects()
    for path in paths:
        for data in _documents(path, stdin or sys.stdin):
            add(result, data, path, spared=spared)
    return result


def _documents(path: str, stdin: Any) -> Iterator[Any]:
    try:
        text = stdin.read() if path == "-" else Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: is not UTF-8 text (byte {error.start})") from error
    if text.lstrip().startswith("{"):  # one JSON object, much quicker to read as such
        try:
            yield msgspec.json.decode(text)
            return
        except msgspec.DecodeError:
            pass  # several JSON documents, or YAML in flow style: YAML reads both
    try:
        yield from yaml.load_all(text, Loader=_Loader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f", line {mark.line + 1}" if mark else ""
        problem = getattr(error, "problem", None) or str(error).splitlines()[0]
        raise InputError(f"{path}{where}: is neither YAML nor JSON: {problem}") from error


def add(result: Objects, data: Any, path: str, *, spared: Collection[str] = ()) -> None:
    """Add an object, or the objects of a list; *path* says in errors where it comes from."""
    if data is None:
        return  # an empty document between two separators
    if not isinstance(data, dict) or not isinstance(data.get("kind"), str):
        raise InputError(f"{path}: a document is not a Kubernetes object: it has no kind")
    kind = data["kind"]
    if kind.endswith("List") and isinstance(data.get("items"), list | None):
        element = kind.removesuffix("List")
        for entry in data.get("items") or ():
            if element and isinstance(entry, dict) and "kind" not in entry:
                entry = {"apiVersion": data.get("apiVersion", ""), "kind": element, **entry}
            add(result, entry, path, spared=spared)
        return
    struct = KINDS.get(kind)
    if struct is None:
        result.ignored[kind] += 1
        return
    metadata = data.get("metadata")
    if not isinstance(metadata, dict):
        raise InputError(f"{path}: a {kind} has no metadata")
    if kind not in CLUSTER_SCOPED and not metadata.get("namespace"):
        data = {**data, "metadata": {**metadata, "namespace": "default"}}
    namespace = "" if kind in CLUSTER_SCOPED else str(data["metadata"]["namespace"])
    name = str(metadata.get("name") or "")
    try:
        decoded = _decoded(data, struct)
    except msgspec.ValidationError as error:
        if kind in spared:
            result.unreadable.append(Unreadable(kind, namespace, name, str(error)))
            return
        raise InputError(f"{path}: {kind} {namespace}/{name}: {error}") from error
    if not name and not metadata.get("generateName"):
        raise InputError(f"{path}: a {kind} in namespace {namespace} has no name")
    result.items.append(Item(data=data, object=decoded, kind=kind, namespace=namespace, name=name))


def _decoded(data: dict[str, Any], struct: type[T]) -> T:
    """The struct of an object; as for Kubernetes, a null is the same as nothing."""
    try:
        return meta.convert(data, struct)
    except msgspec.ValidationError:
        return meta.convert(_without_nulls(data), struct)


def _without_nulls(data: Any) -> Any:
    if isinstance(data, dict):
        return {key: _without_nulls(value) for key, value in data.items() if value is not None}
    return [_without_nulls(value) for value in data] if isinstance(data, list) else data
