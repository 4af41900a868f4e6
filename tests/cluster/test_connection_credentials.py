"""Who we are: every form of a kubeconfig, kept fresh, and one clear sentence when it cannot be used."""

from __future__ import annotations

import base64
import os
import stat
import subprocess
import sys
import textwrap
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import trustme
import yaml

from vpa.cluster import credentials
from vpa.cluster.errors import ConfigurationError
from vpa.cluster.execplugins import ExecPlugin

V1 = "client.authentication.k8s.io/v1"


def write(path: Path, user: dict[str, Any] | None, **cluster: Any) -> str:
    """A kubeconfig of one context; its path."""
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "c",
        "contexts": [{"name": "c", "context": {"cluster": "k", **({} if user is None else {"user": "u"})}}],
        "clusters": [{"name": "k", "cluster": {"server": "https://api:6443/", **cluster}}],
        "users": [] if user is None else [{"name": "u", "user": user}],
    }
    path.write_text(yaml.safe_dump(config))
    return str(path)


def plugin(folder: Path, body: str) -> str:
    """A program for ``exec``, in Python."""
    program = folder / "plugin"
    program.write_text(f"#!{sys.executable}\nimport json, os, sys, time\n{textwrap.dedent(body)}")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    return str(program)


def answer(**status: Any) -> str:
    """Python source that prints a credential."""
    return f"print(json.dumps({{'apiVersion': '{V1}', 'kind': 'ExecCredential', 'status': {status!r}}}))"


def at(seconds: float) -> str:
    return (datetime.now(UTC) + timedelta(seconds=seconds)).isoformat()


async def test_a_token_is_sent_as_a_bearer(tmp_path: Path) -> None:
    access = await credentials.load(kubeconfig=write(tmp_path / "k", {"token": "t0k"}))
    assert await access.header() == "Bearer t0k"
    assert access.server == "https://api:6443"


async def test_a_user_and_password_are_sent_as_basic(tmp_path: Path) -> None:
    access = await credentials.load(kubeconfig=write(tmp_path / "k", {"username": "a", "password": "b"}))
    assert await access.header() == "Basic " + base64.b64encode(b"a:b").decode()


@pytest.mark.parametrize("user", [None, {}])
async def test_without_a_user_requests_are_anonymous(tmp_path: Path, user: dict[str, Any] | None) -> None:
    access = await credentials.load(kubeconfig=write(tmp_path / "k", user))
    assert await access.header() == ""


async def test_the_cluster_s_proxy_and_server_name_are_kept(tmp_path: Path) -> None:
    path = write(tmp_path / "k", {}, **{"proxy-url": "http://p:1", "tls-server-name": "kubernetes"})
    access = await credentials.load(kubeconfig=path)
    assert (access.proxy, access.server_name) == ("http://p:1", "kubernetes")


async def test_several_files_are_merged_and_a_context_can_be_chosen(tmp_path: Path) -> None:
    first = write(tmp_path / "a", {"token": "one"})
    second = tmp_path / "b"
    second.write_text(
        yaml.safe_dump(
            {
                "contexts": [{"name": "other", "context": {"cluster": "far", "user": "v"}}],
                "clusters": [{"name": "far", "cluster": {"server": "http://far"}}],
                "users": [{"name": "v", "user": {"token": "two"}}],
            }
        )
    )
    access = await credentials.load(kubeconfig=f"{first}:{second}", context="other")
    assert (access.server, await access.header()) == ("http://far", "Bearer two")


