"""Objects of a live cluster, read once: the same as files of them would give. Nothing is written there."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from typing import Any

from vpa.cli.objects import InputError, Objects, add
from vpa.cluster.connection import Connection
from vpa.cluster.errors import ClusterError, Forbidden, NotFound
from vpa.cluster.reads import pages
from vpa.cluster.resources import CHECKPOINTS, PODS, VERTICAL_AUTOSCALERS, WELL_KNOWN, Resource

OPTIONAL = (VERTICAL_AUTOSCALERS, CHECKPOINTS)
"""Not every cluster has them, nor may everybody read them."""


async def read_cluster(
    *, kubeconfig: str = "", context: str = "", namespaces: Collection[str] = ()
) -> Objects:
    """VPAs, checkpoints, workloads and pods of *namespaces*, or of all.

    Raises `InputError` when they cannot be had.
    """
    try:
        async with await Connection.open(kubeconfig=kubeconfig, context=context) as connection:
            resources = (*OPTIONAL, *WELL_KNOWN.values(), PODS)
            lists = [_list(connection, one, name) for one in resources for name in namespaces or ("",)]
            found = await asyncio.gather(*lists)
    except ClusterError as error:
        raise InputError(f"the cluster cannot be read: {error}") from None
    objects = Objects()
    for items in found:
        for item in items:
            add(objects, item, "the cluster")
    return objects


async def _list(connection: Connection, resource: Resource, namespace: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    named = {"apiVersion": resource.api_version, "kind": resource.kind}
    try:
        async for page in pages(connection, resource, kind=dict, namespace=namespace):
            found += [{**named, **item} for item in page.items]
    except (NotFound, Forbidden):
        if resource not in OPTIONAL:
            raise
    return found
