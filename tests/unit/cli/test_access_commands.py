"""`holdfast auth init`, `token` and `issuer`, run as a user runs them."""

from __future__ import annotations

import base64
import json
import os
import shutil
import stat
import subprocess
import time
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result
from nacl.signing import SigningKey

from holdfast.cli.access.issuer import parse_public_key
from holdfast.cli.access.new_file import new_file
from holdfast.cli.cluster.nats_binary import find_nats_server
from holdfast.cli.command import holdfast
from holdfast.cli.quantities import parse_byte_rate, parse_bytes, parse_rate, parse_seconds
from holdfast.protocol.access.rights import ALL_RIGHTS, Right
from holdfast.protocol.access.tokens import Token, new_token, sign_token
from holdfast.protocol.errors import InvalidArgumentError
from holdfast.shared_fs.access.audit_outbox import AuditOutbox
from holdfast.shared_fs.access.registry import verified
from holdfast.shared_fs.access.set_up import registry_on_disk
from holdfast.shared_fs.bucket.bucket import open_bucket

ACME = ("token", "create", "--tenant", "acme", "--stores", "project.42.*", "--allow", "read,write")


def run(*arguments: str, stdin: str | None = None) -> Result:
    return CliRunner().invoke(holdfast, list(arguments), input=stdin, prog_name="holdfast")


def done(*arguments: str, stdin: str | None = None) -> str:
    result = run(*arguments, stdin=stdin)
    assert result.exit_code == 0, result.stderr
    return result.stdout


def printed(*arguments: str, stdin: str | None = None) -> Any:
    return json.loads(done(*arguments, "--json", stdin=stdin))


@pytest.fixture
def data(tmp_path: Path) -> str:
    """A cluster that has been set up."""
    folder = str(tmp_path / "data")
    done("auth", "init", "--data", folder)
    return folder


def in_registry(data: str, text: str) -> Token:
    registry = registry_on_disk(Path(data))
    try:
        token = verified(text, registry.issuers())
        assert registry.token_text(token.id) == text
        return token
    finally:
        registry.close()


def test_keys_and_registry_are_for_their_user_alone(data: str) -> None:
    root = Path(data)
    made = [root, *(root / "keys").rglob("*"), *(root / "auth").rglob("*")]
    assert {path.name for path in (root / "keys").iterdir()} == {
        *("account.nkey", "auth.nkey", "callout.xkey", "issuer.key", "servers.nkey"),
        *("reports.nkey", "system.nkey"),
    }
    for path in made:
        mode = stat.S_IMODE(path.stat().st_mode)
        assert mode == (0o700 if path.is_dir() else 0o600), path


def test_setting_up_twice_overwrites_nothing(data: str) -> None:
    before = {path: path.read_bytes() for path in Path(data, "keys").iterdir()}
    result = run("auth", "init", "--data", data)
    assert result.exit_code == 1
    assert "nothing is overwritten" in result.stderr
    other = run("auth", "init", "--data", data, "--keys", f"{data}/other")
    assert other.exit_code == 2
    assert not Path(data, "other").exists()
    assert before == {path: path.read_bytes() for path in Path(data, "keys").iterdir()}


@pytest.mark.parametrize(
    ("name", "subject"), [("system", ".KICK"), ("reports", "hf._.coord.report")]
)
def test_set_up_adds_a_key_that_an_older_version_did_not_make(
    data: str, name: str, subject: str
) -> None:
    key = Path(data, "keys", f"{name}.nkey")
    before = {path: path.read_bytes() for path in key.parent.iterdir() if path != key}
    key.unlink()
    assert subject not in done("nats-config", "--data", data)
    assert printed("auth", "init", "--data", data)["public_keys"][name][0] == "U"
    assert subject in done("nats-config", "--data", data)
    assert before == {path: path.read_bytes() for path in before}
    assert stat.S_IMODE(key.stat().st_mode) == 0o600


def test_an_interrupted_set_up_is_resumed(data: str, tmp_path: Path) -> None:
    keys = str(Path(data, "keys"))
    new = str(tmp_path / "new")
    made = printed("auth", "init", "--data", new, "--keys", keys)
    assert made["keys"] == keys
    assert in_registry(new, done(*ACME, "--data", new, "--keys", keys).strip()).tenant == "acme"


def test_set_up_prints_public_keys_alone(tmp_path: Path) -> None:
    result = run("auth", "init", "--data", str(tmp_path / "data"), "--json")
    keys = json.loads(result.stdout)["public_keys"]
    assert {name: key[0] for name, key in keys.items()} == {
        "account": "A",
        "callout": "X",
        "auth": "U",
        "servers": "U",
        "system": "U",
        "reports": "U",
    }
    for file in (tmp_path / "data" / "keys").iterdir():
        assert file.read_text() not in result.output


