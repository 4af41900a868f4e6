"""Where the API server is and who we are: in-cluster or kubeconfig, kept fresh.

kubernetes.aio reads the configuration (contexts, inline data, certificates, the older auth forms). What it
reads only once is renewed here: token files and certificates are read again when they may have changed,
exec plugins and OpenID tokens are renewed before they expire, and everything at once after a 401.
"""

from __future__ import annotations

import asyncio
import base64
import logging
import os
import ssl
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

import yaml
from kubernetes.aio.client import Configuration
from kubernetes.aio.client.rest import RESTClientObject
from kubernetes.aio.config import ConfigException
from kubernetes.aio.config.incluster_config import (
    SERVICE_CERT_FILENAME,
    SERVICE_TOKEN_FILENAME,
    InClusterConfigLoader,
)
from kubernetes.aio.config.kube_config import ConfigNode, KubeConfigLoader, KubeConfigMerger

from vpa.cluster.errors import ConfigurationError
from vpa.cluster.execplugins import ExecPlugin, PluginCredential, cluster_info
from vpa.cluster.openid import OpenIDToken

logger = logging.getLogger(__name__)

REREAD = 10.0
"""Seconds after which a token file or certificate is looked at again; kubelets rotate minutes before
expiry.
"""
EXPIRY_MARGIN = 10.0
"""Seconds before its expiry at which a credential counts as expired."""
PLUGIN_PAUSE = 5.0
"""Least number of seconds between two runs of an exec plugin or OpenID renewals, whatever the server
answers.
"""


class Secret(Protocol):
    """One way to prove who we are."""

    @property
    def header(self) -> str:
        """Value of the ``Authorization`` header, "" for none."""

    async def refresh(self, *, rejected: bool) -> None:
        """Bring :attr:`header` up to date; *rejected*: the server refused the present one."""


class Static:
    """A token, a password, or nothing (client certificates, anonymous)."""

    def __init__(self, header: str) -> None:
        self.header = header

    async def refresh(self, *, rejected: bool) -> None:
        """Nothing can change."""


