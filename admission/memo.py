"""Admissions of pods that are alike: the replicas of one workload get the same patch, worked out once."""

from __future__ import annotations

from typing import Final, NamedTuple

from vpa.objects.autoscalers import VerticalPodAutoscaler
from vpa.objects.meta import encoder
from vpa.objects.pods import Pod
from vpa.reasons import Refusal
from vpa.sizes.limit_ranges import Ranges

REMEMBERED: Final = 2000
"""Admissions that are remembered at most, some 3 MiB."""

Key = tuple[str, str, bytes]


class Admitted(NamedTuple):
    """A patch as JSON (empty: none), and why the pod gets no sizes if it gets none."""

    patch: bytes
    reason: Refusal | None


class Memo:
    """What was decided for pods of one shape under one VPA and one set of LimitRanges.

    A decision depends on nothing else. It is used only for the very objects that it was made for, so that a
    new recommendation, policy or LimitRange is never answered with an old patch.
    """

    def __init__(self, *, remembered: int = REMEMBERED) -> None:
        self._remembered = remembered
        self._known: dict[Key, tuple[VerticalPodAutoscaler, Ranges, Admitted]] = {}

    def __len__(self) -> int:
        return len(self._known)

    def key(self, pod: Pod, vpa: VerticalPodAutoscaler) -> Key:
        """All of a pod that can matter: everything that is read of it but its identity and labels."""
        shape = encoder.encode((pod.metadata.annotations, pod.spec, pod.status))
        return vpa.metadata.namespace, vpa.metadata.name, shape

    def get(self, key: Key, vpa: VerticalPodAutoscaler, ranges: Ranges) -> Admitted | None:
        """The decision for that key, if it was made for these objects."""
        found = self._known.get(key)
        if found is None or found[0] is not vpa or found[1] is not ranges:
            return None
        return found[2]

    def put(self, key: Key, vpa: VerticalPodAutoscaler, ranges: Ranges, admitted: Admitted) -> None:
        """Remember a decision."""
        if len(self._known) >= self._remembered:
            self._known.clear()
        self._known[key] = (vpa, ranges, admitted)