def test_keys_that_others_can_read_are_refused(data: str) -> None:
    Path(data, "keys", "issuer.key").chmod(0o644)
    result = run(*ACME, "--data", data)
    assert result.exit_code == 2
    assert "other users may open" in result.stderr


def test_keys_of_another_user_are_taken_as_a_supervisor_mounts_them(
    data: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path(data, "keys", "issuer.key").chmod(0o444)
    monkeypatch.setattr(os, "geteuid", lambda: Path(data).stat().st_uid + 1)
    assert done(*ACME, "--data", data)


def test_a_token_comes_alone_on_stdout_and_is_registered(data: str) -> None:
    limits = ("--rate", "1000/s", "--bytes-per-second", "10MB", "--connections", "10")
    began = int(time.time())
    result = run(*ACME, *limits, "--subject", "ada", "--expires", "2h", "--data", data)
    token = in_registry(data, result.stdout.removesuffix("\n"))
    assert (token.tenant, token.subject, token.stores) == ("acme", "ada", ("project.42.*",))
    assert token.rights == Right.READ | Right.WRITE
    assert token.expires_at is not None
    assert began + 7200 <= token.expires_at <= time.time() + 7200
    assert (token.limits.rate, token.limits.connections) == (1000, 10)
    assert token.limits.bytes_per_second == 10_000_000
    assert token.id in result.stderr
    assert result.stdout.strip() not in result.stderr


def test_a_token_goes_to_a_new_private_file(data: str, tmp_path: Path) -> None:
    out = tmp_path / "op.token"
    result = run(
        "token", "create", "--operator", "--expires", "never", "--out", str(out), "--data", data
    )
    assert result.stdout == ""
    token = in_registry(data, out.read_text().strip())
    assert (token.is_operator, token.rights, token.expires_at) == (True, ALL_RIGHTS, None)
    assert stat.S_IMODE(out.stat().st_mode) == 0o600
    before = out.read_text()
    assert run("token", "create", "--operator", "--out", str(out), "--data", data).exit_code == 2
    assert out.read_text() == before
    assert len(printed("token", "list", "--data", data)["tokens"]) == 1


def test_tokens_are_listed_with_their_states(data: str) -> None:
    valid = printed(*ACME, "--data", data)
    expired = printed(*ACME, "--expires", "1s", "--data", data)
    revoked = printed(*ACME, "--data", data)
    other = printed(
        "token", "create", "--tenant", "zoo", "--stores", ">", "--allow", "all", "--data", data
    )
    assert done("token", "revoke", revoked["id"], "--data", data).startswith("revoked")
    while time.time() < expired["expires"] / 1000:
        time.sleep(0.05)

    def states(*options: str) -> dict[str, str]:
        rows = printed("token", "list", *options, "--data", data)["tokens"]
        return {row["id"]: row["state"] for row in rows}

    of_acme = {valid["id"]: "valid", expired["id"]: "expired", revoked["id"]: "revoked"}
    assert states() == {**of_acme, other["id"]: "valid"}
    assert states("--tenant", "acme") == of_acme
    table = done("token", "list", "--data", data)
    assert all(token_id in table for token_id in states())
    assert not any(each["token"] in table for each in (valid, expired, revoked, other))


def test_a_token_is_shown_and_revoked_by_id_or_file(data: str, tmp_path: Path) -> None:
    text = done(*ACME, "--data", data)
    shown = printed("token", "show", "--file", "-", "--data", data, stdin=text)
    assert printed("token", "show", shown["id"], "--data", data) == shown
    assert "project.42.*" in done("token", "show", shown["id"], "--data", data)
    file = tmp_path / "token"
    file.write_text(text)
    assert printed("token", "revoke", "--file", str(file), "--data", data)["state"] == "revoked"
    assert printed("token", "show", shown["id"], "--data", data)["state"] == "revoked"


@pytest.mark.parametrize("command", ["show", "revoke"])
def test_a_token_is_not_taken_from_the_command_line(data: str, command: str) -> None:
    text = done(*ACME, "--data", data).strip()
    result = run("token", command, text, "--data", data)
    assert result.exit_code == 2
    assert "secret" in result.stderr
    assert text not in result.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ("token", "create", "--stores", ">"),
        ("token", "create", "--allow", "read"),
        (*ACME[:-1], "reed"),
        (*ACME, "--expires", "30"),
        (*ACME, "--expires", "0d"),
        (*ACME, "--rate", "fast"),
        (*ACME, "--tenant", "a.b"),
        ("token", "show"),
        ("token", "show", "a" * 32, "--file", "-"),
        ("nats-config", "--inbox-prefix", "_REPLIES._.own"),
        ("nats-config", "--inbox-prefix", "hf"),
    ],
)
def test_wrong_usage_creates_nothing(data: str, arguments: tuple[str, ...]) -> None:
    assert run(*arguments, "--data", data).exit_code == 2
    assert printed("token", "list", "--data", data) == {"tokens": []}


