"""Where the HTTP gateway of `holdfast up` listens."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
from click.testing import CliRunner

from holdfast.cli.cluster import http_part
from holdfast.cli.cluster.cluster import ClusterOptions
from holdfast.cli.cluster.http_part import HttpAddress, HttpPortInUseError, login_of_gateway
from holdfast.cli.command import holdfast
from holdfast.cli.commands import up


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("127.0.0.1:80", "http://127.0.0.1:80"),
        (":4280", "http://127.0.0.1:4280"),
        ("0.0.0.0:4280", "http://127.0.0.1:4280"),
        ("[::]:4280", "http://[::1]:4280"),
        ("example.org:4280", "http://example.org:4280"),
    ],
)
def test_an_address_has_the_url_by_which_this_machine_reaches_it(text: str, url: str) -> None:
    assert HttpAddress.parse(text).url == url


@pytest.mark.parametrize("text", ["here", "127.0.0.1", "127.0.0.1:", "127.0.0.1:70000", "x:²"])
def test_other_text_is_no_address(text: str) -> None:
    with pytest.raises(ValueError, match="HOST:PORT"):
        HttpAddress.parse(text)


def test_a_port_that_is_taken_is_refused_only_if_it_was_asked_for() -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        taken = other.getsockname()[1]
        found = HttpAddress(port=taken, is_default=True).found_free()
        assert found.port not in (0, taken)
        with pytest.raises(HttpPortInUseError) as refused:
            HttpAddress(port=taken).found_free()
    assert refused.value.fields["port"] == taken
    assert HttpAddress(port=0).found_free().port
    with pytest.raises(HttpPortInUseError):
        HttpAddress("192.0.2.1").found_free()


def test_where_clients_need_tokens_the_gateway_has_no_rights_of_its_own() -> None:
    login = {"nats-nkey": "servers.nk", "nats-creds": "a.creds", "tls-ca": "ca.pem"}
    assert login_of_gateway(login, with_tokens=False) == login
    assert login_of_gateway(login, with_tokens=True) == {"tls-ca": "ca.pem"}


def test_without_its_packages_only_a_gateway_that_was_asked_for_is_missed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    started: list[ClusterOptions] = []

    async def run(options: ClusterOptions, *, as_json: bool) -> None:
        started.append(options)

    monkeypatch.setattr(up, "_run", run)
    monkeypatch.setattr(http_part, "_PACKAGES", ("no_such_package_at_all",))
    usual = CliRunner().invoke(holdfast, ["up", "--data", str(tmp_path)])
    assert usual.exit_code == 0
    assert "needs no_such_package_at_all: pip install" in usual.stderr
    assert started[0].http is None
    asked = CliRunner().invoke(holdfast, ["up", "--data", str(tmp_path), "--http", ":80"])
    assert asked.exit_code == 2
    assert "needs no_such_package_at_all: pip install" in asked.stderr
    assert len(started) == 1
