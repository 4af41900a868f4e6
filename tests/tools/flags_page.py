"""``docs/flags.md``, made from the tables of flags: ``python -m tests.tools.flags_page`` writes it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import admission.settings
import recommender.settings
import updater.settings
from vpa.flags import COMPATIBILITY, UPSTREAM, Flag, Group, Table, flags_of

PAGE = Path(__file__).parents[2] / "docs" / "flags.md"

SERVICES: dict[str, Table] = {
    "Recommender": recommender.settings.TABLE,
    "Updater": updater.settings.TABLE,
    "Admission controller": admission.settings.TABLE,
}

HEAD = """\
# Flags

Made from the tables that the services parse (`make pages`); do not edit.

Names, defaults and syntax are those of upstream's 1.8, so that its arguments start ours unchanged:
`--name=value`, `--name value`, `--switch`, `-v=4`; `_` stands for `-`; the last one wins. Durations are Go's
(`1h30m`, `90s`), except where the type says `prometheus-duration` (`8d`). An unknown flag is an error that
names the nearest one.

Most flags under *Where we differ from upstream* are rules: on by default, off under
`--compatibility=upstream`; a rule that is given by name wins over the preset.
[differences.md](differences.md) says what each mends.
"""


def page() -> str:
    """The whole page."""
    shared = [group for group in _groups("Recommender") if all(group in _groups(name) for name in SERVICES)]
    lines = [HEAD, "## All services\n", *_sections(shared)]
    for service in SERVICES:
        own = [group for group in _groups(service) if group not in shared]
        lines += [f"## {service}\n", *_sections(own)]
    return "\n".join(lines).rstrip("\n") + "\n"


def _groups(service: str) -> tuple[type[Group], ...]:
    return SERVICES[service].groups


def _sections(groups: list[type[Group]]) -> Iterator[str]:
    for group in groups:
        yield f"### {_title(group)}\n"
        yield "| flag | type | default | what it does |\n| --- | --- | --- | --- |"
        yield from (_row(item) for item in flags_of(group))
        yield ""


def _title(group: type[Group]) -> str:
    if group.__name__ == "Rules":
        return "Where we differ from upstream"
    return (group.__doc__ or group.__name__).splitlines()[0].rstrip(".")


def _row(item: Flag) -> str:
    dashes = "-" if len(item.name) == 1 else "--"
    what = item.help
    if item.inert:
        what += " Accepted, no effect."
    if item.upstream != item.default and _title(item.group) != "Where we differ from upstream":
        other = "unset" if item.upstream is None else f"`{item.kind.show(item.upstream)}`"
        what += f" Under `--{COMPATIBILITY}={UPSTREAM}`: {other}."
    cells = (f"`{dashes}{item.name}`", f"`{item.kind.name}`", _code(item.shown_default), what)
    return "| " + " | ".join(cell.replace("|", "\\|").replace("<", "&lt;") for cell in cells) + " |"


def _code(text: str) -> str:
    return f"`{text}`" if text else ""


if __name__ == "__main__":
    PAGE.write_text(page())
