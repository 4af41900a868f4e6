"""Label selectors as objects and as text."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vpa.objects import meta
from vpa.objects.meta import LabelSelector
from vpa.selectors import SelectorError, from_labels, from_object, from_text

LABELS = {"app": "web", "tier": "front", "replicas": "3", "vendor.io/x": ""}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", True),
        ("app=web", True),
        ("app==web,tier=front", True),
        ("app = web , tier in (back, front)", True),
        ("app=api", False),
        ("app!=api", True),
        ("missing!=x", True),
        ("tier notin (front)", False),
        ("missing notin (a,b)", True),
        ("app", True),
        ("missing", False),
        ("!missing", True),
        ("!app", False),
        ("vendor.io/x=", True),
        ("vendor.io/x", True),
        ("replicas>2", True),
        ("replicas<2", False),
        ("app>2", False),
        ("missing<2", False),
        ("tier in (a,b),app=web", False),
    ],
)
def test_a_selector_text_matches_as_kubectl_would(text: str, expected: bool) -> None:
    assert from_text(text).matches(LABELS) is expected


@pytest.mark.parametrize("text", ["a b", "=x", "app in front", "a=b=c", "app>x", "(a)", "a,,b"])
def test_a_text_that_is_no_selector_is_named(text: str) -> None:
    with pytest.raises(SelectorError, match="is not a label selector"):
        from_text(text)


def test_no_selector_selects_nothing_and_an_empty_one_everything() -> None:
    assert not from_object(None).matches(LABELS)
    assert from_object(LabelSelector()).matches(LABELS)
    assert from_object(LabelSelector()).matches(None)
    assert not from_labels(None).matches(LABELS)
    assert from_labels({}).matches(None)


@pytest.mark.parametrize(
    ("operator", "values", "expected"),
    [
        ("In", ["web", "api"], True),
        ("NotIn", ["web"], False),
        ("Exists", None, True),
        ("DoesNotExist", None, False),
    ],
)
def test_match_expressions(operator: str, values: list[str] | None, expected: bool) -> None:
    data = {
        "matchLabels": {"tier": "front"},
        "matchExpressions": [{"key": "app", "operator": operator, "values": values}],
    }
    assert from_object(meta.convert(data, LabelSelector)).matches(LABELS) is expected


@pytest.mark.parametrize(("operator", "values"), [("Is", ["x"]), ("In", []), ("NotIn", None)])
def test_a_bad_expression_is_named(operator: str, values: list[str] | None) -> None:
    data = {"matchExpressions": [{"key": "app", "operator": operator, "values": values}]}
    with pytest.raises(SelectorError):
        from_object(meta.convert(data, LabelSelector))


words = st.from_regex(r"[a-z]([a-z0-9]{0,5})", fullmatch=True)


@given(st.dictionaries(words, words), st.dictionaries(words, words))
def test_an_equality_selector_means_the_same_in_every_form(
    wanted: dict[str, str], labels: dict[str, str]
) -> None:
    expected = all(labels.get(key) == value for key, value in wanted.items())
    text = ",".join(f"{key}={value}" for key, value in wanted.items())
    assert from_text(text).matches(labels) is expected
    assert from_labels(wanted).matches(labels) is expected
    assert from_object(LabelSelector(match_labels=wanted)).matches(labels) is expected
