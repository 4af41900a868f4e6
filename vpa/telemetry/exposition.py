"""The text that Prometheus scrapes (format 0.0.4), with every series under exactly its own name."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import Metric
from prometheus_client.registry import CollectorRegistry

from vpa.flags import show_float

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


def render(registry: CollectorRegistry) -> str:
    """All series of *registry*."""
    return "".join(line for metric in registry.collect() for line in _lines(metric))


def _lines(metric: Metric) -> Iterator[str]:
    name = metric.name
    # prometheus_client's own counters are named without the suffix that their samples carry.
    if metric.type == "counter" and any(sample.name == f"{name}_total" for sample in metric.samples):
        name = f"{name}_total"
    kind = {"unknown": "untyped", "info": "gauge", "stateset": "gauge"}.get(metric.type, metric.type)
    if metric.type == "info":
        name = f"{name}_info"
    escaped = metric.documentation.replace("\\", "\\\\").replace("\n", "\\n")
    yield f"# HELP {name} {escaped}\n# TYPE {name} {kind}\n"
    for sample in metric.samples:
        if sample.name.endswith("_created"):
            continue
        labels = ",".join(f'{label}="{_escape(value)}"' for label, value in sample.labels.items())
        yield f"{sample.name}{{{labels}}}" if labels else sample.name
        yield f" {show_float(float(sample.value))}\n"


def _escape(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
