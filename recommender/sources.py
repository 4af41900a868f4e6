"""Where present usage is read each tick: the Metrics API, external metrics, or Prometheus."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Protocol

from recommender.autoscalers import Autoscalers
from recommender.history import client_of
from recommender.metrics import RecommenderMetrics
from recommender.settings import PROMETHEUS, Settings
from vpa import selectors
from vpa.cluster.connection import Connection
from vpa.durations import SECOND
from vpa.metrics.metrics_api import ExternalMetrics, ExternalPod, MetricsApi
from vpa.metrics.prometheus import names
from vpa.metrics.prometheus.errors import NoAddressError, PrometheusError
from vpa.metrics.prometheus_usage import PrometheusUsage
from vpa.metrics.usage import Usage

log = logging.getLogger(__name__)

TIMEOUTS = (5.0, 30.0)
"""Seconds in which a reading must have come: half an interval, but within these bounds."""


class Source(Protocol):
    """One way to read usage."""

    @property
    def name(self) -> str:
        """How the metric ``metric_server_responses`` calls it."""

    @property
    def title(self) -> str:
        """How messages call it."""

    async def poll(self) -> Usage:
        """Usage of all containers now."""


class FromMetricsApi:
    """metrics.k8s.io."""

    name = "default-metrics-client"
    title = "The Metrics API"

    def __init__(self, api: MetricsApi) -> None:
        self._api = api

    async def poll(self) -> Usage:
        """One list of all pods' usage."""
        return await self._api.poll()


class FromExternalMetrics:
    """external.metrics.k8s.io, pod by pod for the pods of our VPAs."""

    name = "external-metrics-client"
    title = "The external metrics API"

    def __init__(self, api: ExternalMetrics, autoscalers: Autoscalers) -> None:
        self._api = api
        self._autoscalers = autoscalers

    async def poll(self) -> Usage:
        """A request for each pod and metric."""
        return await self._api.poll(
            ExternalPod(namespace, name, selectors.text(served.selector))
            for served in self._autoscalers
            if not served.selector.nothing
            for group in served.groups
            for namespace, name in sorted(group.pods)
        )


class FromPrometheus:
    """Prometheus, for clusters without a Metrics API."""

    name = "prometheus-usage-client"
    title = "Prometheus"

    def __init__(self, usage: PrometheusUsage, wall: Callable[[], float]) -> None:
        self._usage = usage
        self._wall = wall
        self._said = ""
        self._error: PrometheusError | None = None

    async def poll(self) -> Usage:
        """Two queries. While all addresses are left in peace, the trouble is still that of before."""
        try:
            reading = await self._usage.poll(self._wall())
        except PrometheusError as error:
            resting = isinstance(error, NoAddressError) and not error.causes
            if self._error is None or not resting:
                self._error = error
            raise self._error.with_traceback(None) from None
        note = self._usage.note
        if note and note != self._said:
            self._said = note
            log.info("Usage from Prometheus: %s", self._said)
        return reading


@contextlib.asynccontextmanager
async def opened(
    settings: Settings,
    connection: Connection,
    autoscalers: Autoscalers,
    metrics: RecommenderMetrics,
    wall: Callable[[], float],
) -> AsyncIterator[Source]:
    """The source that *settings* name. *wall*: the wall clock in seconds."""

    least, most = TIMEOUTS
    limit = min(max(settings.loop.recommender_interval / SECOND / 2, least), most)

    async def get(path: str, query: Mapping[str, str]) -> bytes:
        return await connection.request("GET", path, query=query, timeout=limit)

    chosen, rules = settings.usage_source, settings.rules
    namespace = settings.selection.vpa_object_namespace
    if chosen.use_external_metrics:
        external = ExternalMetrics(
            get=get,
            rules=rules,
            cpu_metric=chosen.external_metrics_cpu_metric,
            memory_metric=chosen.external_metrics_memory_metric,
            container_label=settings.history.container_name_label,
        )
        yield FromExternalMetrics(external, autoscalers)
    elif chosen.usage_source == PROMETHEUS:
        history = settings.history
        too_slow = "usage is read again in the next tick"
        async with client_of(settings, metrics, limit=limit, too_slow=too_slow) as client:
            usage = PrometheusUsage(
                client=client,
                names=names.from_flags(history, settings.given),
                rules=rules,
                namespace=namespace,
                interval=max(1, settings.loop.recommender_interval // SECOND),
            )
            yield FromPrometheus(usage, wall)
    else:
        yield FromMetricsApi(MetricsApi(get=get, rules=rules, namespace=namespace))
