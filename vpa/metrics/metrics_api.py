"""Present usage from the API server: ``metrics.k8s.io`` and, where it is asked for, external metrics.

A list of 100,000 containers is read in some tenths of a second and leaves the event loop to others meanwhile.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from urllib.parse import quote

import msgspec

from vpa import times
from vpa.metrics.usage import ABSENT, Get, Usage, UsageBuilder
from vpa.quantities import Quantity, QuantityError
from vpa.rules import Rules

NO_CONTAINERS = frozenset({"", "POD"})
"""Names under which adapters report the pod's own cgroup and its sandbox."""

AT_A_TIME = 4000
"""Pods that are read before others may run: some milliseconds."""

MOST_REQUESTS = 8
"""Requests for external metrics at one time."""

_Amount = str | int | float | None


class _Usage(msgspec.Struct, gc=False):
    cpu: _Amount = None
    memory: _Amount = None


class _Container(msgspec.Struct, gc=False):
    name: str = ""
    usage: _Usage | None = None


class _Metadata(msgspec.Struct, gc=False):
    name: str = ""
    namespace: str = ""


class _Pod(msgspec.Struct, gc=False):
    metadata: _Metadata
    timestamp: str = ""
    window: str = ""
    containers: list[_Container] | None = None


class _List(msgspec.Struct):
    items: list[_Pod] | None = None


class _RawList(msgspec.Struct):
    items: list[msgspec.Raw] | None = None


class _ExternalValue(msgspec.Struct, rename="camel", gc=False):
    metric_labels: dict[str, str] | None = None
    timestamp: str = ""
    value: _Amount = None


class _ExternalList(msgspec.Struct):
    items: list[_ExternalValue] | None = None


_LIST = msgspec.json.Decoder(_List)
_RAW_LIST = msgspec.json.Decoder(_RawList)
_POD = msgspec.json.Decoder(_Pod)
_EXTERNAL = msgspec.json.Decoder(_ExternalList)

_CPU_DIVISORS = {"n": 1_000_000, "u": 1000, "m": 1}
_MEMORY_SHIFTS = {"Ki": 10, "Mi": 20, "Gi": 30}
_SHORT = 11
"""Characters of an amount that cannot be too large for 64 bits, whatever its suffix."""
_MOST = 10**14
"""The largest amount, as upstream."""


class MetricsError(Exception):
    """An answer that is no list of metrics."""


