"""What the recommender may not read holds up nothing."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections.abc import AsyncGenerator, Mapping
from typing import Any

import aiohttp
import pytest

from recommender.mirrors import SYNC_TIMEOUT, Mirrors
from vpa.cluster.connection import Connection
from vpa.cluster.errors import Forbidden
from vpa.rules import preset

DENIED = ("cronjobs", "nodes")


class Partly(Connection):
    """An API server with nothing in it, where two kinds may not be read."""

    def __init__(self) -> None:
        """No connection is needed."""

    async def request(self, method: str, path: str, **_: Any) -> bytes:
        if path.endswith(DENIED):
            raise Forbidden("you may not list them", method=method, path=path, code=403)
        return json.dumps({"metadata": {"resourceVersion": "1"}, "items": []}).encode()

    @contextlib.asynccontextmanager
    async def stream(
        self, path: str, *, query: Mapping[str, str | int], accept: str = "", inactivity: float
    ) -> AsyncGenerator[aiohttp.StreamReader, None]:
        await asyncio.Event().wait()  # nothing ever comes
        yield aiohttp.EMPTY_PAYLOAD


async def test_a_kind_that_may_not_be_read_is_not_waited_for(caplog: pytest.LogCaptureFixture) -> None:
    mirrors = Mirrors(Partly(), namespace="", rules=preset("safe"))
    with caplog.at_level(logging.WARNING, logger="recommender.mirrors"):
        async with asyncio.timeout(SYNC_TIMEOUT / 2), mirrors.running():
            await mirrors.need_nodes()
            assert mirrors.nodes_known, "there is nothing to wait for"
            assert mirrors.workloads["Deployment"].synced
    assert "No copy of cronjobs.batch is kept" in caplog.text
    assert "scopes see no difference" in caplog.text
