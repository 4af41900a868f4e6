"""Deletes checkpoints that nobody needs: the VPA is gone, or the container is and the history has expired."""

from __future__ import annotations

import logging
from collections.abc import Collection

from recommender.autoscalers import Autoscalers, VpaKey
from vpa import times
from vpa.cluster import reads, writes
from vpa.cluster.connection import Connection
from vpa.cluster.errors import ClusterError, Conflict, NotFound
from vpa.cluster.resources import CHECKPOINTS, VERTICAL_AUTOSCALERS
from vpa.objects.checkpoints import Spec
from vpa.objects.meta import Obj, ObjectMeta, PartialObject
from vpa.rules import Rules
from vpa.settings import Selection

log = logging.getLogger(__name__)


class _Status(Obj, frozen=True):
    last_update_time: str | None = None
    last_sample_start: str | None = None


class CheckpointView(Obj, frozen=True):
    """The part of a checkpoint that says whose it is and how old."""

    metadata: ObjectMeta = ObjectMeta()
    spec: Spec = Spec()
    status: _Status | None = None


def newest(checkpoint: CheckpointView) -> int | None:
    """When a checkpoint's history ends, nanoseconds; None if it does not say."""
    status = checkpoint.status or _Status()
    for text in (status.last_sample_start, status.last_update_time):
        if text:
            try:
                return times.parse(text)
            except ValueError:
                return None
    return None


async def collect(
    connection: Connection,
    autoscalers: Autoscalers,
    existing: Collection[VpaKey],
    *,
    selection: Selection,
    rules: Rules,
    expiry: int,
    now: int,
) -> int:
    """Delete what is not needed; how many were deleted. *existing*: all VPAs, also those that cannot be read.

    *expiry*: nanoseconds for which history lives. Each deletion holds only for the object as it was seen, and
    a VPA that seems to be gone is asked for once more. Raises a ``ClusterError`` if nothing can be listed.
    """
    deleted = 0
    gone: dict[VpaKey, bool] = {}
    async for page in reads.pages(
        connection, CHECKPOINTS, kind=CheckpointView, namespace=selection.vpa_object_namespace
    ):
        for checkpoint in page.items:
            namespace = checkpoint.metadata.namespace
            key = (namespace, checkpoint.spec.vpa_object_name)
            if not selection.handles(namespace):
                continue
            if key in existing:
                needless = rules.collect_old_checkpoints and _expired(autoscalers, checkpoint, now - expiry)
            else:
                if key not in gone:
                    gone[key] = await _is_gone(connection, key)
                needless = gone[key]
            if needless:
                deleted += await _delete(connection, checkpoint)
    return deleted


def _expired(autoscalers: Autoscalers, checkpoint: CheckpointView, oldest: int) -> bool:
    """Whether the container of one of our VPAs is gone, and its history too old to be of use."""
    served = autoscalers.served.get((checkpoint.metadata.namespace, checkpoint.spec.vpa_object_name))
    if served is None or served.fetching:
        return False
    present = autoscalers.present(served)
    end = newest(checkpoint)
    if present is None or checkpoint.spec.container_name in present or end is None:
        return False
    return end < oldest


async def _is_gone(connection: Connection, key: VpaKey) -> bool:
    try:
        await reads.get(connection, VERTICAL_AUTOSCALERS, key[1], kind=PartialObject, namespace=key[0])
    except NotFound:
        return True
    return False


async def _delete(connection: Connection, checkpoint: CheckpointView) -> int:
    metadata = checkpoint.metadata
    try:
        await writes.delete(
            connection,
            CHECKPOINTS,
            metadata.name,
            namespace=metadata.namespace,
            uid=metadata.uid,
            resource_version=metadata.resource_version,
        )
    except (NotFound, Conflict):
        return 0
    except ClusterError as error:
        log.warning("Checkpoint %s/%s cannot be deleted: %s", metadata.namespace, metadata.name, error)
        return 0
    log.info(
        "Deleted a checkpoint that nobody needs",
        extra={"checkpoint": f"{metadata.namespace}/{metadata.name}"},
    )
    return 1
