"""Labels of nodes that the webhook's copy does not have yet."""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest

from admission.scopes import NodesByName
from vpa.cluster.connection import Connection
from vpa.cluster.errors import Forbidden


class Node(Connection):
    """An API server with one node, or one that tells nobody."""

    def __init__(self, *, tells: bool = True) -> None:
        self.asked: list[str] = []
        self._tells = tells

    async def request(self, method: str, path: str, **_: Any) -> bytes:
        self.asked.append(f"{method} {path}")
        if not self._tells:
            raise Forbidden("you may not", method=method, code=403)
        return json.dumps({"metadata": {"name": "fresh", "labels": {"pool": "big"}}}).encode()


async def test_a_node_that_is_too_new_for_the_copy_is_asked_for() -> None:
    server = Node()
    assert await NodesByName(server).labels_of("fresh", patience=1.0) == {"fresh": {"pool": "big"}}
    assert server.asked == ["GET /api/v1/nodes/fresh"]


async def test_a_node_that_cannot_be_asked_for_has_no_labels_and_that_is_said(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.WARNING):
        assert await NodesByName(Node(tells=False)).labels_of("fresh", patience=1.0) == {}
    assert "The labels of node fresh are not known" in caplog.text
