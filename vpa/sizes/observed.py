"""The containers that the admission controller saw when the pod was made; later ones, injected by other
webhooks, are not ours to size.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from vpa.objects.pods import Pod

ANNOTATION: Final = "vpaObservedContainers"
SEPARATOR: Final = ", "

_LABEL: Final = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")


def observed_containers(pod: Pod) -> frozenset[str] | None:
    """Their names; None without a readable annotation: then all containers count."""
    text = (pod.metadata.annotations or {}).get(ANNOTATION)
    if text is None:
        return None
    if not text:
        return frozenset()
    names = text.split(SEPARATOR)
    return frozenset(names) if all(_LABEL.fullmatch(name) for name in names) else None


def annotation(names: Sequence[str]) -> str:
    """The annotation's value for containers of these names."""
    return SEPARATOR.join(names)
