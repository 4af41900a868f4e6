"""One call of the webhook: bytes in, bytes out, whatever the bytes are."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from functools import lru_cache
from http import HTTPStatus
from typing import Final, NamedTuple
from urllib.parse import parse_qs

from admission import reviews
from admission.autoscalers import RESOURCE as VPA
from admission.autoscalers import Autoscalers, is_autoscaler
from admission.metrics import AdmissionMetrics, OwnMetrics
from admission.pods import APPLIED, ERROR, Outcome, Pods, Waiting
from admission.pods import RESOURCE as POD
from admission.reviews import Answer, Request, Review, UnusableReviewError
from vpa.durations import Duration
from vpa.reasons import Reason, Refusal
from vpa.rules import Rules
from vpa.telemetry import logs

log = logging.getLogger(__name__)

LARGEST: Final = 5 * 1024 * 1024
"""Bytes of a body; etcd takes objects of 1.5 MiB by default, and a review carries two."""
TOO_LARGE: Final = "request payload too large"
JSON: Final = "application/json"
PATIENCE: Final = 3.0
"""Seconds that a pod waits for us at most. It starts unchanged rather than late."""
SHARE: Final = 0.6
"""Our part of the time after which the API server stops waiting, if that is less."""

UNKNOWN: Final = "unknown"


@dataclass(frozen=True, slots=True)
class Call:
    """What came over HTTP. *query*: the API server tells its patience there, as ``timeout=30s``."""

    body: bytes
    content_type: str = JSON
    method: str = "POST"
    query: str = ""


@dataclass(frozen=True, slots=True)
class Reply:
    """What goes back."""

    status: int
    body: bytes
    content_type: str = JSON


class Begun(NamedTuple):
    """A call that has been read; *waiting* is the pod of which not enough is known yet, if that is so."""

    review: Review
    query: str
    started: float
    read: float
    waiting: Waiting | None = None


class Handler:
    """Answers calls. It never raises: any doubt, our own bugs among them, lets the object in unchanged."""

    def __init__(
        self,
        pods: Pods,
        autoscalers: Autoscalers,
        *,
        metrics: AdmissionMetrics,
        own: OwnMetrics,
        rules: Rules,
    ) -> None:
        self._pods = pods
        self._autoscalers = autoscalers
        self._metrics = metrics
        self._own = own
        self._rules = rules

    def begin(self, call: Call) -> Reply | Begun:
        """The reply to *call*, counted and timed; if somebody has to be asked for it, `finish` gets it."""
        started = time.perf_counter()
        try:
            review = self._read(call)
        except _RefusedCallError as refused:
            self._count(ERROR, UNKNOWN, started)
            log.warning("Answered no review: %s", refused)
            return refused.reply
        begun = Begun(review, call.query, started, time.perf_counter())
        judged = self._judge(review)
        if isinstance(judged, Waiting):
            return begun._replace(waiting=judged)
        return self._reply(begun, judged)

    async def finish(self, begun: Begun) -> Reply:
        """The reply to a call that could not be answered at once."""
        if begun.waiting is None:
            return self._reply(begun, Outcome(ERROR))
        try:
            outcome = await self._pods.finish(begun.waiting, patience=patience_of(begun.query))
        except Exception as error:
            outcome = _failed(error)
        return self._reply(begun, outcome)

    async def answer(self, call: Call) -> Reply:
        """The reply to *call*."""
        begun = self.begin(call)
        return begun if isinstance(begun, Reply) else await self.finish(begun)

    def _reply(self, begun: Begun, outcome: Outcome) -> Reply:
        review = begun.review
        resource = UNKNOWN if review.request is None else resource_of(review.request)
        self._tell(review, outcome, resource)
        admitted = time.perf_counter()
        reply = Reply(HTTPStatus.OK, self._encode(review, outcome, resource))
        steps, built = self._metrics.steps, time.perf_counter()
        steps["read_request"](begun.read - begun.started)
        steps["admit"](admitted - begun.read)
        steps["build_response"](built - admitted)
        self._count(outcome.status, resource, begun.started)
        return reply

    def too_large(self) -> Reply:
        """The answer to a body of which not all was read."""
        self._count(ERROR, UNKNOWN, time.perf_counter())
        log.warning("Answered no review: it is larger than %d bytes", LARGEST)
        return Reply(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"{TOO_LARGE}\n".encode(), "text/plain")

    def _count(self, status: str, resource: str, started: float) -> None:
        self._metrics.latency.observe(time.perf_counter() - started, status=status, resource=resource)

    def _read(self, call: Call) -> Review:
        """The review that *call* carries."""
        if self._rules.proper_answers:
            if call.method != "POST":
                raise _RefusedCallError(HTTPStatus.METHOD_NOT_ALLOWED, f"method {call.method}; use POST")
            if call.content_type.partition(";")[0].strip().lower() != JSON:
                text = f'content type "{call.content_type}"; use {JSON}'
                raise _RefusedCallError(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, text)
        elif call.content_type != JSON:
            raise _RefusedCallError(HTTPStatus.OK, f'content type "{call.content_type}"', body=b"")
        try:
            review = reviews.read(call.body)
            if self._rules.proper_answers:
                reviews.check_version(review)
        except UnusableReviewError as error:
            if self._rules.proper_answers:
                raise _RefusedCallError(HTTPStatus.BAD_REQUEST, str(error)) from error
            empty = reviews.reply(Review(), Answer())
            raise _RefusedCallError(HTTPStatus.OK, str(error), body=empty) from error
        return review

    def _judge(self, review: Review) -> Outcome | Waiting:
        request = review.request
        if request is None:
            return Outcome(ERROR)
        try:
            resource = resource_of(request)
            if resource == POD:
                return self._pods.begin(request)
            if resource == VPA:
                return self._autoscalers.review(request)
            what = f"{request.resource.resource}.{request.resource.group}".removesuffix(".")
            return Outcome(ERROR, refusal=Refusal(Reason.UNREADABLE, f"{what} are none of our objects"))
        except Exception as error:
            return _failed(error)

    def _tell(self, review: Review, outcome: Outcome, resource: str) -> None:
        """Count a pod, and say what was in doubt or denied."""
        refusal, request = outcome.refusal, review.request
        if resource == POD:
            self._metrics.pods.inc(applied="true" if outcome.status == APPLIED else "false")
            if refusal is not None:
                self._own.unchanged.inc(reason=refusal.reason.value)
        if request is None:
            return
        name = f"{request.namespace}/{request.name}"
        if outcome.status == ERROR and refusal is not None:
            facts = {"object": name, "reason": refusal.reason.value, "why": refusal.message}
            log.warning("Let an object in unchanged", extra={"resource": resource, **facts})
        elif outcome.answer.errors:
            texts = "; ".join(str(error) for error in outcome.answer.errors)
            log.log(logs.V2, "Denied a VPA", extra={"vpa": name, "errors": texts})

    def _encode(self, review: Review, outcome: Outcome, resource: str) -> bytes:
        try:
            return reviews.reply(review, outcome.answer)
        except Exception:
            log.exception("An answer could not be written; the object is let in unchanged")
            outcome.status = ERROR
            return reviews.reply(review, Answer())


def resource_of(request: Request) -> str:
    """What the request is about, as the metrics have it."""
    if request.resource.resource == "pods" and not request.resource.group:
        return POD
    return VPA if is_autoscaler(request) else UNKNOWN


def _failed(error: Exception) -> Outcome:
    """What a bug of ours comes to; called where *error* is being handled."""
    log.exception("A review failed; the object is let in unchanged")
    why = f"{type(error).__name__}: {error}"
    return Outcome(ERROR, refusal=Refusal(Reason.INTERNAL_ERROR, why))


class _RefusedCallError(Exception):
    """The call is no review; *reply* is the answer."""

    def __init__(self, status: HTTPStatus, text: str, *, body: bytes | None = None) -> None:
        super().__init__(text)
        self.reply = (
            Reply(status, f"{text}\n".encode(), "text/plain") if body is None else Reply(status, body)
        )


@lru_cache(maxsize=64)
def patience_of(query: str) -> float:
    """Seconds that may be spent on one pod, when the API server waits as long as *query* says."""
    try:
        granted = Duration.parse(parse_qs(query)["timeout"][0]).seconds
    except (KeyError, ValueError):
        granted = 0.0
    return min(PATIENCE, granted * SHARE) if granted > 0 else PATIENCE