def test_nats_server_accepts_both_configurations(data: str, tmp_path: Path) -> None:
    tokens = [
        done(*ACME, "--data", data).strip(),
        done(*ACME, "--subject", 'a "quote" \\ and $dollar', "--data", data).strip(),
        done("token", "create", "--operator", "--data", data).strip(),
    ]
    revoked = done(*ACME, "--data", data).strip()
    done("token", "revoke", "--file", "-", "--data", data, stdin=revoked)
    for kind in ("--callout", "--static"):
        file = tmp_path / f"nats{kind}.conf"
        prefixes = ("--prefix", "my.prefix", "--inbox-prefix", "_REPLIES")
        done("nats-config", kind, "--out", str(file), *prefixes, "--data", data)
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        command = [str(find_nats_server()), "-t", "-c", str(file)]
        checked = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
        assert checked.returncode == 0, checked.stderr
        text = file.read_text()
        assert "my.prefix." in text and '"hf.' not in text
        assert '"_REPLIES.' in text and '"_INBOX.' not in text
        assert [each in text for each in (*tokens, revoked)] == [kind == "--static"] * 3 + [False]
        for secret in Path(data, "keys").iterdir():
            assert secret.read_text() not in text


def test_what_is_not_there_is_said(data: str, tmp_path: Path) -> None:
    for arguments in (ACME, ("token", "list"), ("issuer", "list")):
        assert run(*arguments).exit_code == 2
        assert run(*arguments, "--data", data, "--bucket", "file:///x").exit_code == 2
    for arguments in (("token", "list"), ("issuer", "list")):
        result = run(*arguments, "--data", str(tmp_path / "nothing"))
        assert result.exit_code == 1
        assert "holdfast auth init" in result.stderr
        assert not (tmp_path / "nothing").exists()
    assert run("token", "revoke", "a" * 32, "--data", data).exit_code == 1


def test_a_cluster_in_a_bucket_has_its_registry_there(tmp_path: Path) -> None:
    bucket, keys = ("--bucket", (tmp_path / "b").as_uri()), ("--keys", str(tmp_path / "keys"))
    assert run("auth", "init", *bucket).exit_code == 2
    done("auth", "init", *bucket, *keys)
    text = done(*ACME, *bucket, *keys)
    [row] = printed("token", "list", *bucket)["tokens"]
    assert printed("token", "show", "--file", "-", *bucket, stdin=text) == row
    assert {path.name for path in (tmp_path / "b" / "objects").iterdir()} == {"auth", "audit"}
    outbox = AuditOutbox(open_bucket((tmp_path / "b").as_uri()))
    assert len(list(outbox.waiting())) == 2


def test_what_commands_do_waits_for_the_audit_log_without_any_secret(
    data: str, tmp_path: Path
) -> None:
    text = done(*ACME, "--subject", "ada", "--data", data).strip()
    token = in_registry(data, text)
    done("token", "revoke", token.id, "--data", data)
    file = tmp_path / "public"
    file.write_text(base64.b64encode(bytes(SigningKey(bytes(32)).verify_key)).decode())
    options = ("--public-key-file", str(file), "--tenants", "zoo", "--data", data)
    done("issuer", "add", "sso", *options)
    assert run("issuer", "add", "sso", *options).exit_code == 2
    outbox = AuditOutbox(None, Path(data) / "audit")
    events = [event for key in outbox.waiting() for event in outbox.events(key)]
    assert [event.action for event in events] == [
        *("access.set_up", "token.created", "token.revoked", "issuer.added")
    ]
    for event in events[1:3]:
        assert event.details["token"] == token.id
        assert event.details["subject"] == "ada"
        assert event.tenant == "acme"
    assert all(event.user and event.host for event in events)
    assert events[1].process == "holdfast token create"
    everything = str(events)
    for secret in (text, *text.split(".")[1:], (Path(data) / "keys/issuer.key").read_text()):
        assert secret not in everything


def test_a_log_that_cannot_be_told_is_no_failure_of_the_command(data: str) -> None:
    outbox = Path(data) / "audit"
    shutil.rmtree(outbox)
    outbox.write_text("in the way")
    result = run(*ACME, "--data", data)
    assert result.exit_code == 0
    assert "the audit log was not told of this" in result.stderr


