"""The built wheel: what is in it, and that it is all of holdfast, in an environment with nothing of
the checkout."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tomllib
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.holdfast_up import DEADLINE_SECONDS, read_line

ROOT = Path(__file__).parents[2]
#: What Spark finds by its name, and where it lies.
AUTOLOAD = ("pyspark_holdfast", "spark/autoload/pyspark_holdfast/__init__.py")


def _pip(*arguments: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pip", "--disable-pip-version-check", *arguments],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@dataclass
class Built:
    """A wheel, and which modules of the packages it was built from."""

    wheel: Path
    expected: set[str]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    # A copy, because a build leaves files behind that a later one would pick up.
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    packages = sorted(mark.parent.name for mark in ROOT.glob("*/py.typed"))
    for name in [*packages, "tests"]:
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    for file in ["pyproject.toml", "README.md", "LICENSE"]:
        shutil.copy(ROOT / file, source / file)
    # Read here and not from the checkout, where files may come and go meanwhile.
    expected = {f"holdfast/{name}/py.typed" for name in packages} | {
        f"holdfast/{path.relative_to(source)}"
        for name in packages
        for path in (source / name).rglob("*.py")
    }
    # The files of the console.
    pages = source / "gateway" / "http" / "console" / "pages"
    expected |= {f"holdfast/{path.relative_to(source)}" for path in pages.iterdir()}
    expected.remove(f"holdfast/{AUTOLOAD[1]}")
    expected.add(f"{AUTOLOAD[0]}/__init__.py")
    _pip(
        "wheel", "-qq", "--no-deps", "--no-build-isolation", "--wheel-dir", str(folder), str(source)
    )
    [wheel] = folder.glob("holdfast_nats-*.whl")
    return Built(wheel, expected)


@pytest.fixture(scope="module")
def environment(built: Built, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with the wheel, and of everything else only what the tests' own has
    installed."""
    folder = tmp_path_factory.mktemp("environment")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    _pip(
        *("--python", str(folder / "bin" / "python"), "install", "-qq", "--no-deps"),
        *("--no-index", "--no-compile", str(built.wheel)),
    )
    [packages] = folder.glob("lib/python*/site-packages")
    # A path that is added so runs none of the .pth files there, the editable install's least of
    # all.
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return folder


def _surroundings() -> dict[str, str]:
    mine = {"PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV"}
    return {
        name: value
        for name, value in os.environ.items()
        if name not in mine and not name.startswith("HOLDFAST_")
    }


def _run(environment: Path, folder: Path, *command: str, stdin: bytes = b"") -> str:
    done = subprocess.run(
        [str(environment / "bin" / command[0]), *command[1:]],
        input=stdin,
        capture_output=True,
        timeout=DEADLINE_SECONDS,
        check=False,
        cwd=folder,
        env=_surroundings(),
    )
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode()


@pytest.fixture
def cluster(environment: Path, tmp_path: Path) -> Iterator[str]:
    """The address of a `holdfast up` of the wheel's own command."""
    command = [str(environment / "bin" / "holdfast"), "--json", "up", "--port", "0"]
    with (
        (tmp_path / "stderr").open("wb") as stderr,
        subprocess.Popen(
            [*command, "--servers", "1", "--data", str(tmp_path / "data")],
            stdout=subprocess.PIPE,
            stderr=stderr,
            cwd=tmp_path,
            env=_surroundings(),
            bufsize=0,
        ) as process,
    ):
        try:
            line = read_line(process)
            assert line, (tmp_path / "stderr").read_text()
            yield str(json.loads(line)["nats"])
            process.terminate()
            assert process.wait(DEADLINE_SECONDS) == 0
        finally:
            if process.poll() is None:
                process.kill()


def test_the_wheel_has_every_module_of_the_packages_and_nothing_else(built: Built) -> None:
    with zipfile.ZipFile(built.wheel) as archive:
        names = set(archive.namelist())
        entry_points = next(name for name in names if name.endswith("entry_points.txt"))
        assert "holdfast = holdfast.cli.main:run" in archive.read(entry_points).decode()
    information = {name for name in names if ".dist-info/" in name}
    assert names - information == built.expected
    assert any(name.endswith("licenses/LICENSE") for name in information)


def test_the_wheel_in_an_empty_environment_tells_its_version(
    environment: Path, tmp_path: Path
) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    program = "import holdfast.client as c; print(c.__file__, c.__version__)"
    file, version = _run(environment, tmp_path, "python", "-c", program).split()
    assert Path(file).is_relative_to(environment)
    assert version == project["version"]
    assert _run(environment, tmp_path, "holdfast", "--version") == f"holdfast {version}\n"


def test_the_wheel_in_an_empty_environment_runs_up_append_and_read(
    environment: Path, cluster: str, tmp_path: Path
) -> None:
    def holdfast(*arguments: str, stdin: bytes = b"") -> str:
        return _run(environment, tmp_path, "holdfast", "--nats", cluster, *arguments, stdin=stdin)

    assert holdfast("stream", "append", "notes", stdin=b"hello") == "1  synced\n"
    assert holdfast("stream", "read", "notes", "--raw") == "hello"
    assert holdfast("stream", "read", "notes").endswith("  hello\n")
