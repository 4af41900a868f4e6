"""Vertical Pod Autoscaler for Kubernetes, as a library.

The core decides with plain values and takes the time as an argument; it needs numpy and msgspec alone. What
most programs start with is named here; everything else is found in the module of its name (`vpa.checkpoints`,
`vpa.sizes.capping`, `vpa.sizes.patches`, `vpa.disruptions`, …).
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
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

_HOMES = {
    "Aggregation": "vpa.settings",
    "Estimation": "vpa.settings",
    "Pod": "vpa.objects.pods",
    "Quantity": "vpa.quantities",
    "QuantityError": "vpa.quantities",
    "Roster": "vpa.recommendations",
    "Rules": "vpa.rules",
    "Usage": "vpa.usage",
    "VerticalPodAutoscaler": "vpa.objects.autoscalers",
    "convert": "vpa.objects.meta",
    "desired": "vpa.pods",
    "explain": "vpa.traces",
    "preset": "vpa.rules",
}


def __getattr__(name: str) -> Any:
    """Import what is named above when it is first used: a webhook has no use for numpy's 15 MiB."""
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = globals()[name] = getattr(import_module(home), name)
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
