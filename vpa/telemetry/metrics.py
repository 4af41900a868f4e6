"""Counters, gauges and histograms whose series have exactly the given names, in a registry that is passed in.

``prometheus_client`` would add ``_total`` and ``_created`` to names; upstream's series have neither, and
dashboards ask for upstream's. The classes here are collectors for its registries; histograms take whole
arrays, since a tick observes tens of thousands of samples. They belong to one event loop and take no locks.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from prometheus_client.core import Metric
from prometheus_client.registry import Collector, CollectorRegistry

from vpa.flags import show_float

if TYPE_CHECKING:
    from numpy.typing import NDArray

LabelValues = tuple[str, ...]

EXECUTION_BUCKETS = (
    *(0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 30, 40, 50, 60, 70, 80, 90, 100, 120, 150, 240, 300),
)
"""Seconds; what all three services time their steps by."""

REQUEST_BUCKETS = (
    *(0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1, 2, 5, 10, 20, 30, 60, 120, 300),
)
"""Seconds; admission reviews and queries to Prometheus."""


class Family(Collector):
    """Series of one name that differ in their labels."""

    kind = ""

    def __init__(
        self,
        name: str,
        text: str,
        labels: Sequence[str] = (),
        *,
        registry: CollectorRegistry,
    ) -> None:
        self.name = name
        self.help = text
        self.labels = tuple(labels)
        self._names = frozenset(labels)
        registry.register(self)

    def describe(self) -> list[Metric]:
        """The name alone, so that registering collects nothing."""
        return [Metric(self.name, self.help, self.kind)]

    def _key(self, values: Mapping[str, str]) -> LabelValues:
        if values.keys() != self._names:
            raise ValueError(f"{self.name} has the labels {self.labels}, not {tuple(values)}")
        return tuple([values[label] for label in self.labels])

    def _named(self, key: LabelValues) -> dict[str, str]:
        return dict(zip(self.labels, key, strict=True))


class _Single(Family):
    """One number per label set."""

    def __init__(
        self,
        name: str,
        text: str,
        labels: Sequence[str] = (),
        *,
        registry: CollectorRegistry,
    ) -> None:
        self._values: dict[LabelValues, float] = {}
        super().__init__(name, text, labels, registry=registry)
        if not self.labels:
            self._values[()] = 0.0

    def value(self, **labels: str) -> float:
        """The present value; 0 for a series that does not exist yet."""
        return self._values.get(self._key(labels), 0.0)

    def forget(self, **labels: str) -> None:
        """Drop all series that carry these label values, for example those of a deleted VPA."""
        places = [(self.labels.index(label), value) for label, value in labels.items()]
        for key in [key for key in self._values if all(key[at] == value for at, value in places)]:
            del self._values[key]

    def collect(self) -> Iterator[Metric]:
        """For the registry."""
        metric = Metric(self.name, self.help, self.kind)
        for key, value in self._values.items():
            metric.add_sample(self.name, self._named(key), value)
        yield metric


class Counter(_Single):
    """Only grows."""

    kind = "counter"

    def inc(self, by: float = 1.0, **labels: str) -> None:
        """Add *by*; 0 makes the series visible."""
        key = self._key(labels)
        self._values[key] = self._values.get(key, 0.0) + by


class Gauge(_Single):
    """Goes up and down."""

    kind = "gauge"

    def set(self, value: float, **labels: str) -> None:
        """Replace the value."""
        self._values[self._key(labels)] = value

    def inc(self, by: float = 1.0, **labels: str) -> None:
        """Add *by*."""
        key = self._key(labels)
        self._values[key] = self._values.get(key, 0.0) + by


class Histogram(Family):
    """Counts of observations by size. *buckets* are upper bounds, rising, without +Inf."""

    kind = "histogram"

    def __init__(
        self,
        name: str,
        text: str,
        labels: Sequence[str] = (),
        *,
        buckets: Sequence[float],
        registry: CollectorRegistry,
    ) -> None:
        self._bounds = [float(bound) for bound in buckets]
        self._texts = [*(show_float(float(bound)) for bound in buckets), "+Inf"]
        self._counts: dict[LabelValues, list[int]] = {}
        self._sums: dict[LabelValues, float] = {}
        super().__init__(name, text, labels, registry=registry)
        if not self.labels:
            self._series(())

    def observe(self, value: float, **labels: str) -> None:
        """Count one observation."""
        key = self._key(labels)
        self._series(key)[bisect_left(self._bounds, value)] += 1
        self._sums[key] += value

    def observer(self, **labels: str) -> Callable[[float], None]:
        """`observe` for one label set, for those who observe very often."""
        key = self._key(labels)

        def observe(value: float) -> None:
            self._series(key)[bisect_left(self._bounds, value)] += 1
            self._sums[key] += value

        return observe

    def observe_many(self, values: NDArray[Any], **labels: str) -> None:
        """Count all *values* (one dimension) of one label set."""
        import numpy as np  # here, since services that observe single values never need its memory

        if values.size:
            key = self._key(labels)
            places = np.searchsorted(self._bounds, values)
            series = self._series(key)
            for place, count in enumerate(np.bincount(places, minlength=len(self._texts)).tolist()):
                series[place] += count
            self._sums[key] += float(values.sum())

    @contextmanager
    def time(self, **labels: str) -> Iterator[None]:
        """Observe how many seconds the block takes, also when it fails."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self.observe(time.perf_counter() - start, **labels)

    def count(self, **labels: str) -> int:
        """Observations so far."""
        counts = self._counts.get(self._key(labels))
        return 0 if counts is None else sum(counts)

    def sum(self, **labels: str) -> float:
        """Their sum so far."""
        return self._sums.get(self._key(labels), 0.0)

    def collect(self) -> Iterator[Metric]:
        """For the registry."""
        metric = Metric(self.name, self.help, self.kind)
        for key, counts in self._counts.items():
            labels = self._named(key)
            running = 0
            for text, count in zip(self._texts, counts, strict=True):
                running += count
                metric.add_sample(f"{self.name}_bucket", {**labels, "le": text}, running)
            metric.add_sample(f"{self.name}_sum", labels, self._sums[key])
            metric.add_sample(f"{self.name}_count", labels, running)
        yield metric

    def _series(self, key: LabelValues) -> list[int]:
        counts = self._counts.get(key)
        if counts is None:
            counts = self._counts[key] = [0] * len(self._texts)
            self._sums[key] = 0.0
        return counts


def size_label(count: int) -> str:
    """``vpa_size_log2``: the rounded-down binary logarithm of a number of pods, 0 for none, at most 20."""
    return str(min(max(count, 1).bit_length() - 1, 20))
