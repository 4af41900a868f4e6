"""One VPA object that is created or updated: is it sound, and what is filled in."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from admission.pods import APPLIED, ERROR, SKIPPED, Outcome
from admission.reviews import Answer, Request
from vpa import field_errors
from vpa.gates import FeatureGates
from vpa.objects.autoscalers import GROUP
from vpa.objects.meta import encoder
from vpa.rules import Rules
from vpa.validation import review

RESOURCE: Final = "VPA"
PLURAL: Final = "verticalpodautoscalers"
UPDATE: Final = "UPDATE"


class Autoscalers:
    """Reviews of VPA objects: what `vpa.validation` says of them."""

    def __init__(self, *, rules: Rules, gates: FeatureGates, default_mode: str) -> None:
        self._rules = rules
        self._gates = gates
        self._default_mode = default_mode

    def review(self, request: Request) -> Outcome:
        """Judge the VPA of *request*."""
        try:
            new = _plain(request.object)
            old = _plain(request.old_object) if request.operation == UPDATE else None
        except (msgspec.MsgspecError, RecursionError) as error:
            return Outcome(ERROR, Answer(errors=[field_errors.internal(".", str(error))]))
        verdict = review(new, old, rules=self._rules, gates=self._gates, default_mode=self._default_mode)
        patch = encoder.encode(verdict.patch) if verdict.patch else b""
        answer = Answer(patch=patch, warnings=verdict.warnings, errors=verdict.errors)
        return Outcome(APPLIED if patch else SKIPPED, answer)


def is_autoscaler(request: Request) -> bool:
    """Is the request about VPA objects?"""
    return request.resource.group == GROUP and request.resource.resource == PLURAL


def _plain(raw: msgspec.Raw) -> Any:
    return msgspec.json.decode(raw)
