"""Kubeconfigs, read by the kubernetes package: contexts, inline data, certificates, older ways to sign in."""

from __future__ import annotations

import base64
import logging
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import yaml
from kubernetes.aio.client import Configuration
from kubernetes.aio.config import ConfigException
from kubernetes.aio.config.kube_config import ConfigNode, KubeConfigLoader, KubeConfigMerger

from vpa.cluster.credentials import Credentials, OpenID, Plugin, Secret, Static, TokenFile
from vpa.cluster.errors import ConfigurationError
from vpa.cluster.execplugins import ExecPlugin, cluster_info
from vpa.cluster.openid import OpenIDToken

logger = logging.getLogger(__name__)


class Legacy:
    """Forms that kubernetes.aio renews by itself when it loads (the gcp auth-provider)."""

    def __init__(self, load: Callable[[], Any], configuration: Configuration) -> None:
        self._load = load
        self._configuration = configuration
        self._next = float("-inf")

    @property
    def header(self) -> str:
        return str(self._configuration.api_key.get("BearerToken", ""))

    async def refresh(self, *, rejected: bool) -> None:
        now = time.monotonic()
        if rejected or now >= self._next:
            self._next = now + 60.0
            try:
                await self._load()
            except (ConfigException, OSError, ValueError, KeyError) as error:
                raise ConfigurationError(f"kubeconfig: credentials cannot be loaded: {error}") from error


async def load(path: str, context: str, environ: Mapping[str, str]) -> Credentials:
    """The credentials of *context* ("" for the current one) in *path*, one kubeconfig or several with ``:``.

    Every problem is a ``ConfigurationError`` of one sentence.
    """
    try:
        merger = KubeConfigMerger(path)
        if merger.config is None:
            raise ConfigurationError(f"kubeconfig {path} does not exist")
        return await _of_context(merger, context, path, environ)
    except ConfigException as error:
        raise ConfigurationError(f"kubeconfig {path}: {str(error).rstrip('.')}") from error
    except (OSError, ValueError, TypeError, AttributeError, KeyError, yaml.YAMLError) as error:
        reason = " ".join(str(error).split())
        raise ConfigurationError(f"kubeconfig {path} cannot be used: {reason}") from error


async def _of_context(
    merger: KubeConfigMerger, context: str, path: str, environ: Mapping[str, str]
) -> Credentials:
    config = merger.config
    entry = config["contexts"].get_with_name(context or config["current-context"])["context"]
    cluster = config["clusters"].get_with_name(entry["cluster"])
    user = config["users"].get_with_name(entry["user"], safe=True) if entry.safe_get("user") else None
    account: dict[str, Any] = dict((user.safe_get("user") if user else None) or {})
    folder = _folder(user.path if user else path)
    own = {key: account.pop(key) for key in ("exec", "tokenFile", "auth-provider") if _is_ours(account, key)}

    configuration = Configuration()
    loader = KubeConfigLoader(_only(config, cluster, user, account), config_base_path=None)
    await loader.load_and_set(configuration)

    def save() -> None:
        try:
            merger.save_changes()
        except OSError as error:
            logger.warning("kubeconfig %s cannot be updated with the renewed token: %s", path, error)

    secret: Secret
    if "auth-provider" in own:
        secret = OpenID(OpenIDToken(own["auth-provider"].setdefault("config", {}), folder=folder, save=save))
    elif "exec" in own:
        info = cluster_info(cluster["cluster"].value, _base64_of(configuration.ssl_ca_cert))
        secret = Plugin(ExecPlugin.from_kubeconfig(own["exec"], folder=folder, cluster=info, environ=environ))
    elif "tokenFile" in own:
        secret = TokenFile(folder / own["tokenFile"])
    elif "auth-provider" in account:
        secret = Legacy(lambda: loader.load_and_set(configuration), configuration)
    else:
        secret = Static(str(configuration.api_key.get("BearerToken", "")))
    return Credentials(configuration, secret)


def _folder(kubeconfig: str) -> Path:
    return Path(kubeconfig).resolve().parent


def _base64_of(file: str | None) -> str:
    return base64.b64encode(Path(file).read_bytes()).decode() if file else ""


def _is_ours(account: Mapping[str, Any], key: str) -> bool:
    if key == "auth-provider":
        return bool((account.get(key) or {}).get("name") == "oidc")
    if (
        key == "tokenFile"
    ):  # kubernetes.aio prefers an inline token, Go the file: it is the one that is rotated
        return bool(account.get(key))
    return key in account


def _only(
    config: ConfigNode, cluster: ConfigNode, user: ConfigNode | None, account: dict[str, Any]
) -> ConfigNode:
    """A kubeconfig of one context whose user keeps only what kubernetes.aio may read."""
    context = {"cluster": cluster.value["name"], "user": "user"}
    user_node = ConfigNode("user", {"name": "user", "user": account}, user.path if user else config.path)
    value = {
        "current-context": "context",
        "contexts": [{"name": "context", "context": context}],
        "clusters": [cluster],
        "users": [user_node],
    }
    return ConfigNode(config.name, value, config.path)
