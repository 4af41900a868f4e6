"""Client credentials from an external program (``users[].user.exec`` of a kubeconfig).

The generated client runs such a program once, carries on without credentials when it fails, and never runs it
again. Here a failure is an error of one sentence, and the result is renewed when it expires or is refused.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec

from vpa.cluster.errors import ConfigurationError

API_VERSIONS = ("client.authentication.k8s.io/v1", "client.authentication.k8s.io/v1beta1")


class _CredentialStatus(msgspec.Struct, rename="camel"):
    token: str = ""
    expiration_timestamp: datetime | None = None
    client_certificate_data: str = ""
    client_key_data: str = ""


class _ExecCredential(msgspec.Struct, rename="camel"):
    api_version: str = ""
    kind: str = ""
    status: _CredentialStatus | None = None


@dataclass(frozen=True, slots=True)
class PluginCredential:
    """What a plugin gave: a bearer token, or a certificate and its key (PEM); *expires*: Unix seconds or
    None.
    """

    token: str
    certificate: str
    key: str
    expires: float | None


@dataclass(frozen=True, slots=True)
class ExecPlugin:
    """How to run the program: the fields of the kubeconfig that matter to a process without a terminal."""

    command: str
    args: tuple[str, ...]
    env: Mapping[str, str]
    api_version: str
    cluster: Mapping[str, Any] | None
    install_hint: str
    timeout: float = 60.0

    @classmethod
    def from_kubeconfig(
        cls,
        config: Mapping[str, Any],
        *,
        folder: Path,
        cluster: Mapping[str, Any],
        environ: Mapping[str, str],
    ) -> ExecPlugin:
        """*config* is the ``exec`` mapping, *folder* that of the kubeconfig, *cluster* its cluster entry."""
        command, version = str(config.get("command") or ""), str(config.get("apiVersion") or "")
        if not command:
            raise ConfigurationError(
                'the exec plugin of the kubeconfig has no "command"; name the program to run'
            )
        if version not in API_VERSIONS:
            raise ConfigurationError(
                f'exec plugin {command}: apiVersion "{version}" is not supported; use {API_VERSIONS[0]}'
            )
        if config.get("interactiveMode") == "Always":
            raise ConfigurationError(f"exec plugin {command} wants a terminal, which a service does not have")
        if os.sep in command and not os.path.isabs(command):
            command = str(folder / command)
        return cls(
            command=command,
            args=tuple(str(arg) for arg in config.get("args") or ()),
            env={**environ, **{str(item["name"]): str(item["value"]) for item in config.get("env") or ()}},
            api_version=version,
            cluster=dict(cluster) if config.get("provideClusterInfo") else None,
            install_hint=str(config.get("installHint") or ""),
        )

    async def run(self) -> PluginCredential:
        """Run the program; every failure is a ``ConfigurationError`` that names it."""
        stdout = await self._output()
        try:
            credential = msgspec.json.decode(stdout, type=_ExecCredential)
        except msgspec.DecodeError as error:
            raise self._failure(f"printed no ExecCredential: {error}") from error
        if credential.kind != "ExecCredential" or credential.api_version != self.api_version:
            raise self._failure(
                f'printed kind "{credential.kind}" of "{credential.api_version}" '
                f'instead of an ExecCredential of "{self.api_version}"'
            )
        status = credential.status or _CredentialStatus()
        if bool(status.client_certificate_data) != bool(status.client_key_data):
            raise self._failure("printed only one of clientCertificateData and clientKeyData")
        if not status.token and not status.client_certificate_data:
            raise self._failure("printed neither a token nor a client certificate")
        expires = status.expiration_timestamp.timestamp() if status.expiration_timestamp else None
        return PluginCredential(status.token, status.client_certificate_data, status.client_key_data, expires)

    async def _output(self) -> bytes:
        spec: dict[str, Any] = {"interactive": False}
        if self.cluster is not None:
            spec["cluster"] = self.cluster
        info = {"apiVersion": self.api_version, "kind": "ExecCredential", "spec": spec}
        env = {**self.env, "KUBERNETES_EXEC_INFO": msgspec.json.encode(info).decode()}
        try:
            process = await asyncio.create_subprocess_exec(
                self.command,
                *self.args,
                env=env,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
            )
        except OSError as error:
            hint = f" {self.install_hint}" if self.install_hint else ""
            raise self._failure(f"cannot be run: {error.strerror or error}.{hint}") from error
        try:
            async with asyncio.timeout(self.timeout):
                stdout, stderr = await process.communicate()
        except BaseException as error:
            if process.returncode is None:
                process.kill()
                await process.wait()
            if isinstance(error, TimeoutError):
                raise self._failure(f"gave no answer within {self.timeout:g} s") from error
            raise
        if process.returncode != 0:
            said = " ".join(stderr.decode("utf-8", "replace").split())[:300]
            raise self._failure(f"ended with status {process.returncode}" + (f": {said}" if said else ""))
        return stdout

    def _failure(self, what: str) -> ConfigurationError:
        return ConfigurationError(f"exec plugin {self.command} {what}")


def cluster_info(cluster: Mapping[str, Any], ca_data: str) -> dict[str, Any]:
    """The cluster entry of a kubeconfig as a plugin gets it (``spec.cluster``), with the CA inline."""
    keep: Sequence[str] = ("server", "tls-server-name", "insecure-skip-tls-verify", "proxy-url")
    info = {key: cluster[key] for key in keep if key in cluster}
    if ca_data:
        info["certificate-authority-data"] = ca_data
    for extension in cluster.get("extensions") or ():
        if extension.get("name") == "client.authentication.k8s.io/exec":
            info["config"] = extension.get("extension")
    return info
