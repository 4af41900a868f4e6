"""Service accounts of a cluster: tokens, kubeconfigs and roles, so that RBAC is real for what tests run."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path

from tests.testbed import kubeconfigs
from tests.testbed.api import Api, ApiError, Json


class ServiceAccount:
    """A service account with a token in a file, which a kubeconfig names.

    `rotate` writes a new token into the same file, as the kubelet does.
    """

    def __init__(self, namespace: str, name: str, *, api: Api, folder: Path, server: str, ca: Path) -> None:
        self.namespace = namespace
        self.name = name
        self._api = api
        self._folder = folder / namespace / name
        self._server = server
        self._ca = ca
        self._folder.mkdir(parents=True, exist_ok=True)
        self.token_file = self._folder / "token"
        with contextlib.suppress(ApiError):  # there already
            api.create({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name}}, namespace)
        self.rotate()

    @property
    def user(self) -> str:
        """The user name that RBAC and audit see."""
        return f"system:serviceaccount:{self.namespace}:{self.name}"

    @property
    def token(self) -> str:
        """The newest token."""
        return self.token_file.read_text()

    @property
    def kubeconfig(self) -> Path:
        """A kubeconfig straight to the API server."""
        return self.kubeconfig_to(self._server)

    def kubeconfig_to(self, server: str) -> Path:
        """A kubeconfig to *server*: a fault proxy's url, or another API server's."""
        path = self._folder / f"{server.rpartition(':')[2]}.kubeconfig"
        return kubeconfigs.write(
            path, server=server, ca=self._ca, user=self.token_file, namespace=self.namespace
        )

    def rotate(self, seconds: int = 3600) -> str:
        """Ask for a new token, valid for *seconds* (600 at least), and put it into the token file."""
        path = f"{self._api.path('ServiceAccount', self.name, self.namespace)}/token"
        request = {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenRequest",
            "spec": {"expirationSeconds": seconds},
        }
        token: str = self._api.request("POST", path, request)["status"]["token"]
        unfinished = self.token_file.with_suffix(".new")
        unfinished.write_text(token)
        unfinished.rename(self.token_file)
        return token

    def grant(self, rules: Sequence[Json], *, namespace: str | None = None) -> None:
        """Allow *rules* (of RBAC: apiGroups, resources, verbs …) in *namespace*, or everywhere for None."""
        scope, prefix = ({"namespace": namespace}, "") if namespace else ({}, "Cluster")
        name = f"{self.namespace}-{self.name}"
        group = "rbac.authorization.k8s.io"
        meta = {"name": name, **scope}
        role = {"apiVersion": f"{group}/v1", "kind": f"{prefix}Role", "metadata": meta, "rules": list(rules)}
        self._api.apply(role)
        self._api.apply(
            {
                "apiVersion": f"{group}/v1",
                "kind": f"{prefix}RoleBinding",
                "metadata": meta,
                "roleRef": {"apiGroup": group, "kind": f"{prefix}Role", "name": name},
                "subjects": [{"kind": "ServiceAccount", "name": self.name, "namespace": self.namespace}],
            }
        )
