"""Which pages of a browser may use the gateway."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from holdfast.gateway.http.problems import ProblemError
from holdfast.gateway.http.sites import KnownSites, host_name, is_private, parse_origin


def refusal(
    headers: dict[str, str],
    *,
    origins: tuple[str, ...] = (),
    hosts: tuple[str, ...] = (),
    scheme: str = "http",
) -> str | None:
    """The code of the refusal of a request, or None if it is served."""

    async def served(scope: Any, receive: Any, send: Any) -> None:
        return None

    async def unused(*_: Any) -> Any:
        raise AssertionError

    raw = [(name.encode(), text.encode("latin-1")) for name, text in headers.items()]
    scope = {"type": "http", "scheme": scheme, "headers": raw}
    try:
        asyncio.run(KnownSites(served, origins, hosts)(scope, unused, unused))
    except ProblemError as error:
        return error.code
    return None


@pytest.mark.parametrize(
    ("authority", "name"),
    [
        ("LocalHost:8080", "localhost"),
        ("example.org.", "example.org"),
        ("[::1]:80", "::1"),
        ("127.0.0.1", "127.0.0.1"),
        ("", ""),
    ],
)
def test_the_name_of_a_host_is_without_its_port(authority: str, name: str) -> None:
    assert host_name(authority) == name


def test_names_that_nobody_can_buy_are_private() -> None:
    private = ("127.0.0.1", "::1", "10.1.2.3", "localhost", "gateway", "a.localhost", "x.internal")
    assert all(map(is_private, private))
    public = ("evil.example", "127.0.0.1.evil.example", "localhost.evil.example", "1.2.3", "a.b")
    assert not any(map(is_private, public))


def test_a_page_that_gives_its_own_name_the_gateways_address_is_refused() -> None:
    rebound = {"host": "evil.example:8080", "origin": "http://evil.example:8080"}
    assert refusal(rebound) == "host_refused"
    assert refusal({"host": "evil.example"}) == "host_refused"
    # A strange token is refused by the cluster; TLS shows who owns the name.
    assert refusal({**rebound, "authorization": "Bearer x"}) is None
    assert refusal(rebound, scheme="https") is None


def test_names_that_operators_list_are_served() -> None:
    host = {"host": "api.example.org:8080"}
    assert refusal(host, hosts=("API.example.org",)) is None
    assert refusal(host, hosts=("other.example.org",)) == "host_refused"
    assert refusal(host, hosts=("*",)) is None
    assert refusal(host, origins=("https://api.example.org",)) is None
    assert refusal(host, origins=("*",)) is None


def test_pages_of_other_origins_are_refused_also_with_a_token() -> None:
    foreign = {"host": "127.0.0.1:8080", "origin": "https://evil.example"}
    assert refusal(foreign) == "origin_refused"
    assert refusal({**foreign, "authorization": "Bearer x"}) == "origin_refused"
    assert refusal({**foreign, "origin": "null"}) == "origin_refused"
    assert refusal(foreign, origins=("https://evil.example",)) is None
    assert refusal({**foreign, "origin": "http://127.0.0.1:8080"}) is None
    assert refusal({**foreign, "origin": "http://127.0.0.1:9090"}) == "origin_refused"


@pytest.mark.parametrize(
    ("text", "origin"),
    [
        ("*", "*"),
        ("null", "null"),
        ("https://Example.org", "https://example.org"),
        ("https://example.org:443", "https://example.org"),
        ("http://[::1]:80", "http://[::1]"),
        ("http://127.0.0.1:8000", "http://127.0.0.1:8000"),
        ("chrome-extension://abc", "chrome-extension://abc"),
        ("app://.", "app://."),
    ],
)
def test_an_origin_is_taken_as_browsers_write_it(text: str, origin: str) -> None:
    assert parse_origin(text) == origin


@pytest.mark.parametrize(
    "text",
    [
        *("example.org", "https://", "://x", "https://example.org/", "https://example.org/page"),
        *("https://example.org:x", "https://ada@example.org", "https://example.org?q", ""),
        *("https://*.example.org", "https://m\u00fcnchen.example", "http://a b", "https://a:"),
        *("https://a:65536", "http://[::1", " https://a", "1://a"),
    ],
)
def test_what_no_browser_sends_as_an_origin_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        parse_origin(text)
