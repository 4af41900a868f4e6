"""Each outcome of a request is an answer or an error that says what helps."""

from __future__ import annotations

import pytest

from vpa.metrics.prometheus import errors
from vpa.metrics.prometheus.breakers import LONGEST_REST, TOLERATED, Breaker
from vpa.metrics.prometheus.replies import judge

OK = b'{"status":"success","data":{"resultType":"vector","result":[]}}'
TRICKSTER = "X-Trickster-Result"


def failed(kind: str, text: str) -> bytes:
    return f'{{"status":"error","errorType":"{kind}","error":"{text}"}}'.encode()


POINTS = failed("bad_data", "exceeded maximum resolution of 11,000 points per timeseries")
SAMPLES = failed("execution", "query processing would load too many samples into memory")
LENGTH = failed("execution", "the query time range exceeds the limit (query length: 200h)")
SLOW = failed("timeout", "query timed out in expression evaluation")
SYNTAX = failed("bad_data", "parse error: unexpected character")


@pytest.mark.parametrize(
    ("status", "body", "kind", "words"),
    [
        (400, POINTS, errors.TooMuchError, "smaller"),
        (422, SAMPLES, errors.TooMuchError, "smaller"),
        (422, LENGTH, errors.TooMuchError, "smaller"),
        (413, b"", errors.TooMuchError, "smaller"),
        (503, SLOW, errors.TimedOutError, "smaller"),
        (504, b"<html>gateway timeout</html>", errors.TimedOutError, "smaller"),
        (400, SYNTAX, errors.RejectedError, "names of metrics"),
        (404, b"404 page not found", errors.RejectedError, "no Prometheus API"),
        (401, b"Unauthorized", errors.RefusedError, "token or password"),
        (403, b"Forbidden", errors.RefusedError, "token or password"),
        (429, b"slow down", errors.UnreachableError, "again"),
        (502, b"bad gateway", errors.UnreachableError, "again"),
        (200, b"<html>login</html>", errors.GarbledError, "is the address right"),
        (200, failed("internal", "something broke"), errors.RejectedError, "something broke"),
    ],
)
def test_an_unusable_answer_says_the_query_the_address_and_what_to_do(
    status: int, body: bytes, kind: type[errors.PrometheusError], words: str
) -> None:
    with pytest.raises(errors.PrometheusError) as caught:
        judge(status=status, reason="Reason", headers={}, body=body, query="'up' at noon", address="http://p")
    assert type(caught.value) is kind
    assert "'up' at noon" in str(caught.value)
    assert "http://p" in str(caught.value)
    assert words in str(caught.value)


def test_smaller_pieces_may_help_where_trickster_failed_with_the_size() -> None:
    headers = {TRICKSTER: "engine=DeltaProxyCache; status=proxy-error"}
    with pytest.raises(errors.UnreachableError) as caught:
        judge(status=500, reason="", headers=headers, body=b"", query="q", address="a")
    assert caught.value.too_much


def test_a_long_foreign_answer_is_shortened() -> None:
    with pytest.raises(errors.UnreachableError) as caught:
        judge(status=500, reason="", headers={}, body=b"x" * 100_000, query="q", address="a")
    assert len(str(caught.value)) < 400


def test_warnings_of_the_store_are_doubts_and_remarks_on_the_query_are_none() -> None:
    body = (
        OK[:-1] + b',"warnings":["PromQL warning: vague","No StoreAPIs matched"],"infos":["PromQL info: x"]}'
    )
    reply = judge(status=200, reason="", headers={}, body=body, query="q", address="a")
    assert reply.doubts == ("No StoreAPIs matched",)


def test_a_good_answer_of_trickster_with_failed_ranges_is_doubted() -> None:
    headers = {TRICKSTER: "engine=DeltaProxyCache; status=phit; failed=[1-2;3-4]"}
    reply = judge(status=200, reason="", headers=headers, body=OK, query="q", address="a")
    assert reply.doubts == ("Trickster: status=phit, 2 ranges failed",)


def test_a_breaker_opens_after_failures_in_a_row_and_lets_one_request_try() -> None:
    breaker = Breaker()
    for _ in range(TOLERATED):
        assert breaker.allows(0.0)
        breaker.begin()
        breaker.fail(0.0, "down", jitter=0.5)
    assert not breaker.allows(0.0)
    rest = breaker.rest(0.0)
    assert rest > 0
    assert breaker.allows(rest)
    breaker.begin()
    assert not breaker.allows(rest), "only one may try"
    breaker.succeed()
    assert breaker.allows(rest)
    assert breaker.last_error == ""


def test_a_breaker_rests_longer_each_time_but_not_for_ever() -> None:
    breaker = Breaker()
    now, rests = 0.0, []
    for _ in range(30):
        breaker.fail(now, "down", jitter=0.5)
        rests.append(breaker.rest(now))
        now += rests[-1]
    assert rests == sorted(rests)
    assert rests[-1] == LONGEST_REST


def test_an_abandoned_try_does_not_keep_the_breaker_shut() -> None:
    breaker = Breaker()
    for _ in range(TOLERATED):
        breaker.fail(0.0, "down", jitter=0.0)
    now = breaker.rest(0.0)
    breaker.begin()
    breaker.give_up()
    assert breaker.allows(now)
