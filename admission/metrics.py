"""The admission controller's metrics, by upstream's names, labels and buckets."""

from __future__ import annotations

from prometheus_client.registry import CollectorRegistry

from vpa.telemetry.metrics import EXECUTION_BUCKETS, REQUEST_BUCKETS, Counter, Histogram

_PREFIX = "vpa_admission_controller_"

STEPS = ("read_request", "admit", "build_response", "write_response", "total")
"""Of one review, in their order."""


class AdmissionMetrics:
    """Reviews and how long they take."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.pods = Counter(
            _PREFIX + "admission_pods_total",
            "Pods seen, by whether they were changed.",
            ["applied"],
            registry=registry,
        )
        self.latency = Histogram(
            _PREFIX + "admission_latency_seconds",
            "Time of one review.",
            ["status", "resource"],
            buckets=REQUEST_BUCKETS,
            registry=registry,
        )
        self.execution_latency = execution_latency = Histogram(
            _PREFIX + "execution_latency_seconds",
            "Time spent in each step of a review.",
            ["step"],
            buckets=EXECUTION_BUCKETS,
            registry=registry,
        )
        self.steps = {step: execution_latency.observer(step=step) for step in STEPS}
        """Observers of the latter by step."""


class OwnMetrics:
    """What upstream has no figures of."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.unchanged = Counter(
            _PREFIX + "unchanged_pods_total",
            "Pods that got no sizes, by the reason.",
            ["reason"],
            registry=registry,
        )
        self.owner_requests = Counter(
            _PREFIX + "owner_requests_total",
            "Owners of pods that were not known yet and had to be asked for.",
            registry=registry,
        )
