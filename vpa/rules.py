"""Where we differ from upstream: each difference is one named rule, and a preset sets them all.

``--compatibility=upstream`` sets every rule to upstream 1.8's behaviour, ``safe`` (the default) to ours.
A flag that is given explicitly wins over the preset. ``docs/differences.md`` has a row for each rule.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

from vpa import flags

SAFE = flags.SAFE
UPSTREAM = flags.UPSTREAM


def rule(text: str) -> Any:
    """A field of `Rules`, also a flag of its own name; *text*, its help, says what holds when it is on."""
    return flags.flag(True, text, upstream=False)


@dataclass(frozen=True, kw_only=True, slots=True)
class Rules(flags.Group):
    """One value handed to the core functions; a field is True where our behaviour replaces upstream's.

    Each field is written ``name: bool = rule("What holds when it is on.")`` and is the flag ``--name`` too.
    """

    def override(self, **explicit: Any) -> Rules:
        """The same rules with the explicitly given ones replaced."""
        return replace(self, **explicit)


def preset(name: str) -> Rules:
    """The rules of ``safe`` or ``upstream``; any other name is a ``ValueError``."""
    if name == SAFE:
        return Rules()
    if name == UPSTREAM:
        return Rules(**{field.name: False for field in fields(Rules)})
    raise ValueError(f'compatibility "{name}" is unknown; use "{SAFE}" or "{UPSTREAM}"')
