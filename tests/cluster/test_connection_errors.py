"""Failed answers become errors by meaning, whatever their body is."""

from __future__ import annotations

import json
from typing import Any

import pytest

from vpa.cluster import errors


def status(code: int, **fields: Any) -> bytes:
    return json.dumps(
        {"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, **fields}
    ).encode()


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (400, errors.BadRequest),
        (401, errors.Unauthorized),
        (403, errors.Forbidden),
        (404, errors.NotFound),
        (409, errors.Conflict),
        (410, errors.Gone),
        (422, errors.Invalid),
        (429, errors.TooManyRequests),
        (500, errors.ServerError),
        (503, errors.ServerError),
        (302, errors.StatusError),
        (418, errors.StatusError),
    ],
)
def test_each_code_has_its_class(code: int, kind: type[errors.StatusError]) -> None:
    assert type(errors.from_response(code=code, body=status(code, message="m"))) is kind


def test_an_existing_name_is_a_conflict_of_its_own() -> None:
    failure = errors.from_response(code=409, body=status(409, reason="AlreadyExists"))
    assert isinstance(failure, errors.AlreadyExists)


def test_causes_and_reason_of_a_status_are_kept() -> None:
    causes = [{"reason": "NodeCapacity", "message": "too big", "field": "spec"}]
    failure = errors.from_response(code=403, body=status(403, reason="Forbidden", details={"causes": causes}))
    assert failure.reason == "Forbidden"
    assert failure.has_cause("NodeCapacity")
    assert not failure.has_cause("UnsupportedPlatform")
    assert failure.causes == (errors.Cause("NodeCapacity", "too big", "spec"),)


@pytest.mark.parametrize(
    ("header", "seconds", "expected"),
    [
        ("7", 0, 7.0),
        (None, 10, 10.0),
        ("7", 10, 7.0),
        (None, 0, None),
        ("Wed, 21 Oct 2026 07:28:00 GMT", 0, None),
    ],
)
def test_the_time_to_wait_comes_from_the_header_or_the_status(
    header: str | None, seconds: int, expected: float | None
) -> None:
    body = status(429, details={"retryAfterSeconds": seconds})
    assert errors.from_response(code=429, body=body, retry_after=header).retry_after == expected


def test_a_page_of_a_proxy_becomes_one_short_readable_line() -> None:
    body = b"<html>\n  <body>\n" + b"Bad gateway " * 100
    failure = errors.from_response(code=502, body=body, method="GET", path="/api/v1/pods")
    assert str(failure).startswith("GET /api/v1/pods: HTTP 502: <html> <body> Bad gateway")
    assert "\n" not in str(failure)
    assert len(str(failure)) < 350


def test_an_empty_answer_still_says_its_code() -> None:
    assert str(errors.from_response(code=503, body=b"")) == "HTTP 503"


def test_the_error_event_of_a_watch_takes_its_code_from_the_status() -> None:
    assert isinstance(errors.from_response(code=0, body=status(410)), errors.Gone)
