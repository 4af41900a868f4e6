"""Quantities: exact values, Kubernetes' text."""

from __future__ import annotations

import contextlib
import json
import math
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.core import vectors
from vpa.quantities import Quantity, QuantityError, cpu_millis, memory_bytes

INT64 = range(-(2**63) + 1, 2**63)


def view(quantity: Quantity) -> dict[str, Any]:
    approximate = quantity.approximate_float()
    return {
        "text": str(quantity),
        "format": quantity.format,
        "value": quantity.value(),
        "milli": quantity.milli(),
        "sign": quantity.sign,
        "is_zero": quantity.is_zero,
        "float": approximate if math.isfinite(approximate) else ("+Inf" if approximate > 0 else "-Inf"),
    }


def outcome(case: vectors.Case) -> Any:
    given_ = case["in"]
    try:
        if case["kind"] == "parse":
            return view(Quantity.parse(given_["s"]))
        if case["kind"] == "json":
            quantity = Quantity.from_json(json.loads(given_["json"], parse_float=str))
            return {**view(quantity), "json_out": json.dumps(str(quantity))}
    except QuantityError as error:
        return {"err": error.upstream}
    if case["kind"] == "new":
        if given_["ctor"] == "scaled":
            return view(Quantity.from_scaled(given_["v"], given_["scale"]))
        make = Quantity.from_int if given_["ctor"] == "quantity" else Quantity.from_milli
        return view(make(given_["v"], format=given_["format"]))
    if case["kind"] == "arith":
        a, b = Quantity.parse(given_["a"]), Quantity.parse(given_["b"])
        return {
            "cmp": (a > b) - (a < b),
            "equal": a == b,
            "add": str(a + b),
            "add_format": (a + b).format,
            "sub": str(a - b),
            "sub_format": (a - b).format,
            "neg": str(-a),
        }
    quantity = Quantity.parse(given_["s"])
    exact, rounded = quantity.round_up(given_["scale"])
    return {"exact": exact, "text": str(rounded), "scaled_value": quantity.scaled_value(given_["scale"])}


def test_vector_quantities() -> None:
    cases = vectors.load("quantities")
    for case in cases:
        got, want = outcome(case), case["out"]
        for key in ("value", "milli", "scaled_value"):
            # Past int64 Kubernetes wraps around; ours stays exact.
            if key in got and got[key] not in INT64 and key in want:
                want[key] = got[key]
        if case["kind"] == "json" and "err" in want and "err" in got:
            want["err"] = got["err"]
    vectors.check("quantities", cases, outcome)


numbers = st.decimals(min_value=0, max_value=10**11, places=6)
suffixes = st.sampled_from(["", "n", "u", "m", "k", "M", "G", "Ki", "Mi", "Gi", "e0", "e3", "E-2"])


@st.composite
def texts(draw: st.DrawFn) -> str:
    return draw(st.sampled_from(["", "-", "+"])) + f"{draw(numbers):f}" + draw(suffixes)


@given(texts())
def test_a_quantity_survives_being_written_and_read(text: str) -> None:
    quantity = Quantity.parse(text)
    again = Quantity.parse(str(quantity))
    assert again == quantity
    assert hash(again) == hash(quantity)
    assert str(again) == str(Quantity.parse(str(again)))


@given(texts(), texts())
def test_order_and_sums_are_those_of_the_exact_values(a: str, b: str) -> None:
    left, right = Quantity.parse(a), Quantity.parse(b)
    assert (left < right, left <= right) == (left.nanos < right.nanos, left.nanos <= right.nanos)
    assert (left > right, left >= right) == (left.nanos > right.nanos, left.nanos >= right.nanos)
    assert (left + right).nanos == left.nanos + right.nanos
    assert (left + right) - right == left
    assert left - right == left + -right
    assert Quantity.parse(str(left + right)) == left + right


@given(st.integers(-(10**18), 10**18), st.sampled_from(["DecimalSI", "BinarySI", "DecimalExponent"]))
def test_whole_numbers_keep_their_value_in_every_format(number: int, notation: str) -> None:
    assert Quantity.parse(str(Quantity.from_int(number, format=notation))).value() == number
    assert Quantity.parse(str(Quantity.from_milli(number, format=notation))).milli() == number


@given(st.text(max_size=12))
def test_any_text_is_a_quantity_or_a_quantity_error(text: str) -> None:
    with contextlib.suppress(QuantityError):
        assert Quantity.parse(text) == Quantity.parse(text)


@given(st.decimals(min_value="0.000000001", max_value=10**9, places=9))
def test_millicores_and_bytes_are_rounded_up(amount: Decimal) -> None:
    text = f"{amount:f}"
    assert cpu_millis(text) == cpu_millis(Quantity.parse(text)) == math.ceil(amount * 1000)
    assert memory_bytes(text) == memory_bytes(Quantity.parse(text)) == math.ceil(amount)


def test_a_number_of_absurd_length_is_refused_and_not_computed() -> None:
    for text in ("1e999999999", "9" * 5000, "1e-999999999999999999999", "9" * 5000 + "Ki"):
        with pytest.raises(QuantityError):
            Quantity.parse(text)
    assert str(Quantity.parse("1e-999999999")) == "1e-9"


def test_the_error_says_what_was_given_and_keeps_the_words_of_kubernetes() -> None:
    with pytest.raises(QuantityError, match='"5 apples" is not a quantity') as caught:
        Quantity.parse("5 apples")
    assert caught.value.upstream.startswith("quantities must match the regular expression '^")


def test_json_numbers_and_null_are_quantities_but_other_tokens_are_not() -> None:
    assert Quantity.from_json(1500) == Quantity.parse("1500")
    assert str(Quantity.from_json(1.5)) == "1500m"
    assert Quantity.from_json(None).is_zero
    tokens: list[object] = [True, {}, []]
    for token in tokens:
        with pytest.raises(QuantityError):
            Quantity.from_json(token)


def test_the_sum_of_nothing_and_something_is_written_like_the_something() -> None:
    assert str(Quantity.from_int(0) + Quantity.parse("1Gi")) == "1Gi"
    assert str(Quantity.parse("1Gi") + Quantity.from_int(24)) == "1073741848"
