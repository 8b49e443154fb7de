"""docs/deploy/systemd: what can be known of the units without a running systemd.

systemd's own tools judge the files where they are installed; the command line parses what the units
start. That a unit starts is not tested here; what a server tells systemd is, in
`tests/integration/test_supervision.py`.
"""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

import click
import pytest

from holdfast.cli.advice import EXIT_USAGE
from holdfast.cli.command import holdfast
from holdfast.persist.lifecycle import capacity
from holdfast.protocol.limits import LOOP_STALL_SECONDS, MAX_OPEN_STORES
from holdfast.shared_fs.access.key_folder import (
    ACCOUNT_FILE,
    AUTH_FILE,
    CALLOUT_FILE,
    REPORTS_FILE,
    SYSTEM_FILE,
)
from tests.support.command_line import parsed, variables
from tests.support.documents import ROOT, read

FOLDER: Final = ROOT / "docs" / "deploy" / "systemd"
UNITS: Final = ("holdfast-persist@.service", "holdfast-coordinator.service")
AUTH: Final = "holdfast-auth.service"
#: What the service reads, and no command line does.
OF_BOTO3: Final = {"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_DEFAULT_REGION"}
PROGRAM: Final = "/opt/holdfast/bin/holdfast"

each_unit = pytest.mark.parametrize("unit", UNITS)
with_auth = pytest.mark.parametrize("unit", (*UNITS, AUTH))


def settings(file: str) -> dict[str, list[str]]:
    """Return each setting of a unit with its values in order."""
    found: dict[str, list[str]] = {}
    for line in (FOLDER / file).read_text().splitlines():
        if line and line[0] not in "#[":
            name, _, value = line.partition("=")
            found.setdefault(name, []).append(value)
    return found


def environment(file: str, unit: str = UNITS[0]) -> dict[str, str]:
    """Return what a unit or drop-in sets, for an instance p1 of `unit`."""
    name = unit.replace("@.", "@p1.").removesuffix(".service")
    words = shlex.split(" ".join(settings(file).get("Environment", [])))
    pairs = (word.replace("%N", name).replace("%S", "/var/lib").partition("=") for word in words)
    return {variable: value for variable, _, value in pairs}


def credentials(file: str) -> set[str]:
    """Return the names of the files that systemd passes to the service."""
    return {name.partition(":")[0] for name in settings(file)["LoadCredential"]}


def command(unit: str) -> list[str]:
    [line] = settings(unit)["ExecStart"]
    program, *arguments = shlex.split(line.replace("%i", "p1"))
    assert program == PROGRAM
    return arguments


def seconds(unit: str, name: str) -> float:
    [value] = settings(unit)[name]
    return float(value.removesuffix("s"))


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """The units in a folder, with a program that exists."""
    program = Path(sys.prefix) / "bin" / "holdfast"
    for unit in (*UNITS, AUTH):
        text = (FOLDER / unit).read_text()
        (tmp_path / unit).write_text(text.replace(PROGRAM, str(program)))
    return tmp_path


def systemd(*command: str) -> subprocess.CompletedProcess[str]:
    """Run a tool of systemd; skips the test without it."""
    if shutil.which(command[0]) is None:
        pytest.skip(f"needs {command[0]}: the package systemd")
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def verified(path: Path) -> subprocess.CompletedProcess[str]:
    return systemd("systemd-analyze", "verify", "--man=no", "--recursive-errors=no", str(path))


def test_systemd_accepts_every_setting(installed: Path) -> None:
    for unit in (*UNITS, AUTH):
        result = verified(installed / unit.replace("@.", "@p1."))
        assert (result.returncode, result.stderr) == (0, "")


def test_systemd_refuses_a_unit_with_a_setting_that_it_does_not_know(installed: Path) -> None:
    path = installed / UNITS[1]
    path.write_text(path.read_text().replace("LockPersonality=", "LockPersonalty="))
    result = verified(path)
    assert result.returncode == 1
    assert "LockPersonalty" in result.stderr


@with_auth
def test_the_sandbox_leaves_little_exposed(unit: str, installed: Path) -> None:
    path = installed / unit.replace("@.", "@p1.")
    result = systemd(
        "systemd-analyze", "security", "--offline=true", "--threshold=20", "--no-pager", str(path)
    )
    assert result.returncode == 0, result.stdout[-2000:]


