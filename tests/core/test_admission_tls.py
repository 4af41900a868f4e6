"""TLS of the webhook: versions, ciphers, and key pairs that are replaced while it serves."""

from __future__ import annotations

import asyncio
import logging
import os
import ssl
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trustme

from admission import files, tls
from admission.files import CertificateFiles
from admission.settings import Certificates
from admission.tls import CertificateError

CA = trustme.CA(key_type=trustme.KeyType.ECDSA)


def pair(name: str = "localhost", *, authority: trustme.CA = CA) -> tuple[bytes, bytes]:
    issued = authority.issue_cert(name, key_type=trustme.KeyType.ECDSA)
    return b"".join(blob.bytes() for blob in issued.cert_chain_pems), issued.private_key_pem.bytes()


@asynccontextmanager
async def serving(context: ssl.SSLContext) -> AsyncIterator[int]:
    async def close(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    server = await asyncio.start_server(close, "127.0.0.1", 0, ssl=context)
    async with server:
        yield server.sockets[0].getsockname()[1]


async def handshake(port: int, **limits: ssl.TLSVersion) -> ssl.SSLObject:
    """A connection's TLS state."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    CA.configure_trust(context)
    for name, version in limits.items():
        setattr(context, name, version)
    _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context, server_hostname="localhost")
    found: ssl.SSLObject = writer.get_extra_info("ssl_object")
    writer.close()
    await writer.wait_closed()
    return found


async def test_tls_1_2_and_1_3_are_spoken_unless_the_flags_say_otherwise() -> None:
    for flag, oldest in (("", "TLSv1.2"), ("tls1_2", "TLSv1.2"), ("tls1_3", "TLSv1.3")):
        context = tls.server_context(Certificates(min_tls_version=flag))
        tls.load(context, *pair())
        async with serving(context) as port:
            assert (await handshake(port)).version() == "TLSv1.3"
            if oldest == "TLSv1.2":
                found = await handshake(port, maximum_version=ssl.TLSVersion.TLSv1_2)
                assert found.version() == "TLSv1.2"
            else:
                with pytest.raises((ssl.SSLError, ConnectionError)):
                    await handshake(port, maximum_version=ssl.TLSVersion.TLSv1_2)


async def test_ciphers_are_chosen_by_their_go_names_and_unknown_ones_ignored() -> None:
    name = "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384"
    for flag in (f"TLS_NO_SUCH,{name}", f"{name}:TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA"):
        context = tls.server_context(Certificates(tls_ciphers=flag))
        tls.load(context, *pair())
        async with serving(context) as port:
            cipher = (await handshake(port, maximum_version=ssl.TLSVersion.TLSv1_2)).cipher()
            assert cipher is not None
            assert cipher[0] == "ECDHE-ECDSA-AES256-GCM-SHA384"


def test_without_a_known_cipher_the_usual_ones_are_used() -> None:
    usual = tls.server_context(Certificates()).get_ciphers()
    assert tls.server_context(Certificates(tls_ciphers="TLS_NO_SUCH,other")).get_ciphers() == usual


async def test_a_pair_that_is_none_leaves_the_old_one_in_service() -> None:
    context = tls.server_context(Certificates())
    certificate, key = pair()
    tls.load(context, certificate, key)
    for wrong in ((pair()[0], key), (certificate, b"no key"), (b"no certificate", key)):
        with pytest.raises(CertificateError, match="are no pair that can be served"):
            tls.load(context, *wrong)
    async with serving(context) as port:
        served = (await handshake(port)).getpeercert(binary_form=True)
        assert served == ssl.PEM_cert_to_DER_cert(certificate.decode())


async def test_an_open_connection_outlives_a_new_certificate() -> None:
    context = tls.server_context(Certificates())
    tls.load(context, *pair())

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while line := await reader.readline():
            writer.write(line)

    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    CA.configure_trust(client)
    server = await asyncio.start_server(echo, "127.0.0.1", 0, ssl=context)
    port = server.sockets[0].getsockname()[1]
    reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=client, server_hostname="localhost")
    tls.load(context, *pair())
    writer.write(b"still here\n")
    assert await reader.readline() == b"still here\n"
    writer.close()
    await writer.wait_closed()
    server.close()
    await server.wait_closed()


def test_keys_touch_no_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    def forbidden(*_: object, **__: object) -> None:
        raise AssertionError("a file was made")

    monkeypatch.setattr(tempfile, "NamedTemporaryFile", forbidden)
    tls.load(tls.server_context(Certificates()), *pair())


def test_where_files_in_memory_do_not_exist_others_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "memfd_create", raising=False)
    tls.load(tls.server_context(Certificates()), *pair())


class Folder:
    """Certificate files, and what is published of them."""

    def __init__(self, path: Path, *, reload: bool = True) -> None:
        self.path = path
        self.published: list[str] = []
        self.accepting = True
        self.write(pair())
        (path / "ca").write_bytes(CA.cert_pem.bytes())
        self.context = tls.server_context(Certificates())
        settings = Certificates(
            tls_cert_file=str(path / "cert"),
            tls_private_key=str(path / "key"),
            client_ca_file=str(path / "ca"),
            reload_cert=reload,
        )
        self.files = CertificateFiles(settings, self.context)
        self.files.load()

    def write(self, pair: tuple[bytes, bytes]) -> None:
        (self.path / "cert").write_bytes(pair[0])
        (self.path / "key").write_bytes(pair[1])

    async def publish(self, bundle: str) -> bool:
        self.published.append(bundle)
        return self.accepting

    @asynccontextmanager
    async def kept(self, publish: Callable[[str], Awaitable[bool]] | None = None) -> AsyncIterator[None]:
        task = asyncio.create_task(self.files.keep(publish or self.publish))
        await asyncio.sleep(0.02)
        yield
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> Folder:
    monkeypatch.setattr(files, "LOOK", 0.005)
    caplog.set_level(logging.INFO)
    return Folder(tmp_path)


async def eventually(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110 - files have no events
            await asyncio.sleep(0.005)


async def test_a_new_pair_is_served_once_both_halves_are_there(
    folder: Folder, caplog: pytest.LogCaptureFixture
) -> None:
    certificate, key = pair()
    async with folder.kept():
        (folder.path / "cert").write_bytes(certificate)
        await eventually(lambda: "The old certificate stays" in caplog.text)
        (folder.path / "key").write_bytes(key)
        await eventually(lambda: caplog.text.count("New certificate found, reloading") == 2)
    async with serving(folder.context) as port:
        served = (await handshake(port)).getpeercert(binary_form=True)
        assert served == ssl.PEM_cert_to_DER_cert(certificate.decode())


async def test_a_new_ca_is_published_until_that_works(folder: Folder) -> None:
    folder.accepting = False
    async with folder.kept():
        assert folder.published == []
        (folder.path / "ca").write_bytes(trustme.CA().cert_pem.bytes())
        await eventually(lambda: len(folder.published) > 2)
        folder.accepting = True
        count = len(folder.published)
        await eventually(lambda: len(folder.published) > count)
        count = len(folder.published)
        await asyncio.sleep(0.05)
        assert len(folder.published) == count
    assert set(folder.published) == {folder.files.bundle}


async def test_files_that_are_missing_for_a_moment_do_no_harm(folder: Folder) -> None:
    async with folder.kept():
        for name in ("cert", "key", "ca"):
            (folder.path / name).unlink()
        await asyncio.sleep(0.05)
        folder.write(pair())
        (folder.path / "ca").write_bytes(CA.cert_pem.bytes())
        await eventually(lambda: folder.published)
    async with serving(folder.context) as port:
        await handshake(port)


async def test_without_the_flag_nothing_is_read_again(tmp_path: Path) -> None:
    folder = Folder(tmp_path, reload=False)
    async with asyncio.timeout(1):
        await folder.files.keep(folder.publish)


def test_missing_files_are_named_with_what_to_do(tmp_path: Path) -> None:
    settings = Certificates(tls_cert_file=str(tmp_path / "none"), client_ca_file=str(tmp_path / "none"))
    found = CertificateFiles(settings, tls.server_context(settings))
    with pytest.raises(
        CertificateError, match="mount the certificate there, or give --generate-certificates"
    ):
        found.load()
    assert found.bundle == ""
