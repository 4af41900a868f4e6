"""Errors about fields of an object, in the words of Kubernetes."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from decimal import Decimal

_KINDS = {
    "FieldValueRequired": "Required value",
    "FieldValueInvalid": "Invalid value",
    "FieldValueNotSupported": "Unsupported value",
    "FieldValueForbidden": "Forbidden",
    "FieldValueDuplicate": "Duplicate value",
    "FieldValueTooMany": "Too many",
    "InternalError": "Internal error",
}


@dataclass(frozen=True, slots=True)
class FieldError:
    """``type`` is the API's word for the cause, ``body`` the text without the field."""

    type: str
    field: str
    body: str

    def __str__(self) -> str:
        return f"{self.field}: {self.body}"


def aggregate(errors: Iterable[FieldError]) -> str:
    """All errors as one text; equal ones are named once."""
    texts = list(dict.fromkeys(str(error) for error in errors))
    return texts[0] if len(texts) == 1 else f"[{', '.join(texts)}]"


def required(field: str, detail: str = "") -> FieldError:
    return _error("FieldValueRequired", field, detail)


def forbidden(field: str, detail: str) -> FieldError:
    return _error("FieldValueForbidden", field, detail)


def internal(field: str, detail: str) -> FieldError:
    return _error("InternalError", field, detail)


def invalid(field: str, value: str | int | float, detail: str) -> FieldError:
    return _error("FieldValueInvalid", field, shown(value), detail)


def duplicate(field: str, value: str, detail: str) -> FieldError:
    return _error("FieldValueDuplicate", field, shown(value), detail)


def not_supported(field: str, value: str, supported: Sequence[str]) -> FieldError:
    names = ", ".join(quoted(name) for name in sorted(supported))
    return _error("FieldValueNotSupported", field, quoted(value), f"supported values: {names}")


def too_many(field: str, count: int, most: int) -> FieldError:
    plural = "item" if most == 1 else "items"
    return _error("FieldValueTooMany", field, str(count), f"must have at most {most} {plural}")


def _error(kind: str, field: str, *details: str) -> FieldError:
    return FieldError(kind, field, ": ".join([_KINDS[kind], *(detail for detail in details if detail)]))


def quoted(text: str) -> str:
    """Text in double quotes, as Go prints it."""
    return json.dumps(text, ensure_ascii=False)


def shown(value: str | int | float) -> str:
    """A value as Go prints it: text quoted, large and tiny floats with an exponent."""
    if isinstance(value, str):
        return quoted(value)
    if isinstance(value, int):
        return str(value)
    _, digits, exponent = Decimal(repr(value)).normalize().as_tuple()
    point = len(digits) + int(exponent)
    if value and not -4 < point <= 6:
        mantissa = "".join(map(str, digits))
        mantissa = mantissa[0] + (f".{mantissa[1:]}" if len(mantissa) > 1 else "")
        return f"{'-' if value < 0 else ''}{mantissa}e{point - 1:+03d}"
    return str(int(value)) if value == int(value) else repr(value)
