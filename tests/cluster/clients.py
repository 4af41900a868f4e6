"""Connections, and waiting, for the tests of ``vpa.cluster``."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

from tests.testbed.accounts import ServiceAccount
from tests.testbed.cluster import Cluster
from vpa.cluster.connection import Connection
from vpa.cluster.reads import list_all
from vpa.cluster.reflectors import Pace, Reflector
from vpa.cluster.resources import CONFIG_MAPS, Resource
from vpa.cluster.writes import create, patch
from vpa.objects.meta import PartialObject

QUICK = Pace(resume=(0.05, 0.4), relist=(0.2, 1.0), settled=1.0, inactivity=70.0)
"""The waiting times of a reflector, in the same proportions, for tests."""


def operator(cluster: Cluster) -> ServiceAccount:
    """An account that may do everything: through a fault proxy, certificates cannot be used."""
    account = cluster.service_account("kube-system", "operator")
    account.grant([{"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}])
    return account


async def connect(cluster: Cluster, server: str = "", **options: Any) -> Connection:
    """A connection as :func:`operator`, straight or to *server* (a fault proxy's url)."""
    account = await asyncio.to_thread(operator, cluster)
    kubeconfig = account.kubeconfig_to(server) if server else account.kubeconfig
    return await Connection.open(kubeconfig=str(kubeconfig), **({"qps": 0} | options))


def config_map(name: str, **data: str) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data}


async def make(connection: Connection, namespace: str, name: str, **data: str) -> PartialObject:
    """Create a ConfigMap."""
    body = config_map(name, **data)
    return await create(connection, CONFIG_MAPS, body, kind=PartialObject, namespace=namespace)


async def change(connection: Connection, namespace: str, name: str, **data: str) -> PartialObject:
    """Change a ConfigMap."""
    return await patch(connection, CONFIG_MAPS, name, {"data": data}, kind=PartialObject, namespace=namespace)


def versions(connection: Connection, namespace: str, **options: Any) -> Reflector[Any, str]:
    """A copy of the ConfigMaps of *namespace*: their versions by name."""
    usual: dict[str, Any] = {"pace": QUICK, "field_selector": "metadata.name!=kube-root-ca.crt"}
    return Reflector(
        connection,
        CONFIG_MAPS,
        kind=PartialObject,
        project=lambda found: found.metadata.resource_version,
        namespace=namespace,
        **(usual | options),
    )


async def listed(
    connection: Connection, namespace: str, resource: Resource = CONFIG_MAPS
) -> dict[tuple[str, str], str]:
    """What a fresh list says: versions by key, as :func:`versions` keeps them."""
    found = await list_all(
        connection,
        resource,
        kind=PartialObject,
        namespace=namespace,
        field_selector="metadata.name!=kube-root-ca.crt",
    )
    return {(item.metadata.namespace, item.metadata.name): item.metadata.resource_version for item in found}


async def until(condition: Callable[[], object], what: str, *, seconds: float = 20.0) -> None:
    """Wait until *condition* holds."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds:g} s: {what}"
        await asyncio.sleep(0.02)
