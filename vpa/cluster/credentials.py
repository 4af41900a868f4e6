"""Where the API server is and who we are: in-cluster or kubeconfig, kept fresh.

What is usually read only once is renewed here: token files and certificates are read again when they may have
changed, exec plugins and OpenID tokens are renewed before they expire, and everything at once after a 401.
"""

from __future__ import annotations

import asyncio
import logging
import os
import ssl
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from vpa.cluster.errors import ConfigurationError
from vpa.cluster.execplugins import ExecPlugin, PluginCredential
from vpa.cluster.openid import OpenIDToken

logger = logging.getLogger(__name__)

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
"""Where a kubelet puts a pod's token and the CA of the API server."""
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


class Access(Protocol):
    """Where the API server is and how TLS goes with it; None where there is nothing special.

    A ``Configuration`` of the kubernetes package is one.
    """

    host: str
    ssl_ca_cert: str | None
    cert_file: str | None
    key_file: str | None
    verify_ssl: bool
    proxy: str | None
    tls_server_name: str | None


@dataclass(slots=True)
class InCluster:
    """The API server as pods see it."""

    host: str
    ssl_ca_cert: str | None
    cert_file: str | None = None
    key_file: str | None = None
    verify_ssl: bool = True
    proxy: str | None = None
    tls_server_name: str | None = None


class Credentials:
    """The server's address, its TLS context and the Authorization header, each as fresh as it must be."""

    def __init__(
        self, access: Access, secret: Secret, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._access = access
        self._secret = secret
        self._clock = clock
        self._lock = asyncio.Lock()
        self._tls: ssl.SSLContext | None = None
        self._tls_made_of: object = None
        self._tls_checked = float("-inf")

    @property
    def server(self) -> str:
        """URL of the API server, without a trailing slash."""
        return str(self._access.host).rstrip("/")

    @property
    def proxy(self) -> str | None:
        """The ``proxy-url`` of the kubeconfig."""
        return self._access.proxy or None

    @property
    def server_name(self) -> str | None:
        """The ``tls-server-name`` of the kubeconfig."""
        return self._access.tls_server_name or None

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
        access = self._access
        files = (access.ssl_ca_cert, access.cert_file, access.key_file)
        return tuple(_stamp(file) for file in files if file), self._plugin_certificate()

    def _build_tls(self) -> ssl.SSLContext:
        access = self._access
        context = ssl.create_default_context(cafile=access.ssl_ca_cert)
        # Python 3.13 refuses CA certificates without key identifiers, which Go accepts and old clusters have.
        context.verify_flags &= ~ssl.VERIFY_X509_STRICT
        if access.cert_file:
            context.load_cert_chain(access.cert_file, access.key_file)
        if not access.verify_ssl:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
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


async def load(
    *, kubeconfig: str = "", context: str = "", environ: Mapping[str, str] = os.environ
) -> Credentials:
    """Credentials from *kubeconfig* (a path, or several separated by ``:``); "" means in-cluster.

    Every problem is a ``ConfigurationError`` of one sentence; exec plugins have run once when this returns.
    """
    if kubeconfig:
        # Imported here: the kubernetes package takes 20 MiB and 0.4 s, which a pod need not have.
        from vpa.cluster import kubeconfigs

        credentials = await kubeconfigs.load(kubeconfig, context, environ)
    else:
        credentials = _in_cluster(environ)
    await credentials.header()
    return credentials


def _in_cluster(environ: Mapping[str, str]) -> Credentials:
    host, port = environ.get("KUBERNETES_SERVICE_HOST", ""), environ.get("KUBERNETES_SERVICE_PORT", "")
    token, authority = SERVICE_ACCOUNT / "token", SERVICE_ACCOUNT / "ca.crt"
    if not host or not port:
        raise _outside("KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT are not set")
    for file in (token, authority):
        try:
            empty = not file.read_bytes().strip()
        except OSError as error:
            raise _outside(f"{file} cannot be read: {error.strerror}") from error
        if empty:
            raise _outside(f"{file} is empty")
    name = f"[{host}]" if ":" in host else host
    return Credentials(InCluster(f"https://{name}:{port}", str(authority)), TokenFile(token))


def _outside(why: str) -> ConfigurationError:
    return ConfigurationError(f"not running in a cluster ({why}); outside of one give --kubeconfig")
