"""What all Kubernetes objects share: metadata, owners, label selectors, conditions, and the codec."""

from __future__ import annotations

from datetime import datetime
from typing import Any, TypeVar

import msgspec

from vpa.quantities import Quantity

T = TypeVar("T")

ResourceList = dict[str, Quantity]
"""Resource name → quantity, e.g. ``{"cpu": Quantity("250m")}``."""


class Obj(msgspec.Struct, rename="camel", omit_defaults=True, kw_only=True, frozen=True, gc=False):
    """Base of all structs: camelCase on the wire, unknown fields dropped, defaults left out when written."""


class OwnerReference(Obj, frozen=True):
    api_version: str = ""
    kind: str = ""
    name: str = ""
    uid: str = ""
    controller: bool | None = None


class ObjectMeta(Obj, frozen=True):
    name: str = ""
    namespace: str = ""
    generate_name: str = ""
    uid: str = ""
    resource_version: str = ""
    generation: int = 0
    creation_timestamp: datetime | None = None
    deletion_timestamp: datetime | None = None
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None
    owner_references: list[OwnerReference] | None = None


class LabelSelectorRequirement(Obj, frozen=True):
    key: str = ""
    operator: str = ""
    values: list[str] | None = None


class LabelSelector(Obj, frozen=True):
    match_labels: dict[str, str] | None = None
    match_expressions: list[LabelSelectorRequirement] | None = None


class PartialObject(Obj, frozen=True):
    """Any object of which only the metadata matters."""

    api_version: str = ""
    kind: str = ""
    metadata: ObjectMeta = ObjectMeta()


def _decode_quantity(kind: type, value: Any) -> Any:
    if kind is Quantity:
        return Quantity.from_json(value)
    raise TypeError(f"no decoding for {kind}")


def _encode_quantity(value: Any) -> Any:
    if isinstance(value, Quantity):
        return str(value)
    raise TypeError(f"no encoding for {type(value)}")


def decoder(kind: type[T]) -> msgspec.json.Decoder[T]:
    """A reusable JSON decoder for *kind*; it raises ``msgspec.ValidationError`` naming the field."""
    return msgspec.json.Decoder(kind, dec_hook=_decode_quantity)


def convert(value: Any, kind: type[T]) -> T:
    """Plain Python data (from YAML or JSON) → struct."""
    return msgspec.convert(value, kind, dec_hook=_decode_quantity)


def to_builtins(value: Any) -> Any:
    """Struct → plain data as the API server would print it."""
    return msgspec.to_builtins(value, enc_hook=_encode_quantity)


encoder = msgspec.json.Encoder(enc_hook=_encode_quantity)