def test_systemd_makes_the_user_with_the_number_of_the_image(tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    file = str(FOLDER / "holdfast.sysusers")
    result = systemd("systemd-sysusers", f"--root={tmp_path}", "--dry-run", file)
    assert result.returncode == 0, result.stderr
    user = Path(file).read_text().splitlines()[-1].split()
    assert user[:2] == ["u", "holdfast"]
    assert f"--uid {user[2]} " in (ROOT / "Dockerfile").read_text()


@each_unit
@pytest.mark.parametrize("drop_in", [None, "local-disk.conf"])
def test_the_command_line_accepts_what_a_unit_starts(unit: str, drop_in: str | None) -> None:
    bucket = {} if drop_in is None else {"HOLDFAST_PERSIST_BUCKET": "s3://NAME"}
    of_drop_in = environment(drop_in, unit) if drop_in else {}
    options = parsed(command(unit), environment(unit) | of_drop_in | bucket)
    expected = "/srv/holdfast"
    if drop_in:
        expected = f"/var/lib/holdfast/{unit.replace('@.', '@p1.').removesuffix('.service')}"
    assert options["data"] == Path(expected)
    assert options["disk"] == ("local" if drop_in else "shared")
    with pytest.raises(click.UsageError):
        parsed([*command(unit), "--no-such-option"], environment(unit))


def test_every_variable_that_is_set_or_offered_is_read_by_someone() -> None:
    text = (FOLDER / "holdfast.env").read_text()
    offered = set(re.findall(r"^#?([A-Z_0-9]+)=", text, re.MULTILINE))
    for file in (*UNITS, "local-disk.conf", "nats-login.conf", "tokens.conf"):
        offered |= set(environment(file))
    assert offered <= variables() | OF_BOTO3


@each_unit
@pytest.mark.parametrize("drop_in", ["nats-login.conf", "tokens.conf"])
def test_the_files_of_a_login_are_those_that_systemd_passes_on(unit: str, drop_in: str) -> None:
    passed = credentials(drop_in)
    named = environment(drop_in, unit)
    assert {path.removeprefix("%d/") for path in named.values()} == passed
    parsed(command(unit), environment(unit) | named)


@each_unit
def test_a_unit_writes_where_its_data_is_and_waits_for_its_mount(unit: str) -> None:
    found = settings(unit)
    [data] = environment(unit).values()
    assert found["ReadWritePaths"] == found["RequiresMountsFor"] == [data]


@with_auth
def test_every_exit_but_that_of_wrong_usage_is_followed_by_a_new_start(unit: str) -> None:
    found = settings(unit)
    assert found["Restart"] == ["always"]
    assert found["RestartPreventExitStatus"] == [str(EXIT_USAGE)]
    assert found["StartLimitIntervalSec"] == ["0"]
    assert "| 2 | wrong usage |" in read("operations.md")


@with_auth
def test_a_unit_hears_the_watchdog_and_gives_it_more_time_than_the_coordinator(unit: str) -> None:
    found = settings(unit)
    assert found["Type"] == ["notify"] or found["NotifyAccess"] == ["main"]
    assert seconds(unit, "WatchdogSec") > LOOP_STALL_SECONDS


def test_a_server_may_have_the_descriptors_of_all_its_stores() -> None:
    [descriptors] = settings(UNITS[0])["LimitNOFILE"]
    fitting = capacity.fitting(MAX_OPEN_STORES, descriptors=int(descriptors), memory_bytes=2**40)
    assert fitting == MAX_OPEN_STORES


def test_the_page_tells_of_every_file_and_of_the_times_of_the_units() -> None:
    page = read("deploy/systemd.md")
    for path in FOLDER.iterdir():
        assert path.name in page, path.name
    assert f"`TimeoutStopSec={seconds(UNITS[0], 'TimeoutStopSec'):g}s` of a server" in page
    for unit, part in zip(UNITS, ("server", "coordinator"), strict=True):
        assert f"`WatchdogSec={seconds(unit, 'WatchdogSec'):g}s` of a {part}" in page
    assert f"stuck for {LOOP_STALL_SECONDS:g} s" in page


def test_the_auth_service_is_started_as_the_command_line_has_it() -> None:
    group, name, *rest = command(AUTH)
    auth = holdfast.get_command(click.Context(holdfast), group)
    assert isinstance(auth, click.Group)
    serve = auth.commands[name]
    options = serve.make_context(name, rest).params
    assert settings(AUTH)["RequiresMountsFor"] == [str(options["data"])]
    # What systemd passes on, and nothing more.
    assert options["keys"] == Path("%d")
    assert credentials(AUTH) == {
        *(ACCOUNT_FILE, AUTH_FILE, CALLOUT_FILE, REPORTS_FILE, SYSTEM_FILE)
    }


def test_the_auth_service_is_as_confined_as_a_server() -> None:
    confined = ("Protect", "Private", "Restrict", "System", "NoNew", "Capability", "Memory", "Lock")
    of_server, of_auth = (
        {name: value for name, value in settings(unit).items() if name.startswith(confined)}
        for unit in (UNITS[0], AUTH)
    )
    assert len(of_auth) > 15
    assert of_auth == of_server
