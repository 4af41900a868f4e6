"""An HTTP answer → a usable one, or the error that says what helps. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from vpa.metrics.prometheus import decoding, trickster
from vpa.metrics.prometheus.decoding import Answer, DecodeError
from vpa.metrics.prometheus.errors import (
    GarbledError,
    PrometheusError,
    RefusedError,
    RejectedError,
    TimedOutError,
    TooMuchError,
    UnreachableError,
    shortened,
)
from vpa.metrics.prometheus.trickster import TricksterResult

_TOO_MUCH = re.compile(
    r"exceed|too (?:many|large|long|big)|maximum|max_|limit|would load|larger than", re.IGNORECASE
)
_SLOW = re.compile(r"timed? ?out|deadline exceeded", re.IGNORECASE)

WRONG_METHOD = frozenset({405, 501})
"""Servers that know no POST; upstream's client asks them with GET."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Reply:
    """A successful answer and how it came."""

    answer: Answer
    address: str
    size: int
    trickster: TricksterResult | None

    @property
    def doubts(self) -> tuple[str, ...]:
        """Why the answer may be incomplete, in the words of those who sent it; none: it says it is whole."""
        said = tuple(text for text in self.answer.warnings if not text.startswith("PromQL "))
        if self.trickster is not None and self.trickster.partial:
            return (*said, f"Trickster: status={self.trickster.status}, {_failed(self.trickster)}")
        return said


def _failed(result: TricksterResult) -> str:
    return f"{len(result.failed)} ranges failed" if result.failed else "a range failed"


def judge(
    *, status: int, reason: str, headers: Mapping[str, str], body: bytes | bytearray, query: str, address: str
) -> Reply:
    """The answer in *body*; a `PrometheusError` for every other outcome."""
    header = headers.get(trickster.HEADER)
    result = trickster.parse(header) if header is not None else None
    try:
        answer = decoding.parse(body)
    except DecodeError as error:
        if status < 300:
            raise GarbledError(
                query=query,
                address=address,
                reason=f"the answer is none of Prometheus' ({error}); is the address right?",
            ) from None
        answer = Answer("", (), (), "", shortened(bytes(body[:2000]).decode("utf-8", "replace")))
    if status < 300 and not answer.error_type and not answer.error:
        return Reply(answer=answer, address=address, size=len(body), trickster=result)
    raise _error(
        status=status, reason=reason, answer=answer, trickster_result=result, query=query, address=address
    )


def _error(
    *,
    status: int,
    reason: str,
    answer: Answer,
    trickster_result: TricksterResult | None,
    query: str,
    address: str,
) -> PrometheusError:
    what = shortened(": ".join(part for part in (answer.error_type, answer.error) if part))
    said = f"{status} {reason}: {what}" if what else f"{status} {reason}"

    def make(kind: type[PrometheusError], advice: str) -> PrometheusError:
        return kind(query=query, address=address, reason=f"{said}; {advice}")

    if status in (401, 403):
        return make(RefusedError, "check the token or password, and that its owner may query there")
    if answer.error_type == "timeout" or status in (408, 504) or (status >= 500 and _SLOW.search(what)):
        return make(TimedOutError, "it is asked for in smaller pieces")
    if status in (413, 414) or (status in (400, 422) and _TOO_MUCH.search(what)):
        return make(TooMuchError, "it is asked for in smaller pieces")
    if status == 404:
        return make(RejectedError, "there is no Prometheus API at this address")
    if status < 500 and status != 429:
        return make(RejectedError, "check the names of metrics and labels")
    error = make(UnreachableError, "it is tried again")
    if trickster_result is not None and trickster_result.partial:
        # Trickster 2.0.2 and later fails a fetch whose body is over max_object_size_bytes with status 5xx.
        error.too_much = True
    return error