async def test_a_token_file_is_read_again_when_it_is_refused(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("old\n")
    access = await credentials.load(kubeconfig=write(tmp_path / "k", {"tokenFile": "token"}))
    assert await access.header() == "Bearer old"
    (tmp_path / "token").write_text("new\n")
    assert await access.replace("Bearer old")
    assert await access.header() == "Bearer new"


async def test_a_refused_token_that_is_still_in_the_file_cannot_be_replaced(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("old")
    access = await credentials.load(kubeconfig=write(tmp_path / "k", {"tokenFile": "token"}))
    assert not await access.replace("Bearer old")


async def test_a_token_file_is_looked_at_every_ten_seconds_and_survives_its_absence(tmp_path: Path) -> None:
    now = 0.0
    file = tmp_path / "token"
    file.write_text("one")
    secret = credentials.TokenFile(file, clock=lambda: now)
    await secret.refresh(rejected=False)
    file.write_text("two")
    now = 9.0
    await secret.refresh(rejected=False)
    assert secret.header == "Bearer one"
    now = 10.0
    await secret.refresh(rejected=False)
    assert secret.header == "Bearer two"
    file.unlink()  # a kubelet replaces it by a rename, but others may not
    now = 20.0
    await secret.refresh(rejected=False)
    assert secret.header == "Bearer two"


async def test_an_exec_plugin_gives_the_token_and_is_run_again_when_it_expires(tmp_path: Path) -> None:
    count = tmp_path / "count"
    body = f"""
        n = len(open({str(count)!r}).read()) if os.path.exists({str(count)!r}) else 0
        open({str(count)!r}, "a").write("x")
        print(json.dumps({{"apiVersion": "{V1}", "kind": "ExecCredential",
              "status": {{"token": f"t{{n}}", "expirationTimestamp": {at(3600)!r}}}}}))
    """
    now = 1000.0
    run = ExecPlugin.from_kubeconfig(
        {"command": plugin(tmp_path, body), "apiVersion": V1}, folder=tmp_path, cluster={}, environ=os.environ
    )
    secret = credentials.Plugin(run, now=lambda: now)
    await secret.refresh(rejected=False)
    await secret.refresh(rejected=False)
    assert secret.header == "Bearer t0"
    now = datetime.now(UTC).timestamp() + 3600
    await secret.refresh(rejected=False)
    assert secret.header == "Bearer t1"


async def test_an_exec_plugin_is_run_again_when_its_token_is_refused_but_not_all_the_time(
    tmp_path: Path,
) -> None:
    now = 1000.0
    body = answer(token="same")
    run = ExecPlugin.from_kubeconfig(
        {"command": plugin(tmp_path, body), "apiVersion": V1}, folder=tmp_path, cluster={}, environ=os.environ
    )
    secret = credentials.Plugin(run, now=lambda: now)
    await secret.refresh(rejected=False)
    first = secret.credential
    now += 1.0
    await secret.refresh(rejected=True)
    assert secret.credential is first
    now += 5.0
    await secret.refresh(rejected=True)
    assert secret.credential is not first


async def test_an_exec_plugin_learns_the_cluster_and_its_own_variables(tmp_path: Path) -> None:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    body = f"""
        info = json.loads(os.environ["KUBERNETES_EXEC_INFO"])
        token = "|".join([os.environ["ROLE"], sys.argv[1], info["spec"]["cluster"]["server"],
                          str(len(info["spec"]["cluster"]["certificate-authority-data"]) > 100)])
        print(json.dumps({{"apiVersion": "{V1}", "kind": "ExecCredential", "status": {{"token": token}}}}))
    """
    plugin(tmp_path, body)
    user = {
        "exec": {
            "apiVersion": V1,
            "command": "./plugin",
            "args": ["--x"],
            "env": [{"name": "ROLE", "value": "r"}],
            "provideClusterInfo": True,
        }
    }
    access = await credentials.load(
        kubeconfig=write(tmp_path / "k", user, **{"certificate-authority": "ca.pem"})
    )
    assert await access.header() == "Bearer r|--x|https://api:6443/|True"


async def test_the_certificate_of_an_exec_plugin_is_used_for_tls(tmp_path: Path) -> None:
    certificate = trustme.CA().issue_cert("client")
    chain = b"".join(pem.bytes() for pem in certificate.cert_chain_pems).decode()
    key = certificate.private_key_pem.bytes().decode()
    body = answer(clientCertificateData=chain, clientKeyData=key)
    user = {"exec": {"apiVersion": V1, "command": plugin(tmp_path, body)}}
    access = await credentials.load(kubeconfig=write(tmp_path / "k", user))
    assert await access.header() == ""
    assert access.tls() is access.tls()


@pytest.mark.parametrize(
    ("body", "complaint"),
    [
        ("sys.stderr.write('no such\\n  profile'); sys.exit(3)", "ended with status 3: no such profile"),
        ("print('hello')", "printed no ExecCredential: "),
        (
            "print('{}')",
            'printed kind "" of "" instead of an ExecCredential of "client.authentication.k8s.io/v1"',
        ),
        (answer(), "printed neither a token nor a client certificate"),
        (answer(clientCertificateData="x"), "printed only one of clientCertificateData and clientKeyData"),
    ],
)
async def test_a_failing_exec_plugin_is_an_error_of_one_sentence(
    tmp_path: Path, body: str, complaint: str
) -> None:
    program = plugin(tmp_path, body)
    user = {"exec": {"apiVersion": V1, "command": program}}
    with pytest.raises(ConfigurationError) as caught:
        await credentials.load(kubeconfig=write(tmp_path / "k", user))
    assert str(caught.value).startswith(f"exec plugin {program} {complaint}")
    assert "\n" not in str(caught.value)


async def test_an_exec_plugin_that_is_not_installed_says_how_to_get_it(tmp_path: Path) -> None:
    user = {
        "exec": {"apiVersion": V1, "command": "no-such-program", "installHint": "Install it from example.com"}
    }
    with pytest.raises(ConfigurationError) as caught:
        await credentials.load(kubeconfig=write(tmp_path / "k", user))
    expected = (
        "exec plugin no-such-program cannot be run: No such file or directory. Install it from example.com"
    )
    assert str(caught.value) == expected


async def test_an_exec_plugin_that_hangs_is_given_up_and_killed(tmp_path: Path) -> None:
    program = plugin(
        tmp_path, f"open({str(tmp_path / 'pid')!r}, 'w').write(str(os.getpid())); time.sleep(60)"
    )
    run = ExecPlugin(
        command=program, args=(), env=os.environ, api_version=V1, cluster=None, install_hint="", timeout=1.0
    )
    with pytest.raises(ConfigurationError, match="gave no answer within 1 s"):
        await run.run()
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)


async def test_an_exec_plugin_that_writes_much_to_stderr_does_not_hang(tmp_path: Path) -> None:
    body = "sys.stderr.write('x' * 1_000_000)\n" + answer(token="t")
    user = {"exec": {"apiVersion": V1, "command": plugin(tmp_path, body)}}
    access = await credentials.load(kubeconfig=write(tmp_path / "k", user))
    assert await access.header() == "Bearer t"


@pytest.mark.parametrize(
    ("exec_config", "complaint"),
    [
        ({"command": "x", "apiVersion": "v1alpha1"}, 'apiVersion "v1alpha1" is not supported'),
        ({"command": "x", "apiVersion": V1, "interactiveMode": "Always"}, "wants a terminal"),
        ({"apiVersion": V1}, 'has no "command"'),
    ],
)
async def test_an_exec_plugin_that_we_cannot_run_is_refused(
    tmp_path: Path, exec_config: dict[str, Any], complaint: str
) -> None:
    with pytest.raises(ConfigurationError, match=complaint):
        await credentials.load(kubeconfig=write(tmp_path / "k", {"exec": exec_config}))


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("{", "cannot be used: "),
        ("[]", "cannot be used: "),
        ("{}", "Expected key"),
        ("current-context: c\ncontexts: [{name: d, context: {}}]", "Expected object with name c"),
    ],
)
async def test_a_kubeconfig_that_makes_no_sense_is_named_in_one_sentence(
    tmp_path: Path, text: str, complaint: str
) -> None:
    path = tmp_path / "k"
    path.write_text(text)
    with pytest.raises(ConfigurationError) as caught:
        await credentials.load(kubeconfig=str(path))
    assert str(caught.value).startswith(f"kubeconfig {path}")
    assert complaint in str(caught.value)
    assert "\n" not in str(caught.value)


