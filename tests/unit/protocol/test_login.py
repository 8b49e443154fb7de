"""How files of a login are judged before they are used."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

import nats.errors
import nkeys
import pytest

from holdfast.protocol.bus import login
from holdfast.protocol.bus.login import LOGIN_OPTIONS, NatsLogin, TlsFiles
from holdfast.protocol.errors import InvalidArgumentError
from tests.support.certificates import TestCa
from tests.support.nats_keys import new_seed, secret_file


@pytest.fixture
def seed() -> str:
    return new_seed(nkeys.PREFIX_BYTE_USER)


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o644, 0o660])
def test_a_secret_that_others_may_open_is_refused_and_the_remedy_named(
    tmp_path: Path, seed: str, mode: int
) -> None:
    path = secret_file(tmp_path / "seed", seed)
    path.chmod(mode)
    with pytest.raises(InvalidArgumentError, match=f"Try: chmod 600 {path}") as caught:
        NatsLogin(nkey=path).nats_options()
    assert seed not in str(caught.value)
    path.chmod(0o400)
    assert NatsLogin(nkey=path).nats_options() == {"nkeys_seed": str(path)}


def test_a_secret_of_another_user_is_not_judged(
    tmp_path: Path, seed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = secret_file(tmp_path / "seed", seed)
    path.chmod(0o440)
    other = os.geteuid() + 1
    monkeypatch.setattr(login.os, "geteuid", lambda: other)
    NatsLogin(nkey=path).nats_options()


def test_the_key_of_a_client_certificate_is_a_secret(tmp_path: Path) -> None:
    cert, key = TestCa(tmp_path).signed("client")
    together = secret_file(tmp_path / "both.pem", cert.read_text() + key.read_text())
    for files in (TlsFiles(cert=cert, key=key), TlsFiles(cert=together)):
        files.context()
    for secret, files in (
        (key, TlsFiles(cert=cert, key=key)),
        (together, TlsFiles(cert=together)),
    ):
        secret.chmod(0o644)
        with pytest.raises(InvalidArgumentError, match="chmod 600"):
            files.context()
    cert.chmod(0o644)
    key.chmod(0o600)
    TlsFiles(cert=cert, key=key).context()


def test_files_of_tls_that_cannot_be_used_are_named(tmp_path: Path) -> None:
    ca = TestCa(tmp_path)
    (cert, key), (_, other_key) = ca.signed("one"), ca.signed("two")
    for files, named in (
        (TlsFiles(ca=tmp_path / "none"), "none"),
        (TlsFiles(ca=key), "one.key"),
        (TlsFiles(cert=cert, key=other_key), "two.key"),
        (TlsFiles(cert=cert, key=tmp_path / "none"), "none"),
    ):
        with pytest.raises(InvalidArgumentError, match=named):
            files.context()
    with pytest.raises(InvalidArgumentError, match="needs its certificate"):
        TlsFiles(key=key)


@pytest.mark.parametrize(
    "content", ["", "SU", "SUAGARBLED", "no seed", "{seed}\n{seed}", "X{seed}"]
)
def test_what_is_no_seed_is_refused_and_not_shown(tmp_path: Path, seed: str, content: str) -> None:
    path = secret_file(tmp_path / "seed", content.format(seed=seed))
    with pytest.raises(InvalidArgumentError) as caught:
        NatsLogin(nkey=path).nats_options()
    assert seed not in str(caught.value)


def test_a_credentials_file_that_is_being_replaced_costs_one_try(tmp_path: Path, seed: str) -> None:
    content = (
        f"-----BEGIN NATS USER JWT-----\na.b.c\n------END NATS USER JWT------\n\n"
        f"-----BEGIN USER NKEY SEED-----\n{seed}\n------END USER NKEY SEED------\n"
    )
    path = secret_file(tmp_path / "acme.creds", content)
    options = NatsLogin(credentials=path).nats_options()
    assert options["user_jwt_cb"]() == b"a.b.c"
    first = options["signature_cb"]("nonce")
    secret_file(path, "")
    for callback, arguments in (("user_jwt_cb", ()), ("signature_cb", ("nonce",))):
        with pytest.raises(nats.errors.Error, match="not a NATS credentials file") as caught:
            options[callback](*arguments)
        assert seed not in str(caught.value)
    secret_file(path, content.replace("a.b.c", "d.e.f"))
    assert options["user_jwt_cb"]() == b"d.e.f"
    assert options["signature_cb"]("nonce") == first


def test_without_nkeys_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    for login_of in (
        lambda: NatsLogin(credentials="a"),
        lambda: NatsLogin(nkey="a"),
        lambda: NatsLogin(options={"nkeys_seed_str": "a"}),
    ):
        with pytest.raises(InvalidArgumentError, match=r"\[auth\]"):
            login_of()


def test_a_login_can_be_told_on_a_command_line_and_shows_no_secret(tmp_path: Path) -> None:
    given = {name.replace("-", "_"): tmp_path / name for name in LOGIN_OPTIONS}
    del given["nats_nkey"]
    login_of = NatsLogin.from_options(given)
    assert login_of.to_options() == {
        name: str(tmp_path / name) for name in LOGIN_OPTIONS if name != "nats-nkey"
    }
    assert NatsLogin.from_options({"nats_nkey": "a"}).to_options() == {
        "nats-nkey": str(Path("a").resolve())
    }
    assert NatsLogin.from_options({}) == NatsLogin()
    assert "sesame" not in repr(NatsLogin(options={"password": "sesame", "token": "sesame"}))