class TokenFile:
    """A file that somebody else rotates, such as a service account's token."""

    def __init__(self, path: Path, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._path = path
        self._clock = clock
        self._next = 0.0
        self.header = ""

    async def refresh(self, *, rejected: bool) -> None:
        if self.header and not rejected and self._clock() < self._next:
            return
        try:
            token = self._path.read_text().strip()
        except OSError as error:
            token = ""
            problem: Exception | None = error
        else:
            problem = None
        if token:
            self.header = f"Bearer {token}"
        elif not self.header:  # later on the token that we have is better than none
            raise ConfigurationError(f"token file {self._path} is missing or empty") from problem
        self._next = self._clock() + REREAD


class Plugin:
    """The tokens or certificates of an exec plugin."""

    def __init__(self, plugin: ExecPlugin, *, now: Callable[[], float] = time.time) -> None:
        self._plugin = plugin
        self._now = now
        self._ran = float("-inf")
        self.credential: PluginCredential | None = None

    @property
    def header(self) -> str:
        return f"Bearer {self.credential.token}" if self.credential and self.credential.token else ""

    async def refresh(self, *, rejected: bool) -> None:
        now = self._now()
        if self.credential is not None:
            expires = self.credential.expires
            expired = expires is not None and now >= expires - EXPIRY_MARGIN
            if not (expired or rejected) or 0 <= now - self._ran < PLUGIN_PAUSE:
                return
        self._ran = now
        self.credential = await self._plugin.run()


class OpenID:
    """The id-token of an OpenID provider."""

    def __init__(self, token: OpenIDToken, *, now: Callable[[], float] = time.time) -> None:
        self._token = token
        self._now = now
        self._ran = float("-inf")

    @property
    def header(self) -> str:
        return f"Bearer {self._token.token}"

    async def refresh(self, *, rejected: bool) -> None:
        now, expires = self._now(), self._token.expires
        expired = not self._token.token or (expires is not None and now >= expires - EXPIRY_MARGIN)
        if (expired or rejected) and not 0 <= now - self._ran < PLUGIN_PAUSE:
            self._ran = now
            await self._token.renew()


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


class Credentials:
    """The server's address, its TLS context and the Authorization header, each as fresh as it must be."""

    def __init__(
        self, configuration: Configuration, secret: Secret, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._configuration = configuration
        self._secret = secret
        self._clock = clock
        self._lock = asyncio.Lock()
        self._tls: ssl.SSLContext | None = None
        self._tls_made_of: object = None
        self._tls_checked = float("-inf")

    @property
    def server(self) -> str:
        """URL of the API server, without a trailing slash."""
        return str(self._configuration.host).rstrip("/")

    @property
    def proxy(self) -> str | None:
        """The ``proxy-url`` of the kubeconfig."""
        return self._configuration.proxy or None

    @property
    def server_name(self) -> str | None:
        """The ``tls-server-name`` of the kubeconfig."""
        return self._configuration.tls_server_name or None

    async def header(self) -> str:
        """The Authorization header to send now ("" for none); ``ConfigurationError`` if it cannot be had."""
        async with self._lock:
            await self._secret.refresh(rejected=False)
            return self._secret.header

    async def replace(self, rejected: str) -> bool:
        """The server answered 401 to the header *rejected*: is there another one to try?"""
        async with self._lock:
            if self._secret.header == rejected:  # nobody has replaced it while we waited
                await self._secret.refresh(rejected=True)
            return self._secret.header != rejected

    def tls(self) -> ssl.SSLContext:
        """The TLS context; made anew when a certificate file or the plugin's certificate has changed."""
        now = self._clock()
        if self._tls is None or now - self._tls_checked >= REREAD:
            self._tls_checked = now
            made_of = self._tls_sources()
            if self._tls is None or made_of != self._tls_made_of:
                try:
                    self._tls = self._build_tls()
                except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
                    if self._tls is None:
                        raise ConfigurationError(f"TLS certificates cannot be loaded: {error}") from error
                    logger.warning(
                        "TLS certificates have changed but cannot be loaded, the old ones stay: %s", error
                    )
                else:
                    self._tls_made_of = made_of
        return self._tls

    def _plugin_certificate(self) -> PluginCredential | None:
        credential = self._secret.credential if isinstance(self._secret, Plugin) else None
        return credential if credential and credential.certificate else None

    def _tls_sources(self) -> object:
        configuration = self._configuration
        files = (configuration.ssl_ca_cert, configuration.cert_file, configuration.key_file)
        return tuple(_stamp(file) for file in files if file), self._plugin_certificate()

    def _build_tls(self) -> ssl.SSLContext:
        context: ssl.SSLContext = RESTClientObject(self._configuration).ssl_context
        if credential := self._plugin_certificate():
            with tempfile.TemporaryDirectory() as folder:  # OpenSSL takes certificates from files only
                certificate, key = Path(folder, "cert.pem"), Path(folder, "key.pem")
                certificate.write_text(credential.certificate)
                key.touch(mode=0o600)
                key.write_text(credential.key)
                context.load_cert_chain(certificate, key)
        return context


def _stamp(file: str) -> tuple[str, int, int]:
    try:
        status = os.stat(file)
    except OSError:
        return file, 0, 0
    return file, status.st_mtime_ns, status.st_size


def _new_configuration() -> Configuration:
    configuration = Configuration()
    # Python 3.13 refuses CA certificates without key identifiers, which Go accepts and old clusters have.
    configuration.disable_strict_ssl_verification = True
    return configuration


async def load(
    *, kubeconfig: str = "", context: str = "", environ: Mapping[str, str] = os.environ
) -> Credentials:
    """Credentials from *kubeconfig* (a path, or several separated by ``:``); "" means in-cluster.

    Every problem is a ``ConfigurationError`` of one sentence; exec plugins have run once when this returns.
    """
    credentials = await _from_kubeconfig(kubeconfig, context, environ) if kubeconfig else _in_cluster(environ)
    await credentials.header()
    return credentials


def _in_cluster(environ: Mapping[str, str]) -> Credentials:
    configuration = _new_configuration()
    token, certificate = Path(SERVICE_TOKEN_FILENAME), SERVICE_CERT_FILENAME
    try:
        InClusterConfigLoader(
            token_filename=str(token), cert_filename=certificate, try_refresh_token=False, environ=environ
        ).load_and_set(configuration)
    except ConfigException as error:
        raise ConfigurationError(
            f"not running in a cluster ({str(error).rstrip('.')}); outside of one give --kubeconfig"
        ) from error
    return Credentials(configuration, TokenFile(token))


async def _from_kubeconfig(path: str, context: str, environ: Mapping[str, str]) -> Credentials:
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

    configuration = _new_configuration()
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
