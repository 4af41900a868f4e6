"""Which HTTP proxy leads to the API server: ``HTTPS_PROXY`` and ``NO_PROXY`` as Go programs read them.

aiohttp's own reading knows no networks in ``NO_PROXY`` ("10.0.0.0/8", usual in clusters) and also picks up
credentials from ``.netrc``; a Kubernetes client must do neither.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from urllib.parse import urlsplit

from vpa.cluster.errors import ConfigurationError

_PORTS = {"http": 80, "https": 443}


def from_environment(url: str, environ: Mapping[str, str]) -> str | None:
    """URL of the proxy for *url* according to *environ*, None for a direct connection."""
    target = urlsplit(url)
    scheme = target.scheme.lower()
    proxy = environ.get(f"{scheme.upper()}_PROXY") or environ.get(f"{scheme}_proxy")
    if not proxy:
        return None
    host, port = target.hostname or "", target.port or _PORTS.get(scheme, 0)
    exceptions = environ.get("NO_PROXY") or environ.get("no_proxy") or ""
    if host == "localhost" or _is_loopback(host) or _is_exempt(host, port, exceptions):
        return None
    return checked(proxy if "://" in proxy else f"http://{proxy}")


def checked(proxy: str) -> str:
    """*proxy* itself if it is one that we can speak to, else a ``ConfigurationError``."""
    scheme = urlsplit(proxy).scheme.lower()
    if scheme not in ("http", "https"):
        raise ConfigurationError(
            f'proxy "{_without_password(proxy)}" is of the unsupported type "{scheme}"; use an http proxy'
        )
    return proxy


def _without_password(url: str) -> str:
    parts = urlsplit(url)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _is_exempt(host: str, port: int, exceptions: str) -> bool:
    return any(
        _matches(host, port, entry.strip().lower()) for entry in exceptions.split(",") if entry.strip()
    )


def _matches(host: str, port: int, entry: str) -> bool:
    if entry == "*":
        return True
    try:
        network = ipaddress.ip_network(entry, strict=False)
    except ValueError:
        pass
    else:
        try:
            return ipaddress.ip_address(host) in network
        except ValueError:
            return False
    name, colon, wanted = entry.rpartition(":")
    if colon and wanted.isdigit():
        if int(wanted) != port:
            return False
        entry = name.strip("[]")
    if entry.startswith("*."):
        entry = entry[1:]
    if entry.startswith("."):
        return host.endswith(entry)
    return host == entry or host.endswith(f".{entry}")
