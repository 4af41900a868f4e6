"""Proxies as Go programs read them from the environment."""

from __future__ import annotations

import pytest

from vpa.cluster.errors import ConfigurationError
from vpa.cluster.proxies import checked, from_environment

PROXY = "http://proxy:3128"


@pytest.mark.parametrize(
    ("url", "no_proxy", "direct"),
    [
        ("https://10.222.0.1:443", "", False),
        ("https://10.222.0.1:443", "10.0.0.0/8,192.168.0.0/16", True),
        ("https://11.0.0.1:443", "10.0.0.0/8", False),
        ("https://10.222.0.1", "10.222.0.1", True),
        ("https://[fd00::1]:6443", "fd00::/8", True),
        ("https://api.example.com", "example.com", True),
        ("https://api.example.com", ".example.com", True),
        ("https://api.example.com", "*.example.com", True),
        ("https://example.com", ".example.com", False),
        ("https://badexample.com", "example.com", False),
        ("https://api.example.com:6443", "api.example.com:6443", True),
        ("https://api.example.com:6443", "api.example.com:443", False),
        ("https://api.example.com", "api.example.com:443", True),
        ("https://anything", "*", True),
        ("https://anything", " other , anything ", True),
        ("https://127.0.0.1:6445", "", True),
        ("https://localhost:6445", "", True),
        ("https://api", "10.0.0.0/8", False),
    ],
)
def test_no_proxy_names_hosts_domains_networks_and_ports(url: str, no_proxy: str, direct: bool) -> None:
    found = from_environment(url, {"HTTPS_PROXY": PROXY, "NO_PROXY": no_proxy})
    assert found == (None if direct else PROXY)


def test_without_a_proxy_the_connection_is_direct() -> None:
    assert from_environment("https://api", {"HTTP_PROXY": PROXY}) is None


def test_lower_case_names_count_and_a_bare_host_is_an_http_proxy() -> None:
    assert from_environment("https://api", {"https_proxy": "proxy:3128"}) == PROXY


def test_a_proxy_that_we_cannot_speak_to_is_refused_without_showing_its_password() -> None:
    with pytest.raises(ConfigurationError) as caught:
        checked("socks5://user:secret@proxy:1080")
    assert (
        str(caught.value)
        == 'proxy "socks5://proxy:1080" is of the unsupported type "socks5"; use an http proxy'
    )
