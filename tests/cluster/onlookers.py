"""Who looks on while pods come and go."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

from tests.cluster.clients import connect
from tests.cluster.updating import Scene
from vpa.cluster.reflectors import Reflector, running
from vpa.cluster.resources import PODS
from vpa.objects.pods import Pod
from vpa.updates.budgets import is_unready


class Onlooker:
    """Counts, in the order of the server's own events, how many pods of each app are up.

    On a busy machine a played node may be late with its heartbeat; its pods are then down by themselves.
    """

    def __init__(self) -> None:
        self.left: dict[str, int] = {}
        """Uid of a pod that was up and began to leave → how many of its app were up just before."""
        self._up: dict[str, set[str]] = {}

    def see(self, old: Pod | None, new: Pod | None) -> None:
        pod = new or old
        assert pod is not None
        uid = pod.metadata.uid
        up = self._up.setdefault((pod.metadata.labels or {}).get("app", ""), set())
        leaving = new is None or new.metadata.deletion_timestamp is not None
        if leaving and uid in up:
            self.left[uid] = len(up)
        if not leaving and pod.status.phase == "Running" and not is_unready(pod):
            up.add(uid)
        else:
            up.discard(uid)


@contextlib.asynccontextmanager
async def onlooker(scene: Scene) -> AsyncIterator[Onlooker]:
    looking = Onlooker()
    async with await connect(scene.cluster) as connection:
        pods: Reflector[Pod, Pod] = Reflector(
            connection, PODS, kind=Pod, project=lambda pod: pod, namespace=scene.namespace
        )
        async with running(pods, timeout=20):
            pods.subscribe(looking.see)
            yield looking
