"""Kinds of somebody else's that can be scaled, for tests with an owner or a target of an unknown kind."""

from __future__ import annotations

from tests.testbed.api import Json


def scalable(kind: str, group: str, *, status: bool = False) -> Json:
    """A definition of ``GROUP/v1`` *kind* with a ``scale``; with *status* that is a subresource too."""
    plural = f"{kind.lower()}s"
    scale = {
        "specReplicasPath": ".spec.replicas",
        "statusReplicasPath": ".status.replicas",
        "labelSelectorPath": ".status.selector",
    }
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{group}"},
        "spec": {
            "group": group,
            "scope": "Namespaced",
            "names": {"plural": plural, "singular": kind.lower(), "kind": kind},
            "versions": [
                {
                    "name": "v1",
                    "served": True,
                    "storage": True,
                    "subresources": {"scale": scale} | ({"status": {}} if status else {}),
                    "schema": {
                        "openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
                    },
                }
            ],
        },
    }
