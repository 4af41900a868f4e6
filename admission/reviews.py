"""AdmissionReview, v1 and v1beta1: bytes of the API server → what is asked; an answer → bytes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

import msgspec

from vpa.field_errors import FieldError, aggregate
from vpa.objects import meta

GROUP: Final = "admission.k8s.io"
VERSIONS: Final = (f"{GROUP}/v1", f"{GROUP}/v1beta1")
KIND: Final = "AdmissionReview"
INVALID: Final = 422

_NULL: Final = msgspec.Raw(b"null")


class UnusableReviewError(Exception):
    """The body is no AdmissionReview that could be answered; the text is one sentence."""


class GroupVersionKind(msgspec.Struct, frozen=True, gc=False):
    group: str = ""
    version: str = ""
    kind: str = ""


class GroupVersionResource(msgspec.Struct, frozen=True, gc=False):
    group: str = ""
    version: str = ""
    resource: str = ""


class Request(msgspec.Struct, rename="camel", frozen=True, gc=False):
    """What the API server asks. *object* and *old_object* are still bytes: ``null`` where there is none."""

    uid: str = ""
    kind: GroupVersionKind = GroupVersionKind()
    resource: GroupVersionResource = GroupVersionResource()
    sub_resource: str = ""
    request_kind: GroupVersionKind | None = None
    name: str = ""
    namespace: str = ""
    operation: str = ""
    object: msgspec.Raw = _NULL
    old_object: msgspec.Raw = _NULL


class Review(msgspec.Struct, rename="camel", frozen=True, gc=False):
    """The body of a call. Older clients of ours, tests for example, may leave out version and kind."""

    api_version: str = ""
    kind: str = ""
    request: Request | None = None


@dataclass(slots=True)
class Answer:
    """Allowed with a JSON *patch* (empty: none), or denied if there are *errors*."""

    patch: bytes = b""
    warnings: list[str] = field(default_factory=list)
    errors: list[FieldError] = field(default_factory=list)


class _Cause(msgspec.Struct):
    reason: str
    message: str
    field: str


class _Details(msgspec.Struct):
    name: str
    group: str
    kind: str
    causes: list[_Cause]


class _Status(msgspec.Struct):
    status: str
    message: str
    reason: str
    details: _Details
    code: int


class _Response(msgspec.Struct, rename="camel", omit_defaults=True):
    uid: str
    allowed: bool
    status: _Status | None = None
    patch: bytes | None = None  # base64 on the wire
    patch_type: str | None = None
    warnings: list[str] | None = None


class _Reply(msgspec.Struct, rename="camel"):
    kind: str
    api_version: str
    response: _Response


_decode = msgspec.json.Decoder(Review).decode


def read(body: bytes) -> Review:
    """The review in *body*; `UnusableReviewError` if it is none or asks nothing."""
    try:
        review = _decode(body)
    except (msgspec.MsgspecError, RecursionError, UnicodeError) as error:
        raise UnusableReviewError(f"the body is no {KIND}: {error}") from error
    if review.request is None:
        raise UnusableReviewError(f"the {KIND} has no request")
    return review


def check_version(review: Review) -> None:
    """`UnusableReviewError` unless the review is of a version that we can answer in."""
    if review.api_version not in VERSIONS or review.kind != KIND:
        raise UnusableReviewError(
            f'kind "{review.kind}" of apiVersion "{review.api_version}" is not understood; '
            f"send {KIND} of {' or '.join(VERSIONS)}"
        )


def reply(review: Review, answer: Answer) -> bytes:
    """The review that answers *review*, in its own version."""
    request = review.request
    response = _Response(uid=request.uid if request else "", allowed=not answer.errors)
    if answer.errors and request is not None:
        response.status = _denial(request, answer.errors)
    elif answer.patch:
        response.patch = answer.patch
        response.patch_type = "JSONPatch"
    response.warnings = answer.warnings or None
    version = review.api_version if review.api_version in VERSIONS else VERSIONS[0]
    return meta.encoder.encode(_Reply(KIND, version, response))


def _denial(request: Request, errors: list[FieldError]) -> _Status:
    """What the API server makes of an object that is not valid."""
    kind = (request.request_kind or request.kind).kind
    group = (request.request_kind or request.kind).group
    name = request.name
    return _Status(
        status="Failure",
        message=f'{kind}.{group} "{name}" is invalid: {aggregate(errors)}',
        reason="Invalid",
        details=_Details(name, group, kind, [_Cause(one.type, one.body, one.field) for one in errors]),
        code=INVALID,
    )
