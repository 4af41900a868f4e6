"""OpenID Connect tokens of a kubeconfig, against a provider that speaks TLS."""

from __future__ import annotations

import base64
import json
import ssl
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import trustme
import yaml
from aiohttp import web

from vpa.cluster import credentials
from vpa.cluster.errors import ConfigurationError
from vpa.cluster.openid import expiry


def token(expires: float | None, name: str = "t") -> str:
    claims = {"sub": name} | ({} if expires is None else {"exp": expires})
    parts = [{"alg": "none"}, claims]
    encoded = [base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=") for part in parts]
    return ".".join([*encoded, "signature"])


FAR, PAST = 4102444800.0, 946684800.0  # the years 2100 and 2000


@dataclass
class Provider:
    """An identity provider that renews tokens; *forms* is what it was asked."""

    url: str
    ca: Path
    forms: list[dict[str, Any]] = field(default_factory=list)
    answer: dict[str, Any] = field(
        default_factory=lambda: {"id_token": token(FAR, "new"), "refresh_token": "second"}
    )


@pytest.fixture
async def provider(tmp_path: Path) -> AsyncIterator[Provider]:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "idp.pem")
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("127.0.0.1").configure_cert(tls)
    running = Provider("", tmp_path / "idp.pem")

    async def discover(request: web.Request) -> web.Response:
        return web.json_response({"token_endpoint": f"{running.url}/token"})

    async def renew(request: web.Request) -> web.Response:
        form = {key: str(value) for key, value in (await request.post()).items()}
        running.forms.append(form | {"auth": request.headers.get("Authorization", "")})
        return web.json_response(running.answer)

    app = web.Application()
    app.router.add_get("/.well-known/openid-configuration", discover)
    app.router.add_post("/token", renew)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls)
    await site.start()
    assert runner.addresses
    running.url = f"https://127.0.0.1:{runner.addresses[0][1]}"
    yield running
    await runner.cleanup()


def kubeconfig(folder: Path, **config: Any) -> Path:
    path = folder / "kubeconfig"
    content = {
        "current-context": "c",
        "contexts": [{"name": "c", "context": {"cluster": "k", "user": "u"}}],
        "clusters": [{"name": "k", "cluster": {"server": "https://api"}}],
        "users": [{"name": "u", "user": {"auth-provider": {"name": "oidc", "config": config}}}],
    }
    path.write_text(yaml.safe_dump(content))
    return path


async def test_a_token_that_is_still_good_is_used_as_it_is(tmp_path: Path) -> None:
    path = kubeconfig(tmp_path, **{"id-token": token(FAR)})
    access = await credentials.load(kubeconfig=str(path))
    assert await access.header() == f"Bearer {token(FAR)}"


async def test_an_expired_token_is_renewed_and_the_new_refresh_token_written_back(
    tmp_path: Path, provider: Provider
) -> None:
    path = kubeconfig(
        tmp_path,
        **{
            "id-token": token(PAST),
            "refresh-token": "first",
            "idp-issuer-url": provider.url,
            "client-id": "kubernetes",
            "client-secret": "s",
            "idp-certificate-authority": "idp.pem",
        },
    )
    access = await credentials.load(kubeconfig=str(path))
    assert await access.header() == f"Bearer {token(FAR, 'new')}"
    basic = "Basic " + base64.b64encode(b"kubernetes:s").decode()
    assert provider.forms == [{"grant_type": "refresh_token", "refresh_token": "first", "auth": basic}]
    written = yaml.safe_load(path.read_text())["users"][0]["user"]["auth-provider"]["config"]
    assert (written["id-token"], written["refresh-token"]) == (token(FAR, "new"), "second")


async def test_a_public_client_names_itself_in_the_form(tmp_path: Path, provider: Provider) -> None:
    path = kubeconfig(
        tmp_path,
        **{
            "refresh-token": "first",
            "idp-issuer-url": provider.url + "/",
            "client-id": "kubernetes",
            "idp-certificate-authority-data": base64.b64encode(provider.ca.read_bytes()).decode(),
        },
    )
    await credentials.load(kubeconfig=str(path))
    assert (provider.forms[0]["client_id"], provider.forms[0]["auth"]) == ("kubernetes", "")


async def test_a_refused_token_is_renewed(tmp_path: Path, provider: Provider) -> None:
    path = kubeconfig(
        tmp_path,
        **{
            "id-token": token(FAR),
            "refresh-token": "first",
            "idp-issuer-url": provider.url,
            "idp-certificate-authority": "idp.pem",
        },
    )
    access = await credentials.load(kubeconfig=str(path))
    assert await access.replace(f"Bearer {token(FAR)}")
    assert await access.header() == f"Bearer {token(FAR, 'new')}"


async def test_a_kubeconfig_that_cannot_be_written_is_no_reason_to_stop(
    tmp_path: Path, provider: Provider, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = kubeconfig(
        tmp_path,
        **{
            "refresh-token": "first",
            "idp-issuer-url": provider.url,
            "idp-certificate-authority": "idp.pem",
        },
    )

    def refuse(_: object) -> None:
        raise OSError("read-only file system")

    monkeypatch.setattr("vpa.cluster.kubeconfigs.KubeConfigMerger.save_changes", refuse)
    access = await credentials.load(kubeconfig=str(path))
    assert await access.header() == f"Bearer {token(FAR, 'new')}"
    assert "cannot be updated with the renewed token: read-only file system" in caplog.text


async def test_a_provider_of_an_unknown_authority_is_not_trusted(tmp_path: Path, provider: Provider) -> None:
    path = kubeconfig(tmp_path, **{"refresh-token": "first", "idp-issuer-url": provider.url})
    with pytest.raises(ConfigurationError, match=r"did not renew the token: .*certificate verify failed"):
        await credentials.load(kubeconfig=str(path))
    assert provider.forms == []


@pytest.mark.parametrize(
    ("answer", "complaint"),
    [({}, "sent no id_token; log in again"), ({"error": "invalid_grant"}, "sent no id_token; log in again")],
)
async def test_a_provider_that_gives_no_token_is_named(
    tmp_path: Path, provider: Provider, answer: dict[str, Any], complaint: str
) -> None:
    provider.answer = answer
    path = kubeconfig(
        tmp_path,
        **{
            "refresh-token": "first",
            "idp-issuer-url": provider.url,
            "idp-certificate-authority": "idp.pem",
        },
    )
    with pytest.raises(ConfigurationError, match=f"OpenID provider {provider.url} {complaint}"):
        await credentials.load(kubeconfig=str(path))


async def test_without_a_refresh_token_an_expired_one_is_the_end(tmp_path: Path) -> None:
    path = kubeconfig(tmp_path, **{"id-token": token(PAST)})
    with pytest.raises(ConfigurationError, match="has expired and there is no refresh-token; log in again"):
        await credentials.load(kubeconfig=str(path))


@pytest.mark.parametrize("text", ["", "a.b", "a.b.c", "a.!!!.c", token(None)])
def test_a_token_that_says_nothing_readable_has_no_known_end(text: str) -> None:
    assert expiry(text) is None


def test_the_end_of_a_token_is_read_from_its_claims() -> None:
    assert expiry(token(FAR)) == FAR
