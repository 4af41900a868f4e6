"""Single objects and paged lists, bytes straight into structs."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Generic, TypeVar

import msgspec

from vpa.cluster.codec import decode
from vpa.cluster.connection import REQUEST_TIMEOUT, Connection
from vpa.cluster.errors import Unreadable
from vpa.cluster.resources import Resource
from vpa.objects.meta import PartialObject

T = TypeVar("T")

PAGE = 500
"""Objects per request of a list: decoding a page stops the event loop for some 7 ms."""
LIST_TIMEOUT = 60.0

METADATA = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
METADATA_LIST = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
JSON = "application/json"


class _ListMeta(msgspec.Struct, rename={"resource_version": "resourceVersion", "next_page": "continue"}):
    resource_version: str = ""
    next_page: str = ""


class _Typed(msgspec.Struct, Generic[T]):
    metadata: _ListMeta = msgspec.field(default_factory=_ListMeta)
    items: list[T] | None = None


class _Untyped(msgspec.Struct):
    metadata: _ListMeta = msgspec.field(default_factory=_ListMeta)
    items: list[msgspec.Raw] | None = None


@dataclass(frozen=True, slots=True)
class Poison:
    """An object that cannot be read as what it should be: who it is, as far as that can be read, and why."""

    namespace: str
    name: str
    version: str
    problem: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}" if self.namespace else self.name or "(unnamed)"


@dataclass(frozen=True, slots=True)
class Page(Generic[T]):
    """One page of a list: its objects, those that could not be read, and the version of the whole list."""

    items: list[T]
    poison: list[Poison]
    version: str


def poisoned(raw: bytes | msgspec.Raw, error: Exception) -> Poison:
    """Name the object of *raw*, which failed to decode with *error*."""
    problem = str(error) or type(error).__name__
    try:
        metadata = decode(raw, PartialObject).metadata
    except msgspec.DecodeError:
        return Poison("", "", "", problem)
    return Poison(metadata.namespace, metadata.name, metadata.resource_version, problem)


def decode_page(body: bytes, kind: type[T]) -> tuple[Page[T], str]:
    """A list's body → its page and the token of the next one ("" at the end); ``DecodeError`` if it is no
    list.
    """
    try:
        page = decode(body, _Typed[kind])  # type: ignore[valid-type]
        return Page(page.items or [], [], page.metadata.resource_version), page.metadata.next_page
    except msgspec.ValidationError:
        pass
    untyped = decode(body, _Untyped)  # slower by a third, but one bad object does not spoil the rest
    items: list[T] = []
    poison: list[Poison] = []
    for raw in untyped.items or ():
        try:
            items.append(decode(raw, kind))
        except msgspec.DecodeError as error:
            poison.append(poisoned(raw, error))
    return Page(items, poison, untyped.metadata.resource_version), untyped.metadata.next_page


def selection(label_selector: str, field_selector: str) -> dict[str, str | int]:
    """Query parameters of a selection."""
    query: dict[str, str | int] = {}
    if label_selector:
        query["labelSelector"] = label_selector
    if field_selector:
        query["fieldSelector"] = field_selector
    return query


async def pages(
    connection: Connection,
    resource: Resource,
    *,
    kind: type[T],
    namespace: str = "",
    label_selector: str = "",
    field_selector: str = "",
    metadata_only: bool = False,
    limit: int = PAGE,
    retry: bool = True,
) -> AsyncGenerator[Page[T], None]:
    """The pages of a list, each decoded when it comes. All pages are of one version of the store.

    Raises ``Gone`` if the list takes longer than the server keeps that version (minutes); start again then.
    """
    query = selection(label_selector, field_selector) | {"limit": limit}
    while True:
        body = await connection.request(
            "GET",
            resource.path(namespace),
            query=query,
            accept=METADATA_LIST if metadata_only else JSON,
            timeout=LIST_TIMEOUT,
            retry=retry,
        )
        try:
            page, next_page = decode_page(body, kind)
        except msgspec.DecodeError as error:
            raise Unreadable(str(error), method="GET", path=resource.path(namespace)) from error
        del body
        yield page
        if not next_page:
            return
        query["continue"] = next_page


async def list_all(
    connection: Connection,
    resource: Resource,
    *,
    kind: type[T],
    namespace: str = "",
    label_selector: str = "",
    field_selector: str = "",
) -> list[T]:
    """A whole list at once, for small ones; objects that cannot be read are left out."""
    found: list[T] = []
    async for page in pages(
        connection,
        resource,
        kind=kind,
        namespace=namespace,
        label_selector=label_selector,
        field_selector=field_selector,
    ):
        found += page.items
    return found


async def get(
    connection: Connection,
    resource: Resource,
    name: str,
    *,
    kind: type[T],
    namespace: str = "",
    subresource: str = "",
    metadata_only: bool = False,
    timeout: float = REQUEST_TIMEOUT,  # noqa: ASYNC109 - handed to the connection, which counts repeats
) -> T:
    """One object; ``NotFound`` if it is not there. *kind* ``dict`` gives plain data."""
    path = resource.path(namespace, name, subresource)
    body = await connection.request("GET", path, accept=METADATA if metadata_only else JSON, timeout=timeout)
    return read(body, kind, method="GET", path=path)


def read(body: bytes, kind: type[T], *, method: str, path: str) -> T:
    """The answer of *method* *path* as *kind*; ``Unreadable`` if it is not one."""
    try:
        return decode(body, kind)
    except msgspec.DecodeError as error:
        raise Unreadable(str(error), method=method, path=path) from error