def test_no_token_issuer_or_quota_is_for_the_system_tenant(data: str, tmp_path: Path) -> None:
    file = tmp_path / "public"
    file.write_text(base64.b64encode(bytes(SigningKey(bytes(32)).verify_key)).decode())
    for command in (
        ("token", "create", "--tenant", "_system", "--stores", ">", "--allow", "read"),
        ("issuer", "add", "sso", "--public-key-file", str(file), "--tenants", "_system"),
        ("tenant", "set", "_system", "--max-stores", "1"),
    ):
        result = run(*command, "--data", data)
        assert result.exit_code == 2, command
        assert "_system" in result.stderr
    assert run("tenant", "destroy", "_system", "--yes").exit_code == 2


def test_tokens_of_a_registered_issuer_are_verified(data: str, tmp_path: Path) -> None:
    key = SigningKey(bytes(32))
    file = tmp_path / "public"
    file.write_text(base64.b64encode(bytes(key.verify_key)).decode() + "\n")
    add = ("issuer", "add", "sso", "--public-key-file", str(file), "--data", data)
    added = printed(*add, "--tenants", "acme,zoo")
    assert added["tenants"] == ["acme", "zoo"]
    assert run(*add, "--tenants", "*").exit_code == 2
    assert added in printed("issuer", "list", "--data", data)["issuers"]
    assert "acme zoo" in done("issuer", "list", "--data", data)

    def shown(tenant: str) -> Result:
        made = new_token(issuer="sso", tenant=tenant, stores=[">"], rights=Right.READ, created_at=0)
        stdin = sign_token(made, key)
        return run("token", "show", "--file", "-", "--data", data, stdin=stdin)

    assert shown("zoo").exit_code == 0
    assert shown("farm").exit_code == shown("*").exit_code == 1


def test_a_public_key_is_read_as_pem_or_base64() -> None:
    key = bytes(SigningKey(bytes(32)).verify_key)
    der = base64.b64encode(bytes.fromhex("302a300506032b6570032100") + key).decode()
    pem = f"-----BEGIN PUBLIC KEY-----\n{der}\n-----END PUBLIC KEY-----\n"
    assert parse_public_key(pem) == parse_public_key(base64.b64encode(key).decode()) == key
    for wrong in ("", "x", der, pem.replace("MCow", "MDow"), pem[:-5], pem[1:]):
        with pytest.raises(InvalidArgumentError):
            parse_public_key(wrong)


def test_amounts_have_units() -> None:
    assert (parse_seconds("90s"), parse_seconds("1.5h"), parse_seconds("2w")) == (90, 5400, 1209600)
    assert (parse_bytes("10MB"), parse_bytes("1KiB"), parse_bytes("7")) == (10_000_000, 1024, 7)
    assert (parse_byte_rate("1KB/s"), parse_rate("1000/s"), parse_rate("5")) == (1000, 1000, 5)
    for parse, wrong in (
        *((parse_seconds, each) for each in ("90", "-1s", "s", "1y", "", "1d/s")),
        *((parse_bytes, each) for each in ("0", "1PB", "1MB/s", "1e3", "1" * 20)),
        *((parse_rate, each) for each in ("0", "1KB", "1000/m", "ten")),
    ):
        with pytest.raises(click.BadParameter):
            parse(wrong)


def test_a_tenant_that_is_given_counts_even_if_it_is_the_default_one(tmp_path: Path) -> None:
    token = new_token(issuer="x", tenant="acme", stores=[">"], rights=ALL_RIGHTS, created_at=0)
    file = tmp_path / "token"
    file.write_text(sign_token(token, SigningKey.generate()))
    # Nobody listens there: without a tenant it is NATS that is missing, not the right one.
    nowhere = ("--nats", "nats://127.0.0.1:1", "--timeout", "0.2", "--token-file", str(file))
    for tenant in ("default", "umbrella"):
        refused = run("stream", "ls", "--tenant", tenant, *nowhere)
        assert refused.exit_code != 0
        assert f"'{tenant}' contradicts the token, which is for 'acme'" in refused.output
    for given in ((), ("--tenant", "acme")):
        assert "cannot reach NATS" in run("stream", "ls", *given, *nowhere).output


def test_a_file_that_exists_is_not_written_over_by_a_secret(tmp_path: Path) -> None:
    path = tmp_path / "my.token"
    path.write_text("needed")
    with pytest.raises(InvalidArgumentError, match="name a new file"), new_file(path):
        pass
    assert path.read_text() == "needed"
