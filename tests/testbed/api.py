"""A small blocking client for setting up tests: JSON in, JSON out."""

from __future__ import annotations

import contextlib
import http.client
import json
import ssl
import threading
import urllib.parse
from dataclasses import dataclass
from typing import Any

Json = dict[str, Any]

PATCHES = {
    "merge": "application/merge-patch+json",
    "strategic": "application/strategic-merge-patch+json",
    "json": "application/json-patch+json",
    "apply": "application/apply-patch+yaml",
}


class ApiError(Exception):
    """The API server's refusal: HTTP *status*, its machine-readable *reason*, its message."""

    def __init__(self, status: int, body: bytes, request: str) -> None:
        try:
            self.body: Json = json.loads(body)
        except ValueError:
            self.body = {"message": body.decode(errors="replace")}
        self.status = status
        self.reason = str(self.body.get("reason", ""))
        super().__init__(f"{request}: {status} {self.reason} {self.body.get('message', '')}")


class ApiNotFoundError(ApiError):
    """404: no such object, or no such path."""


@dataclass(frozen=True)
class _Resource:
    prefix: str
    """``/api/v1`` or ``/apis/GROUP/VERSION``."""
    plural: str
    api_version: str
    namespaced: bool


class Api:
    """Requests to one API server; may be used from several threads (each has its own connection)."""

    def __init__(self, server: str, context: ssl.SSLContext, *, token: str | None = None) -> None:
        self._address = urllib.parse.urlsplit(server).netloc
        self.context = context
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._local = threading.local()
        self._connections: list[http.client.HTTPSConnection] = []
        self._resources: dict[str, _Resource] = {}

    def close(self) -> None:
        """Close the connections of all threads."""
        for connection in self._connections:
            connection.close()

    # ---- objects

    def get(self, kind: str, name: str, namespace: str | None = None) -> Json:
        """One object.

        *kind* is a Kind in all methods, with its group (``Widget.example.org``) where several groups have one
        of that name; without it built-in ones come first. The preferred version is used.
        """
        return self.request("GET", self.path(kind, name, namespace))

    def list(self, kind: str, namespace: str | None = None, **parameters: str) -> list[Json]:
        """The objects of a namespace, or of all; *parameters* are ``labelSelector``, ``fieldSelector`` …"""
        query = f"?{urllib.parse.urlencode(parameters)}" if parameters else ""
        items: list[Json] = self.request("GET", self.path(kind, None, namespace) + query)["items"]
        return items

    def create(self, body: Json, namespace: str | None = None) -> Json:
        """Create an object; its own namespace wins over *namespace*."""
        namespace = body.get("metadata", {}).get("namespace") or namespace
        return self.request("POST", self.path(_kind_of(body), None, namespace), body)

    def patch(
        self,
        kind: str,
        name: str,
        namespace: str | None = None,
        *,
        body: Any,
        subresource: str = "",
        how: str = "merge",
    ) -> Json:
        """Patch an object or its *subresource*; *how* is a key of `PATCHES`."""
        path = self.path(kind, name, namespace) + (f"/{subresource}" if subresource else "")
        if how == "apply":
            path += "?fieldManager=testbed&force=true"
        return self.request("PATCH", path, body, content_type=PATCHES[how])

    def apply(self, body: Json, namespace: str | None = None) -> Json:
        """Create or change an object by server-side apply."""
        metadata = body["metadata"]
        namespace = metadata.get("namespace") or namespace
        return self.patch(_kind_of(body), metadata["name"], namespace, body=body, how="apply")

    def delete(self, kind: str, name: str | None, namespace: str | None = None) -> None:
        """Delete an object, or all of them for *name* None; one that is not there is fine."""
        with contextlib.suppress(ApiNotFoundError):
            self.request("DELETE", self.path(kind, name, namespace))

    def path(self, kind: str, name: str | None = None, namespace: str | None = None) -> str:
        """The path of an object or a collection. Raises `LookupError` for a kind that is not served."""
        resource = self._resource(kind)
        scope = f"/namespaces/{namespace}" if namespace and resource.namespaced else ""
        return f"{resource.prefix}{scope}/{resource.plural}" + (f"/{name}" if name else "")

    # ---- requests

    def request(
        self, method: str, path: str, body: Any = None, *, content_type: str = "application/json"
    ) -> Json:
        """Any request; the decoded answer. Raises `ApiError`, or `OSError` when nobody answers."""
        text = self.raw(method, path, body, headers={"Content-Type": content_type})
        answer: Json = json.loads(text) if text else {}
        return answer

    def raw(self, method: str, path: str, body: Any = None, *, headers: dict[str, str]) -> bytes:
        """As `request`, but the undecoded answer."""
        payload = json.dumps(body).encode() if body is not None else None
        reused = getattr(self._local, "connection", None) is not None
        try:
            status, answer = self._send(method, path, payload, self._headers | headers)
        except (http.client.RemoteDisconnected, ConnectionResetError, BrokenPipeError, ssl.SSLEOFError):
            if not reused:
                raise
            # The server had closed the idle connection before it read anything.
            status, answer = self._send(method, path, payload, self._headers | headers)
        if status == 404:
            raise ApiNotFoundError(status, answer, f"{method} {path}")
        if status >= 400:
            raise ApiError(status, answer, f"{method} {path}")
        return answer

    def _send(
        self, method: str, path: str, payload: bytes | None, headers: dict[str, str]
    ) -> tuple[int, bytes]:
        connection: http.client.HTTPSConnection | None = getattr(self._local, "connection", None)
        if connection is None:
            connection = http.client.HTTPSConnection(self._address, timeout=30, context=self.context)
            self._local.connection = connection
            self._connections.append(connection)
        try:
            connection.request(method, path, payload, headers)
            answer = connection.getresponse()
            return answer.status, answer.read()
        except (http.client.HTTPException, OSError):
            self._local.connection = None
            connection.close()
            raise

    # ---- discovery

    def _resource(self, kind: str) -> _Resource:
        if kind not in self._resources:
            self._discover()
        try:
            return self._resources[kind]
        except KeyError:
            raise LookupError(f"the API server serves no kind {kind!r}") from None

    def _discover(self) -> None:
        accept = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
        found: dict[str, _Resource] = {}
        for root in ("/api", "/apis"):
            answer = json.loads(self.raw("GET", root, headers={"Accept": accept}))
            for group in answer["items"]:
                group_name = group["metadata"].get("name", "")
                for version in group["versions"]:
                    api_version = f"{group_name}/{version['version']}" if group_name else version["version"]
                    for resource in version["resources"]:
                        kind = resource["responseKind"]["kind"]
                        served = _Resource(
                            f"{root}/{api_version}",
                            resource["resource"],
                            api_version,
                            resource["scope"] == "Namespaced",
                        )
                        found.setdefault(kind, served)
                        found.setdefault(f"{kind}.{group_name}", served)
        self._resources = found


def _kind_of(body: Json) -> str:
    """The kind of an object, with its group unless that is the core's."""
    group, slash, _ = body.get("apiVersion", "").rpartition("/")
    return f"{body['kind']}.{group}" if slash else str(body["kind"])