async def test_a_kubeconfig_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=f"kubeconfig {tmp_path}/none does not exist"):
        await credentials.load(kubeconfig=f"{tmp_path}/none")


async def test_outside_of_a_cluster_a_kubeconfig_is_asked_for() -> None:
    with pytest.raises(ConfigurationError, match=r"not running in a cluster .* give --kubeconfig"):
        await credentials.load(environ={})


@pytest.mark.parametrize("missing", ["token", "ca.crt"])
@pytest.mark.parametrize("how", ["is absent", "is empty"])
async def test_a_service_account_that_is_not_whole_is_told_by_the_file_that_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, missing: str, how: str
) -> None:
    for name in ("token", "ca.crt"):
        (tmp_path / name).write_text("something")
    if how == "is absent":
        (tmp_path / missing).unlink()
    else:
        (tmp_path / missing).write_text("\n")
    monkeypatch.setattr(credentials, "SERVICE_ACCOUNT", tmp_path)
    environ = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "KUBERNETES_SERVICE_PORT": "443"}
    with pytest.raises(ConfigurationError, match=f"not running in a cluster .*/{missing} "):
        await credentials.load(environ=environ)


def test_in_a_cluster_the_kubernetes_package_is_not_loaded() -> None:
    services = "admission.service, updater.service, recommender.service"
    code = f"import sys, {services}; print('kubernetes' in sys.modules)"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert said.stdout == "False\n"


async def test_in_a_cluster_the_service_account_is_used_and_its_token_re_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trustme.CA().cert_pem.write_to_path(tmp_path / "ca.crt")
    (tmp_path / "token").write_text("mounted")
    monkeypatch.setattr(credentials, "SERVICE_ACCOUNT", tmp_path)
    environ = {"KUBERNETES_SERVICE_HOST": "fd00::1", "KUBERNETES_SERVICE_PORT": "443"}
    access = await credentials.load(environ=environ)
    assert (access.server, await access.header()) == ("https://[fd00::1]:443", "Bearer mounted")
    (tmp_path / "token").write_text("rotated")
    assert await access.replace("Bearer mounted")
    assert await access.header() == "Bearer rotated"


async def test_a_rotated_certificate_makes_a_new_tls_context_and_a_broken_one_keeps_the_old(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    now = 0.0
    trustme.CA().cert_pem.write_to_path(tmp_path / "ca.pem")
    loaded = await credentials.load(
        kubeconfig=write(tmp_path / "k", {}, **{"certificate-authority": "ca.pem"})
    )
    access = credentials.Credentials(loaded._access, loaded._secret, clock=lambda: now)
    first = access.tls()
    trustme.CA().cert_pem.write_to_path(tmp_path / "ca.pem", append=True)
    now = 11.0
    second = access.tls()
    assert second is not first
    (tmp_path / "ca.pem").write_text("half a certif")
    now = 22.0
    assert access.tls() is second
    assert "cannot be loaded, the old ones stay" in caplog.text


async def test_the_older_form_for_google_is_still_read(tmp_path: Path) -> None:
    config = {"access-token": "g", "expiry": "2100-01-01T00:00:00Z"}
    user = {"auth-provider": {"name": "gcp", "config": config}}
    access = await credentials.load(kubeconfig=write(tmp_path / "k", user))
    assert await access.header() == "Bearer g"
