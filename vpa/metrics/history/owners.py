"""Asks Prometheus whose the pods of the past were: owner metrics first, labels where these do not suffice."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable
from dataclasses import dataclass, field, replace

from vpa.metrics.history.attribution import Attribution, PodKey
from vpa.metrics.history.fetching import decoded
from vpa.metrics.prometheus import decoding, queries
from vpa.metrics.prometheus.client import Client, Query
from vpa.metrics.prometheus.decoding import Matrix
from vpa.metrics.prometheus.errors import PrometheusError
from vpa.metrics.prometheus.names import Names

LABEL_FLAGS = frozenset(
    {"metric-for-pod-labels", "pod-label-prefix", "pod-namespace-label", "pod-name-label"}
)


class LabelsError(Exception):
    """Upstream's verdict on a label query that it cannot use: all history is discarded."""


@dataclass(slots=True)
class Owners:
    """Fills an `Attribution`, namespace by namespace, only where it does not know enough."""

    client: Client
    names: Names
    attribution: Attribution
    window: int
    """Seconds in which a pod may have lived."""
    at: int
    """The end of that time, seconds since the epoch."""
    problems: list[str] = field(default_factory=list)
    _asked: set[tuple[str, str]] = field(default_factory=set)
    _lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def learn(self, pods: Iterable[PodKey]) -> None:
        """Ask for the namespaces of those *pods* that nobody knows yet; errors are kept as `problems`."""
        async with self._lock:
            if missing := self._unasked("owners", (pod for pod in pods if not self._known(pod))):
                await self._try(self._owners(missing))
            if missing := self._unasked("labels", (pod for pod in pods if not self._known(pod))):
                await self._try(self._labels(missing))

    def _known(self, pod: PodKey) -> bool:
        return pod in self.attribution.live or pod in self.attribution.owners

    def _unasked(self, what: str, pods: Iterable[PodKey]) -> list[str]:
        asked = {namespace for name, namespace in self._asked if name == what}
        namespaces = sorted({namespace for namespace, _ in pods} - asked)
        self._asked |= {(what, namespace) for namespace in namespaces}
        return namespaces

    async def _try(self, task: Awaitable[None]) -> None:
        try:
            await task
        except PrometheusError as error:
            self.problems.append(str(error))

    async def _owners(self, namespaces: list[str]) -> None:
        for metric, kind, label in queries.OWNER_METRICS:
            for exported in (False, True):
                text = queries.owners(metric, label, namespaces, window=self.window, exported=exported)
                matrix = await self._ask(text)
                self.attribution.learn_owners(matrix, kind=kind, name_label=label)
                if matrix.labels:
                    break

    async def _labels(self, namespaces: list[str]) -> None:
        choices = [self.names]
        if not LABEL_FLAGS & self.names.fixed:
            choices.append(
                replace(
                    self.names,
                    pod_labels="kube_pod_labels",
                    pod_labels_prefix="label_",
                    pod_labels_namespace="namespace",
                    pod_labels_pod="pod",
                )
            )
        for names in dict.fromkeys(choices):
            matrix = await self._ask(queries.pod_labels(names, namespaces, window=self.window))
            self.attribution.learn_labels(matrix, names)
            if matrix.labels:
                break

    async def _ask(self, text: str) -> Matrix:
        query = Query.instant(text, at=self.at)
        return await decoded(await self.client.ask(query), query)


async def labels_as_upstream(client: Client, names: Names, attribution: Attribution, *, at: int) -> None:
    """The label query as it is written in the flag; anything but a matrix is an error, as upstream."""
    query = Query.instant(names.pod_labels, at=at)
    try:
        reply = await client.ask(query)
    except PrometheusError as error:
        raise LabelsError(f"cannot read last labels: cannot get timeseries for labels: {error}") from None
    if reply.answer.result_type != decoding.MATRIX:
        raise LabelsError(
            "cannot read last labels: cannot get timeseries for labels: expected query to return a matrix; "
            f"got result type {reply.answer.result_type}"
        )
    attribution.learn_labels(await decoded(reply, query), names)
