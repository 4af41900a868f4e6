"""Addresses and credentials: what a request to Prometheus needs beside the query."""

from __future__ import annotations

import base64
import ssl
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from vpa.metrics.settings import History

TOKEN_AGE = 10.0
"""Seconds after which the token file is looked at again."""


class AccessError(ValueError):
    """Credentials that cannot be read; one sentence for the user."""


@dataclass(slots=True)
class BearerFile:
    """A token in a file that somebody rotates, as the kubelet does with the tokens of service accounts."""

    path: str
    token: str = ""
    read_at: float = float("-inf")

    def __post_init__(self) -> None:
        try:
            self.token = self._read()
        except OSError as error:
            raise AccessError(
                f"the bearer token file {self.path} cannot be read: {error.strerror or error}"
            ) from None

    def _read(self) -> str:
        return Path(self.path).read_text(encoding="utf-8").strip()

    def current(self, now: float) -> str:
        """The token; the file is read again when the last look is older than `TOKEN_AGE`.

        A file that is gone for a moment leaves the last token in use.
        """
        if now - self.read_at >= TOKEN_AGE:
            self.read_at = now
            with suppress(OSError):
                self.token = self._read() or self.token
        return self.token

    def doubt(self) -> None:
        """Somebody refused the token: the next look at the file is due at once."""
        self.read_at = float("-inf")


@dataclass(frozen=True, kw_only=True, slots=True)
class Access:
    """Where Prometheus is and how to get in; addresses in the order in which they are tried."""

    addresses: tuple[str, ...]
    headers: Mapping[str, str] = field(default_factory=dict)
    basic: tuple[str, str] | None = None
    token: str = ""
    token_file: BearerFile | None = None
    insecure: bool = False
    ca_file: str = ""
    client_cert_file: str = ""
    client_key_file: str = ""

    @classmethod
    def from_flags(cls, history: History) -> Access:
        """What the flags say; a bearer token goes before user and password, its file before itself."""
        file = history.prometheus_bearer_token_file
        return cls(
            addresses=history.addresses,
            headers=history.headers,
            basic=history.credentials(),
            token=history.prometheus_bearer_token,
            token_file=BearerFile(file) if file else None,
            insecure=history.prometheus_insecure,
            ca_file=history.prometheus_ca_file,
            client_cert_file=history.prometheus_client_cert_file,
            client_key_file=history.prometheus_client_key_file,
        )

    def authorization(self, now: float) -> str:
        """The value of the header ``Authorization``; empty: none."""
        token = self.token_file.current(now) if self.token_file else self.token
        if token:
            return f"Bearer {token}"
        if self.basic:
            return "Basic " + base64.b64encode(":".join(self.basic).encode()).decode()
        return ""

    def tls(self) -> ssl.SSLContext:
        """How certificates are verified and which one is shown; `AccessError` for unusable files."""
        try:
            context = ssl.create_default_context(cafile=self.ca_file or None)
            if self.client_cert_file:
                context.load_cert_chain(self.client_cert_file, self.client_key_file)
        except (OSError, ssl.SSLError) as error:
            files = ", ".join(filter(None, (self.ca_file, self.client_cert_file, self.client_key_file)))
            raise AccessError(f"the certificates for Prometheus ({files}) cannot be used: {error}") from None
        if self.insecure:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        return context
