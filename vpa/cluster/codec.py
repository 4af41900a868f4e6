"""Bytes of the API server ↔ structs: one reusable decoder per kind."""

from __future__ import annotations

from collections.abc import Hashable
from functools import cache
from typing import Any, TypeVar, cast

import msgspec

from vpa.objects import meta

T = TypeVar("T")


@cache
def decoder(kind: Hashable) -> msgspec.json.Decoder[Any]:
    """The decoder of *kind*, a struct of ``vpa.objects`` or plain data such as ``dict[str, Any]``."""
    return meta.decoder(cast(Any, kind))


def decode(body: bytes | msgspec.Raw, kind: type[T]) -> T:
    """*body* as *kind*; raises ``msgspec.DecodeError`` that names the field."""
    decoded: T = decoder(cast(Hashable, kind)).decode(body)
    return decoded


def encode(value: Any) -> bytes:
    """Structs or plain data → JSON."""
    return meta.encoder.encode(value)
