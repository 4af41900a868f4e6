"""``--now``: the moment for which a command answers."""

from __future__ import annotations

import typer

from vpa import times

_FARTHEST = 4e9  # seconds: the year 2096, as for the lines of a usage file


def moment(text: str) -> int:
    """Nanoseconds since 1970 of RFC 3339 text, or of seconds since 1970; else a usage error."""
    try:
        return times.parse(text)
    except ValueError:
        pass
    try:
        seconds = float(text)
    except ValueError:
        seconds = float("nan")
    if not abs(seconds) <= _FARTHEST:
        message = f"{text} is neither RFC 3339 (2026-08-01T00:00:00Z) nor seconds since 1970"
        raise typer.BadParameter(message, param_hint="--now")
    return round(seconds * 1e6) * 1000
