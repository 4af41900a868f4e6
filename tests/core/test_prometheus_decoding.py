"""Prometheus' JSON becomes arrays."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vpa.metrics.prometheus import decoding, trickster

SAMPLES = st.lists(
    st.tuples(
        st.integers(0, 2_000_000_000_000).map(lambda ms: ms / 1000),
        st.floats(allow_nan=True, allow_infinity=True, width=64),
    ),
    max_size=12,
)


def go_float(value: float) -> str:
    """As Prometheus prints it."""
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return repr(value)


def body(
    series: list[tuple[dict[str, str], list[tuple[float, float]]]], kind: str = "matrix", **more: Any
) -> bytes:
    """An answer of Prometheus."""
    result: list[dict[str, Any]] = []
    for labels, samples in series:
        pairs = [[time, go_float(value)] for time, value in samples]
        result.append({"metric": labels} | ({"values": pairs} if kind == "matrix" else {"value": pairs[0]}))
    answer = {"status": "success", "data": {"resultType": kind, "result": result}, **more}
    return json.dumps(answer, separators=(",", ":")).encode()


@given(st.lists(SAMPLES, max_size=8), st.integers(1, 400))
def test_every_sample_comes_back_whatever_the_piece(
    series: list[list[tuple[float, float]]], size: int
) -> None:
    named = [({"pod": str(number)}, samples) for number, samples in enumerate(series)]
    matrix = decoding.Matrix.joined(list(decoding.parse(body(named)).pieces(size)))
    assert matrix.labels == [labels for labels, _ in named]
    assert np.diff(matrix.ends, prepend=0).tolist() == [len(samples) for samples in series]
    flat = [sample for samples in series for sample in samples]
    assert matrix.times.tolist() == [time for time, _ in flat]
    np.testing.assert_array_equal(matrix.values, np.array([value for _, value in flat], np.float64))


def test_a_vector_is_a_matrix_of_one_sample_each() -> None:
    matrix = decoding.decode_matrix(body([({"a": "1"}, [(5.5, 2.0)]), ({"a": "2"}, [(5.5, 3.0)])], "vector"))
    assert matrix.ends.tolist() == [1, 2]
    assert matrix.index().tolist() == [0, 1]
    assert matrix.values.tolist() == [2.0, 3.0]


def test_blanks_between_the_numbers_do_no_harm() -> None:
    pretty = json.dumps(json.loads(body([({"a": "1"}, [(1.0, 2.0), (3.0, 4.0)])])), indent=2).encode()
    assert decoding.decode_matrix(pretty).values.tolist() == [2.0, 4.0]


def test_a_series_of_native_histograms_has_no_samples_of_ours() -> None:
    answer = {
        "status": "success",
        "data": {"resultType": "matrix", "result": [{"metric": {}, "histograms": [[1, {"count": "1"}]]}]},
    }
    matrix = decoding.decode_matrix(json.dumps(answer).encode())
    assert matrix.ends.tolist() == [0]


def test_warnings_and_infos_are_kept() -> None:
    answer = decoding.parse(body([], warnings=["no store matched"], infos=["metric might not be a counter"]))
    assert answer.warnings == ("no store matched",)
    assert answer.infos == ("metric might not be a counter",)


def test_an_error_answer_is_read() -> None:
    answer = decoding.parse(
        b'{"status":"error","errorType":"bad_data","error":"exceeded maximum resolution"}'
    )
    assert (answer.error_type, answer.error) == ("bad_data", "exceeded maximum resolution")


@pytest.mark.parametrize(
    "garbage",
    [
        b"",
        b"<html>Bad gateway</html>",
        b"[1]",
        b"{}",
        b'{"status":"success","data":{"resultType":"matrix","result":7}}',
    ],
)
def test_what_is_no_answer_of_prometheus_is_an_error(garbage: bytes) -> None:
    with pytest.raises(decoding.DecodeError):
        decoding.parse(garbage)


@pytest.mark.parametrize("values", ['[[1,"2"],[3]]', '[[1,"x"]]', '[[1,"2",3]]'])
def test_a_sample_that_is_no_pair_of_numbers_is_an_error(values: str) -> None:
    series = f'{{"metric":{{}},"values":{values}}}'
    text = f'{{"status":"success","data":{{"resultType":"matrix","result":[{series}]}}}}'
    with pytest.raises(decoding.DecodeError):
        decoding.decode_matrix(text.encode())


@pytest.mark.parametrize("kind", ["scalar", "string"])
def test_other_kinds_of_results_are_named(kind: str) -> None:
    text = f'{{"status":"success","data":{{"resultType":"{kind}","result":[1,"2"]}}}}'
    with pytest.raises(
        decoding.DecodeError, match=f"expected query to return a matrix; got result type {kind}"
    ):
        decoding.decode_matrix(text.encode())


def test_tricksters_header_tells_what_failed() -> None:
    result = trickster.parse(
        "engine=DeltaProxyCache; status=phit; fetched=[1612804980000-1612808580000;1-2]; "
        "failed=[1612812180000-1612815780000]; ffstatus=off"
    )
    assert result.status == "phit"
    assert result.fetched == ((1612804980000, 1612808580000), (1, 2))
    assert result.failed == ((1612812180000, 1612815780000),)
    assert result.fast_forward == "off"
    assert result.partial


@pytest.mark.parametrize(
    ("header", "partial"),
    [
        ("engine=DeltaProxyCache; status=hit; ffstatus=off", False),
        ("engine=DeltaProxyCache; status=proxy-error", True),
        ("engine=HTTPProxy; status=proxy-only", False),
        ("", False),
        ("whatever", False),
    ],
)
def test_an_answer_of_trickster_is_partial_only_when_it_says_so(header: str, partial: bool) -> None:
    assert trickster.parse(header).partial is partial