def cpu_amount(value: str | int | float) -> int:
    """Millicores, rounded up; `QuantityError` for what is no quantity."""
    if type(value) is str and len(value) <= _SHORT and value[:-1].isdecimal():
        if divisor := _CPU_DIVISORS.get(value[-1]):
            return -(-int(value[:-1]) // divisor)
        if value[-1].isdecimal():
            return int(value) * 1000
    return min(Quantity.from_json(value).milli(), _MOST)


def memory_amount(value: str | int | float) -> int:
    """Bytes, rounded up; `QuantityError` for what is no quantity."""
    if type(value) is str and len(value) <= _SHORT:
        if value.isdecimal():
            return int(value)
        if (shift := _MEMORY_SHIFTS.get(value[-2:])) and value[:-2].isdecimal():
            return int(value[:-2]) << shift
    return min(Quantity.from_json(value).value(), _MOST)


@dataclass(slots=True)
class _Reader:
    """Reads pods of one list; knows the times that it has seen."""

    rules: Rules
    built: UsageBuilder = field(default_factory=UsageBuilder)
    windowless: list[int] = field(default_factory=list)
    """Entries whose window is 0 s: an adapter made them up of two queries, and a missing half is 0."""
    _times: dict[str, int] = field(default_factory=dict)

    def read(self, pod: _Pod) -> None:
        try:
            time = self._time(pod.timestamp)
        except ValueError:
            self.built.skipped += len(pod.containers or ())
            return
        windowless = pod.window in ("0s", "")
        for container in pod.containers or ():
            if container.name in NO_CONTAINERS:
                continue
            usage = container.usage or _Usage()
            try:
                cpu, memory = self._amounts(usage)
            except QuantityError:
                self.built.skipped += 1
                continue
            if windowless:
                self.windowless.append(len(self.built.containers))
            self.built.add(pod.metadata.namespace, pod.metadata.name, container.name, time, cpu, memory)

    def _time(self, timestamp: str) -> int:
        time = self._times.get(timestamp)
        if time is None:
            time = self._times[timestamp] = times.parse(timestamp)
        return time

    def _amounts(self, usage: _Usage) -> tuple[int, int]:
        absent = ABSENT if self.rules.absent_usage_is_no_sample else 0
        cpu = absent if usage.cpu is None else cpu_amount(usage.cpu)
        memory = absent if usage.memory is None else memory_amount(usage.memory)
        if memory == 0:  # nothing that runs uses no memory at all
            memory = absent
        return cpu, memory


def _pods(body: bytes) -> tuple[list[_Pod], int]:
    """The pods of a list and the number of those that are not readable."""
    try:
        return _LIST.decode(body).items or [], 0
    except msgspec.ValidationError:
        pass  # one bad pod must not cost the others
    except msgspec.DecodeError as error:
        raise MetricsError(f"the Metrics API's answer is no JSON: {error}") from None
    try:
        raw = _RAW_LIST.decode(body).items or []
    except msgspec.ValidationError as error:
        raise MetricsError(f"the Metrics API's answer is no list: {error}") from None
    pods: list[_Pod] = []
    for item in raw:
        try:
            pods.append(_POD.decode(item))
        except msgspec.ValidationError:
            continue
    return pods, len(raw) - len(pods)


def decode_pod_metrics(body: bytes, rules: Rules) -> Usage:
    """A ``PodMetricsList`` → usage. `MetricsError` when *body* is none; unreadable entries are counted.

    A missing resource is `ABSENT`; under ``upstream`` it is 0.
    """
    pods, bad = _pods(body)
    reader = _Reader(rules)
    for pod in pods:
        reader.read(pod)
    reader.built.skipped += bad
    return reader.built.build()


@dataclass(slots=True)
class MetricsApi:
    """The Metrics API of the cluster, in one namespace or in all."""

    get: Get
    rules: Rules
    namespace: str = ""
    _used: set[tuple[str, str, str]] = field(default_factory=set)
    """Containers without a window that used CPU when they were last read."""

    async def poll(self) -> Usage:
        """Usage of all containers now. Errors of `get` and `MetricsError` are for the caller."""
        inside = f"/namespaces/{quote(self.namespace)}" if self.namespace else ""
        pods, bad = _pods(await self.get(f"/apis/metrics.k8s.io/v1beta1{inside}/pods", {}))
        reader = _Reader(self.rules)
        for number, pod in enumerate(pods, 1):
            reader.read(pod)
            if number % AT_A_TIME == 0:
                await asyncio.sleep(0)
        reader.built.skipped += bad
        if self.rules.absent_usage_is_no_sample:
            self._doubt(reader)
        return reader.built.build()

    def _doubt(self, reader: _Reader) -> None:
        """Without a window, the first 0 after some CPU use is no sample; a second one in a row is.

        The adapter of Prometheus says 0 for the half of its answer that it lacks (a late scrape).
        """
        built, used = reader.built, set[tuple[str, str, str]]()
        for entry in reader.windowless:
            key = (built.namespaces[entry], built.pods[entry], built.containers[entry])
            if built.cpu[entry] > 0:
                used.add(key)
            elif built.cpu[entry] == 0 and key in self._used:
                built.cpu[entry] = ABSENT
        self._used = used


@dataclass(frozen=True, slots=True)
class ExternalPod:
    """A pod whose usage is looked for in external metrics."""

    namespace: str
    name: str
    selector: str
    """The selector of its VPA, as text."""


@dataclass(kw_only=True, slots=True)
class ExternalMetrics:
    """Usage from ``external.metrics.k8s.io``: for each pod and resource one request, as upstream."""

    get: Get
    rules: Rules
    cpu_metric: str = ""
    memory_metric: str = ""
    container_label: str = "name"
    errors: list[str] = field(default_factory=list)
    """What went wrong at the last poll, a pod each; under ``upstream`` the first error ends the poll."""

    async def poll(self, pods: Iterable[ExternalPod]) -> Usage:
        """Usage of the containers of *pods* now. `MetricsError` under ``upstream`` when any pod fails."""
        self.errors.clear()
        todo = iter(list(pods))
        found: dict[tuple[str, str], dict[str, list[int]]] = {}
        try:
            async with asyncio.TaskGroup() as tasks:
                for _ in range(MOST_REQUESTS):
                    tasks.create_task(self._work(todo, found))
        except* MetricsError as errors:
            raise MetricsError(str(errors.exceptions[0])) from None
        built = UsageBuilder()
        for (namespace, pod), containers in sorted(found.items()):
            for container, (time, cpu, memory) in sorted(containers.items()):
                built.add(namespace, pod, container, time, cpu, memory)
        return built.build()

    async def _work(
        self, todo: Iterator[ExternalPod], found: dict[tuple[str, str], dict[str, list[int]]]
    ) -> None:
        for pod in todo:
            try:
                found[pod.namespace, pod.name] = await self._read(pod)
            except Exception as error:  # whatever `get` raises
                text = f"external metrics of pod {pod.namespace}/{pod.name}: {error}"
                if not self.rules.absent_usage_is_no_sample:
                    raise MetricsError(text) from error
                self.errors.append(text)

    async def _read(self, pod: ExternalPod) -> dict[str, list[int]]:
        """Container → [time, CPU, memory]."""
        absent = ABSENT if self.rules.absent_usage_is_no_sample else 0
        containers: dict[str, list[int]] = {}
        for place, metric in ((1, self.cpu_metric), (2, self.memory_metric)):
            if not metric:
                continue
            selector = ",".join(part for part in (pod.selector, f"pod={pod.name}") if part)
            path = f"/apis/external.metrics.k8s.io/v1beta1/namespaces/{quote(pod.namespace)}/{quote(metric)}"
            body = await self.get(path, {"labelSelector": selector})
            try:
                items = _EXTERNAL.decode(body).items or []
            except msgspec.DecodeError as error:
                raise MetricsError(f"the metric {metric} is no list of values: {error}") from None
            for item in items:
                container = (item.metric_labels or {}).get(self.container_label, "")
                if container in NO_CONTAINERS or item.value is None:
                    continue
                entry = containers.setdefault(container, [0, absent, absent])
                entry[0] = max(entry[0], times.parse(item.timestamp))
                entry[place] = (cpu_amount if place == 1 else memory_amount)(item.value)
        return containers
