"""What the proof prints, and docs/rbac.md."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.rbac import permissions
from tests.rbac.permissions import Permission
from tests.rbac.purposes import PURPOSES, SELDOM
from tests.rbac.trials import Outcome

PAGE = Path(__file__).parents[2] / "docs" / "rbac.md"
BEGIN, END = "<!-- make rbac-proof -->", "<!-- end -->"
SOME = 2
"""Losses that are named one by one; more are counted."""
LONGEST = 160
_PLAIN = re.compile(r"[\w.]+: GET /")
"""What any list says that fails; there may be a sentence with more sense."""
_REQUEST = re.compile(r"(?:GET|POST|PUT|PATCH|DELETE) /\S+: (?:403 )?(.*? is forbidden).*")


@dataclass(frozen=True)
class Finding:
    """What became of a service without one permission, and with all."""

    permission: Permission
    outcome: Outcome
    whole: Outcome

    @property
    def notices(self) -> list[str]:
        """What it says that it does not say otherwise."""
        return [line for line in self.outcome.said if line not in self.whole.said]

    @property
    def losses(self) -> list[str]:
        """What does not come about that does otherwise."""
        return [one for one in self.outcome.failed if one not in self.whole.failed]

    @property
    def lost(self) -> str:
        """In one cell."""
        if self.outcome.ended is not None:
            return "the service ends"
        failed = self.losses
        if len(failed) <= SOME:
            return "not: " + "; not: ".join(failed) if failed else "nothing that is looked at"
        return f"not: {failed[0]} (nor {len(failed) - 1} more)"

    @property
    def said(self) -> str:
        """In one cell: the first notice."""
        if not self.notices:
            return "—"
        plain = [line for line in self.notices if not _PLAIN.match(line)] or self.notices
        text = _REQUEST.sub(r"\1", plain[0])
        return text if len(text) <= LONGEST else text[: LONGEST - 1] + "…"


def purpose(permission: Permission) -> str:
    """What a permission is for."""
    found = PURPOSES[permission.service]
    exactly = f"{permission.resource}:{','.join(permission.verbs)}"
    return found[exactly] if exactly in found else found[permission.resource]


def title(service: str) -> str:
    """The heading of a service's table."""
    return service.capitalize().replace("-", " ")


def table(findings: Sequence[Finding]) -> str:
    """Markdown, one table for each service."""
    lines: list[str] = []
    for service in dict.fromkeys(one.permission.service for one in findings):
        lines += [
            f"### {title(service)}\n",
            "| permission | | for | without it | it says |",
            "| --- | --- | --- | --- | --- |",
        ]
        lines += [row(one) for one in findings if one.permission.service == service]
        lines.append("")
    return "\n".join(lines)


def row(finding: Finding) -> str:
    permission = finding.permission
    kind = "optional" if permission.optional else "required"
    cells = [f"`{permission}`", kind, purpose(permission), finding.lost, finding.said]
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def described(service: str, outcome: Outcome) -> str:
    """A run with all permissions."""
    lines = [f"{service} with all permissions: {outcome.seconds:.0f} s, ended: {outcome.ended}"]
    lines += [f"  not: {sentence}" for sentence in outcome.failed]
    lines += [f"  said: {line}" for line in outcome.said]
    lines += [outcome.trace] if outcome.trace else []
    lines += [f"  refused: {request}" for request in sorted(outcome.refused)]
    return "\n".join(lines)


def problems(findings: Sequence[Finding], whole: Mapping[str, Outcome]) -> list[str]:
    """Permissions that nothing needs, verbs that nobody used, and silence where a word is due."""
    found = []
    for one in findings:
        permission, outcome = one.permission, one.outcome
        if not one.losses and outcome.ended is None:
            found.append(f"{permission.service}: nothing is lost without {permission}")
        if permission.optional and not one.notices:
            found.append(f"{permission.service}: nothing is said without {permission}")
        if permission.optional and outcome.ended is not None:
            found.append(f"{permission.service} ends without {permission}, which is optional")
        repeated = max((outcome.said[line] for line in one.notices), default=0)
        if permission.optional and repeated > SOME:
            found.append(f"{permission.service} says {repeated} times without {permission}: {one.said}")
    for service, outcome in whole.items():
        found += [f"{service}, with all permissions: not: {sentence}" for sentence in outcome.failed]
        for permission in permissions.of(service):
            for verb in permission.verbs:
                used = any(
                    permission.covers(request.group, request.resource, request.name, request.verb)
                    for request in outcome.requests
                    if request.verb == verb and not request.refused
                )
                if not used and f"{permission.resource}:{verb}" not in SELDOM:
                    found.append(
                        f"{service}: nobody asked to {verb} {permission.resource} ({permission.role})"
                    )
    return found


def write(findings: Sequence[Finding]) -> None:
    """Replace the tables of the page."""
    text = PAGE.read_text(encoding="utf-8")
    head, rest = text.split(BEGIN)
    _, tail = rest.split(END)
    PAGE.write_text(f"{head}{BEGIN}\n\n{table(findings).rstrip()}\n\n{END}{tail}", encoding="utf-8")
