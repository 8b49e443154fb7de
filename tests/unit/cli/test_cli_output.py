"""What people see on a terminal, and what programs get in a pipe."""

from __future__ import annotations

import io
import json
import logging
import os
import re
import subprocess
import sys
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest
from click.testing import CliRunner
from rich.console import Console

from holdfast.cli import render
from holdfast.cli.advice import explain
from holdfast.cli.cluster.cluster import ClusterOptions
from holdfast.cli.command import holdfast
from holdfast.cli.commands import backup, up, verify
from holdfast.cli.commands.backup import version_row
from holdfast.cli.commands.verify import verdict_row
from holdfast.cli.render import preview
from holdfast.cli.settings import Settings
from holdfast.cli.stores import file_values
from holdfast.cli.stores.file_values import write_value
from holdfast.cli.stores.following import follow
from holdfast.cli.stores.values import read_value
from holdfast.cli.watching import servers
from holdfast.protocol.control import ServerInfo
from holdfast.protocol.errors import ConnectionFailedError
from holdfast.protocol.limits import MAX_VALUE_BYTES
from holdfast.protocol.monitoring.samples import PartStatistics
from holdfast.protocol.names import StoreId, StoreKind
from holdfast.protocol.serving.log_format import ZonedFormatter
from holdfast.shared_fs.inspection.verification import StoreVerdict

ESCAPE = re.compile(r"\x1b\[[0-9;]*m")
SERVER = ServerInfo(
    "persist-server-1", "1a1fc20421f1e1cb085", "dead", 0.2, 12_345, 1_234, 40.0, 1 << 27
)
STORE = StoreId("tenant-1", StoreKind.STREAM, "project.42.patches")
VERSION = dict.fromkeys(
    ("revision", "epoch", "last_seq", "count", "bytes", "stored_bytes"), 1_234_567
) | {"key": "packs/default/1795230300123-5d2c5d2c", "time": 1795230214000, "taken": 1795230300000}


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> io.StringIO:
    """A terminal of 80 columns, with colours, for tables."""
    monkeypatch.delenv("NO_COLOR", raising=False)
    written = io.StringIO()
    is_terminal = {"force_terminal": True, "color_system": "standard", "width": 80}
    console = partial(Console, file=written, highlight=False, **is_terminal)
    monkeypatch.setattr(render, "stdout_console", console)
    return written


def of_servers(monkeypatch: pytest.MonkeyPatch) -> None:
    async def found(
        settings: Settings, *, with_parts: bool
    ) -> tuple[list[ServerInfo], list[PartStatistics]]:
        part = PartStatistics("standby", "faf846cb4fbd723d", "some-host-1.example.org", 1, 0.1, ())
        return [SERVER, SERVER._replace(state="live")], [part]

    monkeypatch.setattr(servers, "_listed", found)
    assert CliRunner().invoke(holdfast, ["servers"]).exit_code == 0


TABLES = {
    "servers": of_servers,
    "backups": lambda monkeypatch: backup._print_versions(
        [version_row(STORE, VERSION)], with_tenant=True
    ),
    "verify": lambda monkeypatch: verify._print(
        [verdict_row(StoreVerdict(STORE, "damaged", "damaged", "gap", 1_234_567, problems=["p"]))],
        [],
    ),
}


