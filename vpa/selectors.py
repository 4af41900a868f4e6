"""Label selectors: as objects of the API, and as the text that a scale subresource carries."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from vpa.objects.meta import LabelSelector, LabelSelectorRequirement

Labels = Mapping[str, str]


class SelectorError(ValueError):
    """A selector that means nothing; the message says which part."""


@dataclass(frozen=True, slots=True)
class Requirement:
    """One condition on one label; *operator* is In, NotIn, Exists, DoesNotExist, Gt or Lt."""

    key: str
    operator: str
    values: frozenset[str] = frozenset()

    def matches(self, labels: Labels) -> bool:
        return _OPERATORS[self.operator](labels.get(self.key), self.values)


def _compare(value: str | None, values: frozenset[str], greater: bool) -> bool:
    """Gt and Lt compare whole numbers; a label that is none does not match."""
    (bound,) = values
    if value is None or not _INTEGER.fullmatch(value):
        return False
    return int(value) > int(bound) if greater else int(value) < int(bound)


_INTEGER: Final = re.compile(r"[+-]?[0-9]{1,19}")
_OPERATORS: Final[dict[str, Callable[[str | None, frozenset[str]], bool]]] = {
    "In": lambda value, values: value in values,
    "NotIn": lambda value, values: value not in values,
    "Exists": lambda value, _: value is not None,
    "DoesNotExist": lambda value, _: value is None,
    "Gt": lambda value, values: _compare(value, values, True),
    "Lt": lambda value, values: _compare(value, values, False),
}


@dataclass(frozen=True, slots=True)
class Selector:
    """All requirements must hold; ``nothing`` is the selector of an object that has none."""

    requirements: tuple[Requirement, ...] = ()
    nothing: bool = False

    def matches(self, labels: Labels | None) -> bool:
        if self.nothing:
            return False
        labels = labels or {}
        return all(requirement.matches(labels) for requirement in self.requirements)


def text(selector: Selector) -> str:
    """The selector as the API takes it in a query; ``""`` for everything. One of nothing has no text."""
    return ",".join(
        _TEXTS[one.operator](one.key, ",".join(sorted(one.values))) for one in selector.requirements
    )


_TEXTS: Final[dict[str, Callable[[str, str], str]]] = {
    "In": lambda key, values: f"{key} in ({values})" if "," in values else f"{key}={values}",
    "NotIn": lambda key, values: f"{key} notin ({values})",
    "Exists": lambda key, _: key,
    "DoesNotExist": lambda key, _: f"!{key}",
    "Gt": lambda key, values: f"{key}>{values}",
    "Lt": lambda key, values: f"{key}<{values}",
}

EVERYTHING: Final = Selector()
NOTHING: Final = Selector(nothing=True)


def from_labels(labels: Labels | None) -> Selector:
    """A selector for exactly these label values, as ReplicationControllers have; ``None`` selects nothing."""
    if labels is None:
        return NOTHING
    return Selector(tuple(Requirement(key, "In", frozenset((value,))) for key, value in labels.items()))


def from_object(selector: LabelSelector | None) -> Selector:
    """``matchLabels`` and ``matchExpressions``; ``None`` selects nothing, an empty selector everything."""
    if selector is None:
        return NOTHING
    expressions = tuple(_requirement(expression) for expression in selector.match_expressions or ())
    return Selector(from_labels(selector.match_labels or {}).requirements + expressions)


def _requirement(expression: LabelSelectorRequirement) -> Requirement:
    values = frozenset(expression.values or ())
    if expression.operator not in ("In", "NotIn", "Exists", "DoesNotExist"):
        raise SelectorError(f'"{expression.operator}" is not a valid label selector operator')
    if expression.operator in ("In", "NotIn") and not values:
        raise SelectorError(f'the selector for label "{expression.key}" is {expression.operator} no values')
    return Requirement(expression.key, expression.operator, values)


_PARTS: Final = re.compile(r",(?![^()]*\))")
_SET: Final = re.compile(r"(?P<key>[^\s!=<>(),]+)\s+(?P<operator>in|notin)\s*\((?P<values>[^()]*)\)")
_EQUAL: Final = re.compile(r"(?P<key>[^\s!=<>(),]+)\s*(?P<operator>==|=|!=|<|>)\s*(?P<value>[^\s!=<>(),]*)")
_EXISTS: Final = re.compile(r"(?P<not>!?)\s*(?P<key>[^\s!=<>(),]+)")
_EQUAL_OPERATORS: Final = {"=": "In", "==": "In", "!=": "NotIn", "<": "Lt", ">": "Gt"}


def from_text(text: str) -> Selector:
    """A selector as kubectl takes it: ``app=web,tier in (a, b),!canary``; empty text selects everything."""
    if not text.strip():
        return EVERYTHING
    return Selector(tuple(_parsed(part.strip(), text) for part in _PARTS.split(text)))


def _parsed(part: str, text: str) -> Requirement:
    if found := _SET.fullmatch(part):
        values = frozenset(value.strip() for value in found["values"].split(","))
        return Requirement(found["key"], "In" if found["operator"] == "in" else "NotIn", values)
    if found := _EQUAL.fullmatch(part):
        if found["operator"] in "<>" and not _INTEGER.fullmatch(found["value"]):
            raise SelectorError(f'"{text}" is not a label selector: "{found["value"]}" is not a number')
        return Requirement(found["key"], _EQUAL_OPERATORS[found["operator"]], frozenset((found["value"],)))
    if found := _EXISTS.fullmatch(part):
        return Requirement(found["key"], "DoesNotExist" if found["not"] else "Exists")
    raise SelectorError(f'"{text}" is not a label selector: "{part}" cannot be read')
