"""What each service may do under three sets of roles: ours, upstream's, and Deckhouse's."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tests.cluster import rendering, sources
from tests.testbed.accounts import ServiceAccount

Rule = dict[str, Any]

READ = ["get", "list", "watch"]
ACCOUNTS = {name: f"vpa-{name}" for name in rendering.COMPONENTS}


@dataclass(frozen=True)
class Roles:
    """RBAC rules of one service: for the whole cluster, and in its own namespace."""

    cluster: list[Rule]
    namespaced: list[Rule]

    def permissions(self) -> set[tuple[str, str, str, str]]:
        """(group, resource, resource name or "", verb)."""
        return {
            (group, resource, name, verb)
            for rule in [*self.cluster, *self.namespaced]
            for group in rule["apiGroups"]
            for resource in rule["resources"]
            for name in rule.get("resourceNames", [""])
            for verb in rule["verbs"]
        }

    def grant_to(self, account: ServiceAccount) -> None:
        """Give a service account exactly these."""
        account.grant(self.cluster)
        account.grant(self.namespaced, namespace=account.namespace)


def ours(component: str, *, optional: bool = True) -> Roles:
    """Those of deploy/manifests; without *optional* only what the service cannot work without."""
    return _granted(rendering.overlay("base"), ACCOUNTS[component], optional=optional)


def upstream(component: str) -> Roles:
    """Exactly those of upstream's manifests."""
    return _granted(sources.upstream("deploy", "vpa-rbac.yaml").read_text(), ACCOUNTS[component])


def deckhouse(component: str) -> Roles:
    """Those of Deckhouse's module."""
    return Roles(cluster=[*_DECKHOUSE_SHARED, *_DECKHOUSE[component]], namespaced=[])


def _granted(text: str, account: str, *, optional: bool = True) -> Roles:
    objects = rendering.named(text)

    def rules(kind: str) -> Iterator[Rule]:
        for each in objects.values():
            if each["kind"] != f"{kind}Binding" or all(one["name"] != account for one in each["subjects"]):
                continue
            name = each["roleRef"]["name"]
            if optional or not name.endswith("-optional"):
                yield from objects[(kind, name)]["rules"]

    return Roles(cluster=list(rules("ClusterRole")), namespaced=list(rules("Role")))


def _rule(group: str, resources: list[str], verbs: list[str], *names: str) -> Rule:
    rule: Rule = {"apiGroups": [group], "resources": resources, "verbs": verbs}
    return rule | ({"resourceNames": list(names)} if names else {})


_DECKHOUSE_SHARED = [
    _rule("*", ["*/scale"], READ),
    _rule("", ["replicationcontrollers"], READ),
    _rule("apps", ["daemonsets", "deployments", "statefulsets", "replicasets"], READ),
    _rule("batch", ["jobs", "cronjobs"], READ),
]
_DECKHOUSE_ACTOR = [
    _rule("", ["pods", "nodes", "limitranges"], READ),
    _rule("", ["events"], [*READ, "create"]),
    _rule("autoscaling.k8s.io", ["verticalpodautoscalers"], [*READ, "patch"]),
    _rule("autoscaling.k8s.io", ["verticalpodautoscalers/status"], ["get", "patch"]),
]
_DECKHOUSE = {
    "recommender": [
        *_DECKHOUSE_ACTOR,
        _rule("metrics.k8s.io", ["pods"], ["get", "list"]),
        _rule(
            "autoscaling.k8s.io",
            ["verticalpodautoscalercheckpoints"],
            [*READ, "create", "patch", "delete"],
        ),
        _rule("", ["namespaces"], ["get", "list"]),
        _rule("coordination.k8s.io", ["leases"], ["create"]),
        _rule("coordination.k8s.io", ["leases"], ["get", "watch", "update"], "vpa-recommender"),
    ],
    "updater": [
        *_DECKHOUSE_ACTOR,
        _rule("", ["pods/eviction"], ["create"]),
        _rule("", ["pods/resize", "pods"], ["patch"]),
        _rule("apps", ["replicasets"], ["get"]),
        _rule("coordination.k8s.io", ["leases"], READ),
        _rule("coordination.k8s.io", ["leases"], ["create"]),
        _rule("coordination.k8s.io", ["leases"], ["get", "watch", "update"], "vpa-updater"),
    ],
    "admission-controller": [
        _rule("", ["pods", "configmaps", "nodes", "limitranges"], READ),
        _rule(
            "admissionregistration.k8s.io",
            ["mutatingwebhookconfigurations"],
            ["create", "delete", "get", "list"],
        ),
        _rule("autoscaling.k8s.io", ["verticalpodautoscalers"], READ),
        _rule("coordination.k8s.io", ["leases"], ["create", "update", *READ]),
    ],
}
