"""``autoscaling.k8s.io`` VerticalPodAutoscalerCheckpoint: one container's history, compressed."""

from __future__ import annotations

from typing import Any

from vpa.objects.meta import Obj, ObjectMeta

KIND = "VerticalPodAutoscalerCheckpoint"


class Spec(Obj, frozen=True):
    vpa_object_name: str = ""
    container_name: str = ""


class Checkpoint(Obj, frozen=True):
    """The status stays plain data here: :mod:`vpa.checkpoints` checks it and says what is wrong with it."""

    api_version: str = ""
    kind: str = ""
    metadata: ObjectMeta = ObjectMeta()
    spec: Spec = Spec()
    status: dict[str, Any] | None = None
