"""Vertical Pod Autoscaler for Kubernetes, as a library.

The core decides with plain values and takes the time as an argument; it needs numpy and msgspec alone. What most
programs start with is named here; everything else is found in the module of its name (`vpa.checkpoints`,
`vpa.sizes.capping`, `vpa.sizes.patches`, `vpa.disruptions`, …).
"""

from vpa.objects.autoscalers import VerticalPodAutoscaler
from vpa.objects.meta import convert
from vpa.objects.pods import Pod
from vpa.pods import desired
from vpa.quantities import Quantity, QuantityError
from vpa.recommendations import Roster
from vpa.rules import Rules, preset
from vpa.settings import Aggregation, Estimation
from vpa.traces import explain
from vpa.usage import Usage

__all__ = [
    "Aggregation",
    "Estimation",
    "Pod",
    "Quantity",
    "QuantityError",
    "Roster",
    "Rules",
    "Usage",
    "VerticalPodAutoscaler",
    "convert",
    "desired",
    "explain",
    "preset",
]
