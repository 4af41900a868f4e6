"""OpenID Connect tokens of a kubeconfig (``auth-provider: {name: oidc}``), renewed with the refresh token.

The generated client checks no certificate of an identity provider whose CA is not inline; here the provider
is verified against the CA that the kubeconfig names, or the system's.
"""

from __future__ import annotations

import base64
import binascii
import ssl
from collections.abc import Callable, MutableMapping
from pathlib import Path
from typing import Any

import aiohttp
import msgspec

from vpa.cluster.errors import ConfigurationError

_TIMEOUT = aiohttp.ClientTimeout(total=30)


def expiry(id_token: str) -> float | None:
    """``exp`` of a JWT in Unix seconds; None if the token says nothing readable."""
    parts = id_token.split(".")
    if len(parts) != 3:
        return None
    try:
        claims = msgspec.json.decode(base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)))
        return float(claims["exp"])
    except (binascii.Error, ValueError, TypeError, KeyError, msgspec.DecodeError):
        return None


class OpenIDToken:
    """The id-token of one user; *config* is the kubeconfig's own mapping, updated in place when renewed.

    *save* writes the kubeconfig back: providers may accept a refresh token only once, so kubectl must find
    the new one.
    """

    def __init__(self, config: MutableMapping[str, Any], *, folder: Path, save: Callable[[], None]) -> None:
        self._config = config
        self._folder = folder
        self._save = save

    @property
    def token(self) -> str:
        return str(self._config.get("id-token") or "")

    @property
    def expires(self) -> float | None:
        return expiry(self.token)

    async def renew(self) -> None:
        """Get a new id-token; a ``ConfigurationError`` names the provider and what is missing."""
        issuer = str(self._config.get("idp-issuer-url") or "")
        refresh_token = self._config.get("refresh-token")
        if not issuer or not refresh_token:
            raise ConfigurationError(
                "the OpenID token of the kubeconfig has expired and there is no refresh-token; log in again"
            )
        try:
            connector = aiohttp.TCPConnector(ssl=self._tls())
            async with aiohttp.ClientSession(connector=connector, timeout=_TIMEOUT) as session:
                answer = await self._refresh(session, issuer=issuer, refresh_token=str(refresh_token))
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError, KeyError) as error:
            raise ConfigurationError(f"OpenID provider {issuer} did not renew the token: {error}") from error
        if not answer.get("id_token"):
            raise ConfigurationError(f"OpenID provider {issuer} sent no id_token; log in again")
        self._config["id-token"] = answer["id_token"]
        if answer.get("refresh_token"):
            self._config["refresh-token"] = answer["refresh_token"]
        self._save()

    async def _refresh(
        self, session: aiohttp.ClientSession, *, issuer: str, refresh_token: str
    ) -> dict[str, Any]:
        url = issuer.rstrip("/") + "/.well-known/openid-configuration"
        async with session.get(url, raise_for_status=True) as response:
            endpoint = (await response.json(content_type=None))["token_endpoint"]
        form = {"grant_type": "refresh_token", "refresh_token": refresh_token}
        client, secret = (
            str(self._config.get("client-id") or ""),
            str(self._config.get("client-secret") or ""),
        )
        headers = {}
        if secret:
            headers["Authorization"] = "Basic " + base64.b64encode(f"{client}:{secret}".encode()).decode()
        else:
            form["client_id"] = client
        async with session.post(endpoint, data=form, headers=headers, raise_for_status=True) as response:
            answer: dict[str, Any] = await response.json(content_type=None)
        return answer

    def _tls(self) -> ssl.SSLContext:
        data, file = (
            self._config.get("idp-certificate-authority-data"),
            self._config.get("idp-certificate-authority"),
        )
        if data:
            return ssl.create_default_context(cadata=base64.b64decode(data).decode("ascii"))
        return ssl.create_default_context(cafile=str(self._folder / file) if file else None)