@pytest.mark.parametrize("table", TABLES)
def test_a_table_fits_in_80_columns_and_keeps_one_line_a_row(
    table: str, terminal: io.StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    TABLES[table](monkeypatch)
    lines = ESCAPE.sub("", terminal.getvalue()).splitlines()
    assert len(lines) == (4 if table == "servers" else 2)
    for line in lines:
        assert len(line.rstrip()) <= 80
    assert any(word in lines[1] for word in ("standby", "project.42.patches"))


def test_what_was_left_out_of_a_table_is_told(
    terminal: io.StringIO, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    columns, row = ("name", "note", "key"), ("x" * 60, "short", "k" * 40)
    render.print_table(columns, [row], optional=("key", "note"))
    assert "kkk" not in terminal.getvalue()
    assert "short" in terminal.getvalue()
    assert capsys.readouterr().err == "left out here: key; --json has all\n"


def test_dead_and_critical_stand_out_where_somebody_looks(
    terminal: io.StringIO, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [("dead", "dead"), ("live", "-"), ("critical", "-"), ("suspect", "-")]
    render.print_table(("state", "name"), rows, states=("state",))
    shown = terminal.getvalue()
    assert re.search(r"\x1b\[1;31mdead", shown)
    assert re.search(r"\x1b\[1;31mcritical", shown)
    assert re.search(r"\x1b\[33msuspect", shown)
    # Only in the column of states.
    assert shown.count("\x1b[1;31mdead") == 1
    monkeypatch.undo()
    render.print_table(("state", "name"), rows, states=("state",))
    assert "\x1b" not in capsys.readouterr().out


def test_no_color_is_respected(terminal: io.StringIO, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    render.print_table(("state",), [("dead",)], states=("state",))
    assert "dead" in terminal.getvalue() and "31m" not in terminal.getvalue()


class Reader:
    """A value in two pieces."""

    size_bytes = 10
    row = None

    def __init__(self, *chunks: bytes) -> None:
        self.chunks = chunks

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for chunk in self.chunks:
            yield chunk


class Stdout(io.TextIOWrapper):
    def __init__(self, *, terminal: bool) -> None:
        super().__init__(io.BytesIO())
        self.terminal = terminal

    def isatty(self) -> bool:
        return self.terminal

    @property
    def written(self) -> bytes:
        return cast("io.BytesIO", self.buffer).getvalue()


@pytest.mark.parametrize(
    ("terminal", "alone", "chunks", "expected"),
    [
        (True, True, (b"da", b"rk"), b"dark\n"),
        (True, True, (b"da", b"rk\n"), b"dark\n"),
        (True, True, (), b"\n"),
        (True, False, (b"dark",), b"dark"),
        (False, True, (b"da", b"rk"), b"dark"),
    ],
)
async def test_a_value_ends_with_its_line_on_a_terminal_alone(
    terminal: bool,
    alone: bool,
    chunks: tuple[bytes, ...],
    expected: bytes,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stdout = Stdout(terminal=terminal)
    monkeypatch.setattr(file_values.sys, "stdout", stdout)
    reader = cast("Any", Reader(*chunks))
    await write_value(Settings(), reader, None, alone=alone)
    assert stdout.written == expected


def test_a_long_value_is_cut_on_a_terminal_and_never_in_a_pipe(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    value = b"x" * 500 + b" needle"
    monkeypatch.setattr(render.sys, "stdout", Stdout(terminal=True))
    assert preview(value).endswith("... (507 B)")
    monkeypatch.setattr(render.sys, "stdout", Stdout(terminal=False))
    assert preview(value) == value.decode()


def test_stdin_of_any_size_is_read_from_its_beginning(monkeypatch: pytest.MonkeyPatch) -> None:
    def given(content: bytes) -> object:
        stdin = io.TextIOWrapper(io.BufferedReader(io.BytesIO(content)))  # type: ignore[arg-type]
        monkeypatch.setattr(sys, "stdin", stdin)
        return read_value("-")

    assert given(b"") == b""
    assert given(b"x" * MAX_VALUE_BYTES) == b"x" * MAX_VALUE_BYTES
    content = bytes(range(256)) * (MAX_VALUE_BYTES // 128)
    source = cast("Any", given(content))
    pieces = iter(lambda: source.read(300_000), b"")
    assert b"".join(pieces) == content
    assert not source.seekable()


async def test_tail_says_on_a_terminal_that_it_follows(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Changes:
        async def __aenter__(self) -> None: ...
        async def __aexit__(self, *error: object) -> None: ...
        async def __aiter__(self) -> AsyncIterator[object]:
            return
            yield

    changes = cast("Any", Changes())
    await follow(Settings(), changes, None, what="notes")
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    await follow(Settings(), changes, None, what="notes")
    assert capsys.readouterr().err.startswith("following notes, until Ctrl-C")


# Errors and hints.


@pytest.mark.parametrize(
    ("arguments", "said", "path"),
    [
        (["--json", "nonsense"], "No such command", "holdfast"),
        (["nonsense", "--json"], "No such command", "holdfast"),
        (["--json", "--nonsense"], "No such option", "holdfast"),
        (["stream", "get", "notes", "--json"], "Missing argument 'SEQ'", "holdfast stream get"),
        (["stream", "get", "notes", "zero", "--json"], "Invalid value", "holdfast stream get"),
        (["verify", "--all", "--json"], "give --data, --bucket or --table", "holdfast verify"),
        (["--json", "stream"], "a command is missing", "holdfast stream"),
    ],
)
def test_with_json_wrong_usage_is_an_object_on_stderr(
    arguments: list[str], said: str, path: str
) -> None:
    result = CliRunner().invoke(holdfast, arguments, prog_name="holdfast")
    assert result.exit_code == 2
    assert result.stdout == ""
    found = json.loads(result.stderr)
    assert found.keys() == {"error", "message", "try"}
    assert found["error"] == "usage"
    assert said in found["message"]
    assert found["try"] == f"{path} --help"


def test_what_stands_behind_two_dashes_asks_for_no_json() -> None:
    result = CliRunner().invoke(holdfast, ["nonsense", "--", "--json"], prog_name="holdfast")
    assert result.exit_code == 2
    assert result.stderr.startswith("Usage: ")


def test_with_json_in_the_environment_wrong_usage_is_an_object(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HOLDFAST_JSON", "1")
    result = CliRunner().invoke(holdfast, ["nonsense"], prog_name="holdfast")
    assert json.loads(result.stderr)["error"] == "usage"


def test_with_json_a_question_without_an_answer_is_an_object(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    result = CliRunner().invoke(holdfast, ["delete", "notes", "--json"], input="")
    assert result.exit_code == 1
    assert json.loads(result.stderr.splitlines()[-1])["try"] == "--yes"


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[ClusterOptions]:
    seen: list[ClusterOptions] = []

    async def run(options: ClusterOptions, *, as_json: bool) -> None:
        seen.append(options)

    monkeypatch.setattr(up, "_run", run)
    return seen


def test_a_port_counts_more_than_the_nats_of_the_environment(
    started: list[ClusterOptions], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_NATS", "nats://elsewhere:4222")
    result = CliRunner().invoke(holdfast, ["up", "--port", "4333"])
    assert result.exit_code == 0
    assert "HOLDFAST_NATS is ignored" in result.stderr
    assert (started[0].nats_url, started[0].port) == (None, 4333)
    result = CliRunner().invoke(holdfast, ["up"])
    assert result.stderr == ""
    assert started[1].nats_url == "nats://elsewhere:4222"


def test_an_up_with_its_own_nats_takes_no_login(started: list[ClusterOptions]) -> None:
    result = CliRunner().invoke(holdfast, ["up", "--tls-ca", "ca.pem"])
    assert result.exit_code == 2
    assert "name another with --nats" in result.stderr
    assert started == []


@pytest.mark.parametrize("before", [True, False])
def test_a_port_and_a_nats_that_were_both_typed_are_wrong_usage(
    started: list[ClusterOptions], before: bool
) -> None:
    nats, command = ["--nats", "nats://elsewhere:4222"], ["up", "--port", "4333"]
    result = CliRunner().invoke(holdfast, [*nats, *command] if before else [*command, *nats])
    assert result.exit_code == 2
    assert "give only one of the two" in result.stderr
    assert started == []


def test_an_up_that_cannot_join_its_nats_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_NATS", "nats://ada:sesame@127.0.0.1:1")
    result = CliRunner().invoke(holdfast, ["up", "--data", str(tmp_path / "data")])
    assert result.exit_code == 1
    [line] = result.stderr.splitlines()
    assert line.startswith("Error: cannot join NATS at nats://***@127.0.0.1:1: ")
    assert line.endswith("unset --nats and HOLDFAST_NATS, and holdfast up starts its own")


def test_who_cannot_reach_nats_is_told_of_the_variable_too() -> None:
    said = explain(ConnectionFailedError(url="nats://elsewhere:4222", reason="refused"))
    assert "HOLDFAST_NATS" in said


def test_times_of_logs_have_a_zone() -> None:
    record = logging.LogRecord("holdfast", logging.INFO, "", 0, "server.started", (), None)
    record.created = 1_767_225_600.25
    line = ZonedFormatter("%(asctime)s %(levelname)s %(message)s").format(record)
    assert re.fullmatch(
        r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.250[+-]\d\d:\d\d INFO server\.started", line
    )


#: Prints a table and a line.
PRINTING = (
    "import click, sys\n"
    "from holdfast.cli.command import holdfast\n"
    "from holdfast.cli.main import run\n"
    "from holdfast.cli.render import print_table\n"
    "def show():\n"
    "    print_table(('a', 'b'), [('1', '\u2605')])\n"
    "    click.echo('\u2605')\n"
    "holdfast.add_command(click.command('probe')(show))\n"
    "sys.argv[1:] = ['probe']\n"
    "run()"
)


def test_a_reader_that_leaves_before_a_table_ends_the_command_quietly() -> None:
    """Rich would end it with 1."""
    reading, writing = os.pipe()
    os.close(reading)
    ended = subprocess.run(
        [sys.executable, "-c", PRINTING], stdout=writing, stderr=subprocess.PIPE, check=False
    )
    os.close(writing)
    assert (ended.returncode, ended.stderr) == (0, b"")


def test_what_an_encoding_does_not_have_is_shown_by_its_code() -> None:
    environment = {**os.environ, "PYTHONIOENCODING": "latin-1"}
    shown = subprocess.run(
        [sys.executable, "-c", PRINTING], capture_output=True, env=environment, check=True
    )
    assert shown.stdout.split() == [b"a", b"b", b"1", rb"\u2605", rb"\u2605"]
