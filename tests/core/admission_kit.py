"""Reviews as the API server sends them, and a handler that needs no cluster."""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass, field
from typing import Any

from prometheus_client.registry import CollectorRegistry

from admission.autoscalers import Autoscalers
from admission.choosing import Choice
from admission.handler import Call, Handler, Reply
from admission.metrics import AdmissionMetrics, OwnMetrics
from admission.pods import Pods
from tests.core.pods import SAFE, Data, a_vpa, the_ranges
from vpa.gates import FeatureGates
from vpa.objects.pods import Pod
from vpa.reasons import Reason, Refusal
from vpa.rules import Rules
from vpa.scopes import NodeLabels
from vpa.sizes.limit_ranges import Ranges
from vpa.sizes.nodes_fit import Rooms
from vpa.sizes.patches import Terms

PODS = {"group": "", "version": "v1", "resource": "pods"}
VPAS = {"group": "autoscaling.k8s.io", "version": "v1", "resource": "verticalpodautoscalers"}
VPA_KIND = {"group": "autoscaling.k8s.io", "version": "v1", "kind": "VerticalPodAutoscaler"}


def review(resource: Data, obj: Any, *, version: str = "v1", operation: str = "CREATE", **more: Any) -> Data:
    """An AdmissionReview."""
    request = {
        "uid": "0b1d9a4e-7f4a-4a77-9d5c-5a2f8a2f3b11",
        "kind": {"group": "", "version": "v1", "kind": "Pod"} if resource is PODS else VPA_KIND,
        "resource": dict(resource),
        "requestKind": {"group": "", "version": "v1", "kind": "Pod"} if resource is PODS else VPA_KIND,
        "namespace": "n",
        "operation": operation,
        "object": obj,
        "oldObject": None,
        "dryRun": False,
        **more,
    }
    return {"kind": "AdmissionReview", "apiVersion": f"admission.k8s.io/{version}", "request": request}


@dataclass
class Bench:
    """A handler in a namespace with one VPA (or none) and its LimitRanges."""

    vpa: Data | None = None
    limit_ranges: tuple[Data, ...] = ()
    rules: Rules = SAFE
    gates: FeatureGates = field(default_factory=FeatureGates)
    synced: bool = True
    rooms: Rooms | None = None
    labels: NodeLabels = field(default_factory=dict)
    """Node → its labels."""
    bug: Exception | None = None
    """What the choice of a VPA raises."""

    def __post_init__(self) -> None:
        registry = CollectorRegistry()
        self.metrics, self.own = AdmissionMetrics(registry), OwnMetrics(registry)
        self._chosen = None if self.vpa is None else a_vpa(self.vpa)
        mode = "Recreate"
        self.handler = Handler(
            Pods(self, self, terms=Terms(rules=self.rules, gates=self.gates, default_mode=mode)),
            Autoscalers(rules=self.rules, gates=self.gates, default_mode=mode),
            metrics=self.metrics,
            own=self.own,
            rules=self.rules,
        )

    def ranges_of(self, namespace: str) -> Ranges:
        return the_ranges(*self.limit_ranges, rules=self.rules)

    async def labels_of(self, node: str, *, patience: float) -> NodeLabels:
        return self.labels

    def known_labels(self, node: str) -> NodeLabels | None:
        return self.labels

    async def choose(self, pod: Pod, namespace: str, *, patience: float) -> Choice:
        found = self.known(pod, namespace)
        assert found is not None
        return found

    def known(self, pod: Pod, namespace: str) -> Choice | None:
        if self.bug is not None:
            raise self.bug
        if self._chosen is None:
            return Choice(None, Refusal(Reason.NO_VPA, "there is none"))
        return Choice(self._chosen)

    async def call(self, body: bytes, **call: str) -> Reply:
        return await self.handler.answer(Call(body=body, **call))

    async def ask(self, body: Data, **call: str) -> Data:
        """The ``response`` to a review."""
        reply = await self.call(json.dumps(body).encode(), **call)
        assert reply.status == 200
        answer: Data = json.loads(reply.body)
        assert answer["kind"] == "AdmissionReview"
        response: Data = answer["response"]
        return response


def patch_of(response: Data) -> list[Data]:
    """The operations in a response."""
    if "patch" not in response:
        return []
    assert response["patchType"] == "JSONPatch"
    found: list[Data] = json.loads(base64.b64decode(response["patch"]))
    return found
