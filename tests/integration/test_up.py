"""`holdfast up`: starts everything, keeps it running, refuses what cannot work, leaves nothing."""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import signal
import socket
import subprocess
import sys
from collections.abc import Collection, Sequence
from functools import partial
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.parse import quote
from urllib.request import Request, urlopen

import pytest

from holdfast.client.sync import connect
from holdfast.protocol.access.rights import ALL_RIGHTS
from holdfast.protocol.access.tokens import read_token
from holdfast.protocol.bus.bus_nats import connect_nats
from holdfast.protocol.bus.login import NatsLogin
from holdfast.protocol.errors import ConnectionFailedError
from tests.support.certificates import TestCa
from tests.support.environment import environment_of, few_cores, timer_slack_ns_of
from tests.support.holdfast_up import (
    DEADLINE_SECONDS,
    RunningUp,
    call_holdfast,
    is_running,
    run_holdfast,
    running_up,
    started_holdfast,
    wait_until,
)
from tests.support.nats_server import running_nats_server

_PASSWORD = "p@ss:w/ö%"


def pids_of(cluster: RunningUp) -> list[int]:
    pids = [pid for pid in cluster.pids().values() if pid is not None]
    assert len(pids) == 4
    return pids


def test_up_stops_cleanly_and_goes_on_later_with_all_data(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with running_up(data, "--verbose") as cluster:
        assert cluster.live_servers() == {"s1", "s2"}
        for number in range(3):
            cluster.output("stream", "append", "notes", f"message {number}")
        cluster.output("kv", "set", "settings", "theme", "dark")
        pids = pids_of(cluster)
        assert cluster.stop(signal.SIGINT) == 0
        assert not any(map(is_running, pids))
        assert not (data / "run" / "cluster.json").exists()
        assert "killed" not in cluster.stderr
        assert "s1 | " in cluster.stderr
    logs = {path.name: path.read_text() for path in (data / "run").glob("*.log")}
    assert set(logs) == {"nats-server.log", "coordinator.log", "s1.log", "s2.log"}
    assert "server.started" in logs["s1.log"]
    with running_up(data, "--servers", "1") as cluster:
        assert cluster.output("stream", "read", "notes", "--raw") == "message 0message 1message 2"
        assert cluster.output("kv", "get", "settings", "theme") == "dark"
        assert cluster.json("stream", "append", "notes", "more")["seq"] == 4
        assert cluster.stop(signal.SIGTERM) == 0


def test_up_with_tokens_lets_nobody_in_without_one_also_later(tmp_path: Path) -> None:
    data = tmp_path / "data"
    shared = ("--data", str(data / "shared"))
    replies = ("--inbox-prefix", "_REPLIES")
    for options in (("--auth",), ()):
        with running_up(data, "--servers", "1", *options, *replies, http=True) as cluster:
            assert set(cluster.pids()) == {"nats-server", "auth", "coordinator", "s1", "http"}
            refused = cluster.holdfast("servers")
            assert refused.returncode == 1
            assert b"log in" in refused.stderr
            rights = ("--stores", ">", "--allow", "read,list")
            created = call_holdfast("token", "create", *rights, *shared)
            token = created.stdout.decode().strip()
            file = tmp_path / "token"
            file.write_text(token)
            listing = ("stream", "ls", "--token-file", str(file))
            cluster.output(*listing, *replies)
            assert _status_over_http(cluster, None) == 401
            seen = ("servers", "--json", "--token-file", str(file), *replies)
            wait_until(partial(_lists_parts, cluster, seen), "parts without a tenant tell too")
            assert _status_over_http(cluster, token) == 404
            # Other inboxes are not those of the token.
            assert b"_INBOX" in cluster.holdfast(*listing).stderr
            asyncio.run(_log_in(cluster.nats, token))
            if options:
                _shows_in_the_audit_log_what_was_done(cluster, tmp_path, replies)
            killed = cluster.pids()["auth"]
            assert killed is not None
            os.kill(killed, signal.SIGKILL)
            ended = {None, killed}
            wait_until(partial(_has_new_auth, cluster, ended), "it runs again")
            asyncio.run(_log_in(cluster.nats, token))
            assert cluster.stop() == 0
    # What `up` asks with does not stay.
    listed = json.loads(call_holdfast("--json", "token", "list", *shared).stdout)["tokens"]
    assert sorted(len(row["allow"]) for row in listed) == [1, 2, 2, len(ALL_RIGHTS)]


def _lists_parts(cluster: RunningUp, command: Sequence[str]) -> bool:
    """Whether the auth service and the gateway, which only uses its users' rights, are listed."""
    rows = json.loads(cluster.output(*command))["parts"]
    kinds = {(row["kind"], row["tenant"]) for row in rows}
    return kinds >= {("auth", ""), ("gateway_http", ""), ("coordinator", "")}


def _shows_in_the_audit_log_what_was_done(
    cluster: RunningUp, folder: Path, replies: Sequence[str]
) -> None:
    """Also what is done while its recorder is killed and starts again."""
    data = ("--data", str(folder / "data" / "shared"))
    files = {name: folder / name for name in ("own", "operator")}
    for who, what in (("own", ("--stores", ">", "--allow", "read")), ("operator", ("--operator",))):
        call_holdfast("token", "create", *what, "--out", str(files[who]), *data)
    own, operator = (read_token(file.read_text().strip()) for file in files.values())

    def call(who: str, *command: str) -> subprocess.CompletedProcess[bytes]:
        asked = ("--nats", cluster.nats, "--token-file", str(files[who]), "--timeout", "30")
        return call_holdfast(*asked, *replies, *command)

    def events(*options: str) -> list[dict[str, Any]]:
        shown = call("operator", "--json", "audit", *options)
        assert shown.returncode == 0, shown.stderr
        found: list[dict[str, Any]] = json.loads(shown.stdout)["events"]
        return found

    def missing(expected: set[tuple[str, ...]]) -> set[tuple[str, ...]]:
        fields = ("action", "outcome", "token", "tenant")
        return expected - {tuple(event[name] for name in fields) for event in events()}

    def is_recorded(*expected: tuple[str, ...]) -> None:
        wait_until(lambda: not missing(set(expected)), f"{missing(set(expected))} is recorded")

    assert call("operator", "--tenant", "default", "stream", "append", "notes", "x").returncode == 0
    assert b"not allowed" in call("own", "stream", "append", "notes", "SECRET").stderr
    assert b"only an operator's token may" in call("own", "audit").stderr
    is_recorded(
        ("access.set_up", "done", "", ""),
        ("token.created", "done", "", "default"),
        ("token.created", "done", "", "*"),
        ("coordinator.started", "done", "", ""),
        ("server.registered", "done", "", ""),
    )
    recorder = cluster.pids()["coordinator"]
    assert recorder is not None
    os.kill(recorder, signal.SIGKILL)
    call_holdfast("token", "revoke", own.id, *data)
    call_holdfast("tenant", "set", "default", "--max-stores", "9", *data)
    wait_until(lambda: b"no server except" in call("operator", "drain", "s1").stderr, "refused")
    is_recorded(
        ("login", "done", own.id, "default"),
        ("login", "refused", "", ""),
        ("request", "refused", own.id, "default"),
        ("token.revoked", "done", "", "default"),
        ("tenant.limited", "done", "", "default"),
        ("server.drained", "failed", operator.id, ""),
    )
    found = events()
    assert len({event["id"] for event in found}) == len(found)
    for action in ("access.set_up", "token.revoked", "tenant.limited"):
        assert [event["action"] for event in found].count(action) == 1
    [drained] = events("--action", "server.drained", "--token", operator.id)
    assert (drained["user"].partition("@")[2], drained["mode"]) == (socket.gethostname(), "tokens")
    assert "SECRET" not in str(found)
    assert files["own"].read_text().strip() not in str(found)
    # Nobody writes it, nor removes it, but servers.
    for command in (("append", "audit", "x"), ("destroy", "audit", "--yes")):
        forbidden = call("operator", "--tenant", "_system", "stream", *command)
        assert b"not allowed" in forbidden.stderr, forbidden


def _status_over_http(cluster: RunningUp, token: str | None) -> int:
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    asked = Request(f"{cluster.welcome['http']}/v1/kv/settings/theme", headers=headers)
    try:
        with urlopen(asked, timeout=DEADLINE_SECONDS) as answer:
            return int(answer.status)
    except HTTPError as error:
        return error.code


def _has_new_auth(cluster: RunningUp, ended: Collection[int | None]) -> bool:
    return cluster.pids()["auth"] not in ended


async def _log_in(url: str, token: str) -> None:
    async with asyncio.timeout(DEADLINE_SECONDS):
        while True:
            try:
                login = NatsLogin(options={"token": token})
                await (await connect_nats(url, name="test", login=login)).close()
                return
            except ConnectionFailedError:
                await asyncio.sleep(0.1)


@pytest.mark.skipif(sys.platform != "linux", reason="reads command lines in /proc")
def test_other_users_see_no_password_and_no_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = tmp_path / "data"
    before = os.umask(0o022)
    try:
        ca = TestCa(tmp_path)
        (cert, key), (own_cert, own_key) = ca.signed("server"), ca.signed("client")
        tls = ("--tls", "--tlsverify", "--tlscacert", str(ca.file))
        tls += ("--tlscert", str(cert), "--tlskey", str(key))
        user = ("--user", "ada", "--pass", _PASSWORD)
        with running_nats_server(tmp_path / "nats", *tls, *user) as nats:
            url = nats.url.replace("//", f"//ada:{quote(_PASSWORD, safe='')}@")
            for name, value in (
                *(("NATS", url), ("TLS_CA", ca.file), ("TLS_CERT", own_cert)),
                *(("TLS_KEY", own_key), ("INBOX_PREFIX", "_REPLIES")),
            ):
                monkeypatch.setenv(f"HOLDFAST_{name}", str(value))
            bucket = ("--bucket", (data / "bucket").as_uri())
            with running_up(data, "--servers", "1", *bucket, own_nats=False) as cluster:
                call = run_holdfast("stream", "append", "notes", "hello")
                assert call.returncode == 0, call.stderr
                # An operator's request: in the name of no tenant.
                call = call_holdfast("tenants")
                assert call.returncode == 0, call.stderr
                with monkeypatch.context() as changed:
                    changed.setenv("HOLDFAST_INBOX_PREFIX", "_INBOX")
                    ignored = call_holdfast("--timeout", "0.5", "servers")
                    assert b"no coordinator answers" in ignored.stderr
                with monkeypatch.context() as changed:
                    changed.setenv("HOLDFAST_NATS", nats.url.replace("//", "//ada:sesame@"))
                    refused = call_holdfast("servers")
                    assert b"does not accept this user. Try: check the user" in refused.stderr
                state = (data / "run" / "cluster.json").read_text()
                pids = [cluster.process.pid, *json.loads(state)["parts"].values()]
                shown = [Path(f"/proc/{pid}/cmdline").read_bytes().decode() for pid in pids]
                assert len(shown) == 3
                assert "persist" in shown[-1]
                shown += [state, json.dumps(cluster.welcome), cluster.stderr]
                shown += [refused.stderr.decode(), ignored.stderr.decode()]
                shown += [path.read_text() for path in (data / "run").glob("*.log")]
                for text in shown:
                    for secret in (_PASSWORD, quote(_PASSWORD, safe=""), "sesame"):
                        assert secret not in text
                assert cluster.nats == nats.url.replace("//", "//***@")
                found = [data, *data.rglob("*")]
                assert [path for path in found if path.stat().st_mode & 0o077] == []
                assert any(path.suffix == ".db" for path in found)
    finally:
        os.umask(before)


def test_the_printed_command_adds_a_server(tmp_path: Path) -> None:
    bucket = ("--bucket", (tmp_path / "bucket").as_uri(), "--budget-per-day", "7.5")
    with running_up(tmp_path / "data", "--servers", "1", *bucket) as cluster:
        program, *arguments = shlex.split(cluster.welcome["add_server"])
        assert program == "holdfast"
        with started_holdfast(*arguments, stderr=subprocess.DEVNULL) as added:
            wait_until(lambda: cluster.live_servers() == {"s1", "s2"}, "s2 is live")
            # Each server has the share that a server of this `up` has.
            wait_until(lambda: _budgets(cluster.nats) == [7.5, 7.5], "both tell their budgets")
            added.terminate()
            assert added.wait(DEADLINE_SECONDS) == 0


def _budgets(nats: str) -> list[float]:
    with connect(nats) as client:
        parts = client.statistics()
    told = [part.value("persist_budget_dollars") for part in parts if part.kind == "persist"]
    return sorted(told)


def test_a_budget_needs_a_bucket(tmp_path: Path) -> None:
    refused = call_holdfast("up", "--data", str(tmp_path), "--budget-per-day", "1")
    assert refused.returncode == 2 and b"--bucket" in refused.stderr


def test_a_killed_part_is_started_again_and_nothing_is_lost(tmp_path: Path) -> None:
    with running_up(tmp_path / "data", "--servers", "1") as cluster:

        def runs_again(part: str, before: int) -> bool:
            return cluster.pids()[part] not in (before, None)

        cluster.output("stream", "append", "notes", "0")
        for number, part in enumerate(("s1", "coordinator", "nats-server"), start=1):
            before = cluster.pids()[part]
            assert before is not None
            os.kill(before, signal.SIGKILL)
            wait_until(partial(runs_again, part, before), f"{part} runs again")
            wait_until(lambda: cluster.holdfast("servers").returncode == 0, "the cluster answers")
            assert cluster.json("stream", "append", "notes", f"{number}")["seq"] == number + 1
            assert f"{part} ended (SIGKILL): starting it again" in cluster.stderr
        assert cluster.output("stream", "read", "notes", "--raw") == "0123"
        assert cluster.stop() == 0


@pytest.mark.skipif(sys.platform != "linux", reason="other systems hide environments")
@pytest.mark.parametrize("options", [["--jetstream"], []])
def test_few_cores_give_nats_server_one_thread_and_late_sleeps_also_when_it_starts_again(
    options: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("GOMAXPROCS", raising=False)
    with few_cores(), running_up(tmp_path / "data", "--servers", "1", *options) as cluster:
        before = cluster.pids()["nats-server"]
        assert before is not None
        assert environment_of(before)["GOMAXPROCS"] == "1"
        assert timer_slack_ns_of(before) in (None, 1_000_000)
        # The other parts are not Go's.
        server = cluster.pids()["s1"]
        assert server is not None
        assert "GOMAXPROCS" not in environment_of(server)
        os.kill(before, signal.SIGKILL)
        wait_until(lambda: cluster.pids()["nats-server"] not in (before, None), "it runs again")
        wait_until(lambda: cluster.holdfast("servers").returncode == 0, "the cluster answers")
        again = cluster.pids()["nats-server"]
        assert again is not None
        assert environment_of(again)["GOMAXPROCS"] == "1"
        assert timer_slack_ns_of(again) in (None, 1_000_000)
        assert cluster.stop() == 0


@pytest.mark.skipif(sys.platform != "linux", reason="other systems hide environments")
def test_a_user_s_own_number_of_threads_wins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GOMAXPROCS", "3")
    with few_cores(), running_up(tmp_path / "data", "--servers", "1", "--jetstream") as cluster:
        nats_server = cluster.pids()["nats-server"]
        assert nats_server is not None
        assert environment_of(nats_server)["GOMAXPROCS"] == "3"
        assert timer_slack_ns_of(nats_server) in (None, 50_000)
        assert cluster.stop() == 0


def test_up_serves_http_on_a_port_of_its_own(tmp_path: Path) -> None:
    with running_up(tmp_path / "data", "--servers", "1", http=True) as cluster:
        url = cluster.welcome["http"]
        assert url == json.loads((cluster.data / "run" / "cluster.json").read_text())["http"]
        put = Request(f"{url}/v1/kv/settings/theme", b"dark", method="PUT")
        with urlopen(put, timeout=DEADLINE_SECONDS) as answer:
            assert answer.status == 200
        assert cluster.output("kv", "get", "settings", "theme") == "dark"
        assert cluster.pids()["http"] is not None
        # Whoever names a port wants that one.
        port = url.rpartition(":")[2]
        other = ("up", "--data", str(tmp_path / "other"), "--port", "0")
        refused = run_holdfast(*other, "--http", f"127.0.0.1:{port}")
        assert refused.returncode == 1
        [line] = refused.stderr.decode().splitlines()
        assert f"port {port}" in line
        assert "Try: --http 127.0.0.1:0 picks a free port" in line
        assert not list((tmp_path / "other" / "run").glob("*.log"))
        assert cluster.stop() == 0


def test_a_port_in_use_is_told_before_anything_is_started(tmp_path: Path) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        result = run_holdfast("up", "--data", str(tmp_path / "data"), "--port", str(port))
    assert result.returncode == 1
    assert result.stdout == b""
    [line] = result.stderr.decode().splitlines()
    assert f"port {port}" in line
    assert line.endswith("Try: --port 0 picks a free one")
    assert not list((tmp_path / "data" / "run").glob("*.log"))


def test_a_second_up_on_the_same_folder_or_nats_and_prefix_is_refused(tmp_path: Path) -> None:
    one_server = ("--servers", "1")
    with running_up(tmp_path / "data", *one_server) as cluster:
        result = run_holdfast("up", "--data", str(cluster.data), "--port", "0")
        assert result.returncode == 1
        [line] = result.stderr.decode().splitlines()
        assert "already running" in line
        assert "Try: " in line
        assert cluster.live_servers() == {"s1"}
        other = ("up", "--data", str(tmp_path / "other"))
        result = run_holdfast("--nats", cluster.nats, *other)
        assert result.returncode == 1
        assert "a coordinator already answers" in result.stderr.decode()
        joining = (*one_server, "--nats", cluster.nats, "--prefix", "hf2")
        with running_up(tmp_path / "other", *joining, own_nats=False) as second:
            assert second.nats == cluster.nats
            assert set(second.pids()) == {"coordinator", "s1"}


def test_a_part_that_cannot_start_ends_up_with_its_own_words(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with running_up(data, "--servers", "1") as cluster:
        assert cluster.stop() == 0
    (data / "shared" / "coordinator" / "state.db").write_bytes(b"no database" * 1000)
    result = run_holdfast("up", "--data", str(data), "--port", "0")
    assert result.returncode == 1
    last = result.stderr.decode().splitlines()[-1]
    assert last.startswith("Error: coordinator did not start (exit code 1): ")
    assert "state.db" in last
    assert "Try: " in last


def test_an_up_that_was_killed_goes_on_with_all_data(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with running_up(data) as cluster:
        cluster.output("stream", "append", "notes", "acknowledged")
        pids = pids_of(cluster)
        cluster.process.kill()
        wait_until(lambda: not any(map(is_running, pids)), "all parts have ended")
    with running_up(data, "--servers", "1") as cluster:
        assert cluster.output("stream", "get", "notes", "1") == "acknowledged"


def test_interrupted_while_it_starts_up_leaves_no_process(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with started_holdfast(
        "up", "--data", str(data), "--port", "0", stderr=subprocess.PIPE
    ) as process:
        state = data / "run" / "cluster.json"
        wait_until(state.exists, "the first part was started")
        parts = json.loads(state.read_text())["parts"]
        process.send_signal(signal.SIGINT)
        assert process.wait(DEADLINE_SECONDS) == 0
    assert not any(is_running(pid) for pid in parts.values() if pid is not None)
