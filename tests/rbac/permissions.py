"""The permissions of deploy/manifests one by one, and the roles without one of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from tests.cluster import rendering
from tests.cluster.roles import ACCOUNTS, Roles
from tests.tools.deploy_copies import DEPLOY

Rule = dict[str, Any]


@dataclass(frozen=True)
class Permission:
    """What one rule of one role lets a service do with one resource."""

    service: str
    role: str
    group: str
    resource: str
    names: tuple[str, ...]
    """Of which objects; empty for all."""
    verbs: tuple[str, ...]
    namespaced: bool
    """Whether it is in the service's own namespace only."""
    rule: Rule = field(compare=False, hash=False)

    @property
    def optional(self) -> bool:
        return self.role.endswith("-optional")

    def __str__(self) -> str:
        group = f".{self.group}" if self.group not in ("", "*") else ""
        names = f" ({', '.join(self.names)})" if self.names else ""
        return f"{self.resource}{group}{names}: {', '.join(self.verbs)}"

    def covers(self, group: str, resource: str, name: str, verb: str) -> bool:
        """Whether a request is allowed by this permission."""
        resources = (resource, "*/" + resource.partition("/")[2])
        return (
            self.group in ("*", group)
            and self.resource in resources
            and verb in self.verbs
            and (not self.names or name in self.names)
        )


def of(service: str) -> list[Permission]:
    """All permissions of a service, required ones first."""
    found = [
        Permission(
            service=service,
            role=role,
            group=group,
            resource=resource,
            names=tuple(rule.get("resourceNames", ())),
            verbs=tuple(rule["verbs"]),
            namespaced=namespaced,
            rule=rule,
        )
        for role, namespaced, rule in _rules(service)
        for group in rule["apiGroups"]
        for resource in rule["resources"]
    ]
    return sorted(found, key=lambda one: one.optional)


def without(service: str, removed: Permission | None) -> Roles:
    """The roles of a service, but for one permission."""
    cluster: list[Rule] = []
    namespaced: list[Rule] = []
    for role, local, rule in _rules(service):
        resources = rule["resources"]
        if removed is not None and role == removed.role and rule is removed.rule:
            resources = [one for one in resources if one != removed.resource]
        if resources:
            (namespaced if local else cluster).append({**rule, "resources": resources})
    return Roles(cluster=cluster, namespaced=namespaced)


_CACHE: dict[str, list[tuple[str, bool, Rule]]] = {}


def _rules(service: str) -> list[tuple[str, bool, Rule]]:
    """(name of the role, whether it is of one namespace, rule); the same objects at each call."""
    if service not in _CACHE:
        _CACHE[service] = list(_read(service))
    return _CACHE[service]


def _read(service: str) -> Iterator[tuple[str, bool, Rule]]:
    base = DEPLOY / "manifests" / "base"
    text = "---\n".join((base / f"rbac-{kind}.yaml").read_text() for kind in ("required", "optional"))
    objects = rendering.named(text)
    for kind in ("ClusterRole", "Role"):
        for each in objects.values():
            if each["kind"] != f"{kind}Binding":
                continue
            if any(one["name"] == ACCOUNTS[service] for one in each["subjects"]):
                name = each["roleRef"]["name"]
                for rule in objects[(kind, name)]["rules"]:
                    yield name, kind == "Role", rule
