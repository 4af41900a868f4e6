"""Writing: only what is ours, computed from a state that we know, repeated when that state has changed.

A patch that carries a ``resourceVersion`` is refused with ``Conflict`` when the object has changed since;
:func:`update` then reads it again and asks the caller's pure function for a new patch.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TypeVar

from vpa.cluster.codec import encode
from vpa.cluster.connection import REQUEST_TIMEOUT, Connection
from vpa.cluster.errors import Conflict, Unreachable
from vpa.cluster.pacing import Backoff
from vpa.cluster.reads import get, read
from vpa.cluster.reflectors import Named
from vpa.cluster.resources import PODS, Resource
from vpa.objects.meta import PartialObject

T = TypeVar("T")
N = TypeVar("N", bound=Named)

Style = Literal["merge", "strategic", "json", "apply"]

_CONTENT_TYPES: Mapping[Style, str] = {
    "merge": "application/merge-patch+json",
    "strategic": "application/strategic-merge-patch+json",
    "json": "application/json-patch+json",
    "apply": "application/apply-patch+yaml",
}
TRIES = 20
"""How often :func:`update` computes its patch before it gives the conflict to the caller."""


async def patch(
    connection: Connection,
    resource: Resource,
    name: str,
    body: Mapping[str, Any] | Sequence[Mapping[str, Any]],
    *,
    kind: type[T],
    namespace: str = "",
    subresource: str = "",
    style: Style = "merge",
    resource_version: str = "",
    field_manager: str = "",
    timeout: float = REQUEST_TIMEOUT,  # noqa: ASYNC109
) -> T:
    """PATCH and return the object as it is now.

    *body*: operations for "json", else the part of the object to change. *resource_version*: refuse with
    ``Conflict`` if the object is of another version. *field_manager*: who applies, needed by "apply" (which
    takes over fields that others own).
    """
    path = resource.path(namespace, name, subresource)
    query = {"fieldManager": field_manager} if field_manager else {}
    if style == "apply":
        query["force"] = "true"
    answer = await connection.request(
        "PATCH",
        path,
        query=query,
        body=encode(_with_version(body, resource_version)),
        content_type=_CONTENT_TYPES[style],
        timeout=timeout,
    )
    return read(answer, kind, method="PATCH", path=path)


def _with_version(body: Mapping[str, Any] | Sequence[Mapping[str, Any]], version: str) -> Any:
    if not version:
        return body
    if isinstance(body, Mapping):
        return {**body, "metadata": {**body.get("metadata", {}), "resourceVersion": version}}
    # "test" would fail with 422 like any other operation; a replaced version is checked like that of a PUT
    return [{"op": "replace", "path": "/metadata/resourceVersion", "value": version}, *body]


async def update(
    connection: Connection,
    resource: Resource,
    current: N,
    change: Callable[[N], Mapping[str, Any] | None],
    *,
    kind: type[N],
    subresource: str = "",
) -> N:
    """Merge patches of *change* until one is accepted; returns the object as it is now.

    *change* gets the object as it is and returns what to change of it, None for nothing; it is asked again
    with a fresh copy after each conflict, starting from *current* (perhaps from a cache, perhaps old).
    Raises ``NotFound`` if the object is gone, ``Conflict`` if it was replaced by another of its name or
    changes all the time.
    """
    backoff = Backoff(base=0.005, cap=0.2)  # short: who waits long loses again to a writer that does not
    uid = current.metadata.uid
    name, namespace = current.metadata.name, current.metadata.namespace
    for attempt in range(TRIES):
        body = change(current)
        if body is None:
            return current
        try:
            return await patch(
                connection,
                resource,
                name,
                body,
                kind=kind,
                namespace=namespace,
                subresource=subresource,
                resource_version=current.metadata.resource_version,
            )
        except (Conflict, Unreachable) as error:
            # Unreachable: perhaps written, perhaps not; a fresh copy tells.
            if attempt == TRIES - 1 or (isinstance(error, Unreachable) and attempt > 0):
                raise
            if attempt > 0:
                await asyncio.sleep(backoff.delay())
            current = await get(connection, resource, name, kind=kind, namespace=namespace)
            if current.metadata.uid != uid:
                raise Conflict(
                    f"{resource} {namespace}/{name} was deleted and made anew", method="PATCH", code=409
                ) from error
    raise AssertionError("unreachable: the last attempt returns or raises")


async def create(
    connection: Connection,
    resource: Resource,
    body: Any,
    *,
    kind: type[T],
    namespace: str = "",
    urgent: bool = False,
    timeout: float = REQUEST_TIMEOUT,  # noqa: ASYNC109
) -> T:
    """POST an object; ``AlreadyExists`` if its name is taken."""
    path = resource.path(namespace)
    answer = await connection.request("POST", path, body=encode(body), urgent=urgent, timeout=timeout)
    return read(answer, kind, method="POST", path=path)


async def replace(
    connection: Connection,
    resource: Resource,
    name: str,
    body: Any,
    *,
    kind: type[T],
    namespace: str = "",
    urgent: bool = False,
    retry: bool = True,
    timeout: float = REQUEST_TIMEOUT,  # noqa: ASYNC109
) -> T:
    """PUT a whole object that was read as plain data, so that nothing in it is lost; ``Conflict`` if it
    changed.
    """
    path = resource.path(namespace, name)
    answer = await connection.request(
        "PUT", path, body=encode(body), urgent=urgent, retry=retry, timeout=timeout
    )
    return read(answer, kind, method="PUT", path=path)


async def delete(
    connection: Connection,
    resource: Resource,
    name: str,
    *,
    namespace: str = "",
    uid: str = "",
    resource_version: str = "",
) -> None:
    """DELETE; ``NotFound`` if it is gone, ``Conflict`` if it is not of *uid* or *resource_version*."""
    preconditions = _preconditions(uid, resource_version)
    options = {"apiVersion": "v1", "kind": "DeleteOptions"} | (
        {"preconditions": preconditions} if preconditions else {}
    )
    await connection.request("DELETE", resource.path(namespace, name), body=encode(options))


async def evict(connection: Connection, *, namespace: str, name: str, uid: str) -> None:
    """Ask for the eviction of the very pod *uid*; returns when its deletion has begun.

    Never repeated here. ``TooManyRequests``: with cause "DisruptionBudget" its budget allows none now
    (without
    *retry_after*: choose another pod, or come back later), otherwise the server's flow control.
    ``NotFound``: gone. ``Conflict``: another pod has this name. ``ServerError`` 500: several budgets select
    the pod.
    """
    body = {
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": {"name": name, "namespace": namespace},
        "deleteOptions": {"preconditions": _preconditions(uid, "")},
    }
    await connection.request("POST", PODS.path(namespace, name, "eviction"), body=encode(body), retry=False)


async def resize(
    connection: Connection,
    *,
    namespace: str,
    name: str,
    body: Mapping[str, Any] | Sequence[Mapping[str, Any]],
) -> PartialObject:
    """Change the resources of a running pod: *body* is a JSON patch (a sequence) or a strategic merge patch.

    Returns the pod's metadata as they are now.
    ``Forbidden`` with cause "NodeCapacity" or "UnsupportedPlatform": can never work on this node; without:
    not permitted. ``Invalid``: against the rules (QoS class, removed requests).
    """
    style: Style = "strategic" if isinstance(body, Mapping) else "json"
    return await patch(
        connection,
        PODS,
        name,
        body,
        kind=PartialObject,
        namespace=namespace,
        subresource="resize",
        style=style,
    )


def _preconditions(uid: str, resource_version: str) -> dict[str, str]:
    found = {"uid": uid, "resourceVersion": resource_version}
    return {key: value for key, value in found.items() if value}
