"""What can go wrong at the API server, named by meaning instead of by number.

Callers decide by class (``except Conflict``), never by status code or text. Each error carries what the
server's ``Status`` said (reason, causes, Retry-After) and which request it answers; the transport's own
exception is chained as ``__cause__``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import msgspec


class Cause(NamedTuple):
    """One entry of ``status.details.causes``: a machine-readable *reason*, a *message*, the *field* it is
    about.
    """

    reason: str
    message: str
    field: str


class ClusterError(Exception):
    """Base of everything that this package raises about the cluster."""


class ConfigurationError(ClusterError):
    """The connection cannot be set up: no kubeconfig, no token file, an exec plugin that fails."""


class CacheNotSyncedError(ClusterError):
    """A reflector has not seen a full list in the time allowed; the reason is chained."""


class RequestError(ClusterError):
    """A request that did not succeed. *method* and *path* tell which."""

    def __init__(self, message: str, *, method: str = "", path: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.method = method
        self.path = path

    def __str__(self) -> str:
        return f"{self.method} {self.path}: {self.message}" if self.method else self.message


class Unreachable(RequestError):
    """No answer: refused, reset, timed out, TLS failure. *sent* is False if the server cannot have seen the
    request.
    """

    def __init__(self, message: str, *, method: str = "", path: str = "", sent: bool = True) -> None:
        super().__init__(message, method=method, path=path)
        self.sent = sent


class Unreadable(RequestError):
    """An answer of 2xx that is not what was asked for: half a body, a proxy's page, an object of another
    shape.
    """


class StatusError(RequestError):
    """The server answered with a failure.

    *code*: HTTP status. *reason*: the Kubernetes reason ("NotFound"), "" if the body was no Status.
    *causes*: ``details.causes``. *retry_after*: seconds to wait, None if the server did not say.
    """

    def __init__(
        self,
        message: str,
        *,
        method: str = "",
        path: str = "",
        code: int = 0,
        reason: str = "",
        causes: tuple[Cause, ...] = (),
        retry_after: float | None = None,
    ) -> None:
        super().__init__(message, method=method, path=path)
        self.code = code
        self.reason = reason
        self.causes = causes
        self.retry_after = retry_after

    def has_cause(self, reason: str) -> bool:
        """Is *reason* (e.g. "DisruptionBudget", "NodeCapacity") among the causes?"""
        return any(cause.reason == reason for cause in self.causes)


class BadRequest(StatusError):
    """400: the request makes no sense to the server."""


class Unauthorized(StatusError):
    """401, after the credentials were read afresh."""


class Forbidden(StatusError):
    """403: RBAC, or an admission plugin that refuses (see *causes*)."""


class NotFound(StatusError):
    """404: no such object, or no such resource or subresource on this server."""


class Conflict(StatusError):
    """409: the object changed since it was read, or a precondition does not hold."""


class AlreadyExists(Conflict):
    """409 on create: an object of this name is there."""


class Gone(StatusError):
    """410: the resource version or the continue token has expired; list afresh."""


class Invalid(StatusError):
    """422: the object does not pass validation, or a JSON patch does not apply."""


class TooManyRequests(StatusError):
    """429: flow control (obey *retry_after*), or, for an eviction, a disruption budget (cause
    "DisruptionBudget").
    """


class ServerError(StatusError):
    """5xx."""


_BY_CODE: Mapping[int, type[StatusError]] = {
    400: BadRequest,
    401: Unauthorized,
    403: Forbidden,
    404: NotFound,
    409: Conflict,
    410: Gone,
    422: Invalid,
    429: TooManyRequests,
}


class _StatusCause(msgspec.Struct):
    reason: str = ""
    message: str = ""
    field: str = ""


class _StatusDetails(msgspec.Struct, rename="camel"):
    causes: list[_StatusCause] | None = None
    retry_after_seconds: int = 0


class _Status(msgspec.Struct):
    kind: str = ""
    code: int = 0
    reason: str = ""
    message: str = ""
    details: _StatusDetails | None = None


_decode_status = msgspec.json.Decoder(_Status).decode


def from_response(
    *, code: int, body: bytes, retry_after: str | None = None, method: str = "", path: str = ""
) -> StatusError:
    """The error for a failed answer; *body* may be a Status, another JSON, HTML or nothing.

    *code* 0 takes the code of the Status itself (an ERROR event of a watch comes in an answer of 200).
    """
    try:
        status = _decode_status(body)
    except msgspec.DecodeError:
        status = _Status()
    if status.kind != "Status":  # the text of a proxy or load balancer, shortened to one readable line
        text = " ".join(body[:300].decode("utf-8", "replace").split())
        status = _Status(message=f"HTTP {code}" + (f": {text}" if text else ""))
    code = code or status.code
    details = status.details or _StatusDetails()
    wait = _seconds(retry_after)
    if wait is None and details.retry_after_seconds > 0:
        wait = float(details.retry_after_seconds)
    kind = ServerError if code >= 500 else _BY_CODE.get(code, StatusError)
    if kind is Conflict and status.reason == "AlreadyExists":
        kind = AlreadyExists
    return kind(
        status.message or f"HTTP {code}",
        method=method,
        path=path,
        code=code,
        reason=status.reason,
        causes=tuple(Cause(c.reason, c.message, c.field) for c in details.causes or ()),
        retry_after=wait,
    )


def _seconds(header: str | None) -> float | None:
    try:
        return max(0.0, float(header)) if header else None
    except ValueError:  # an HTTP date: no API server sends one
        return None
