"""The suites of NATS' Python clients.

nats-py          the JetStream, KV and object store tests of nats-py, the usual client
nats-jetstream   the tests of the next client; only from a checkout
nats-key-value   the tests of its KV
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final
from xml.etree import ElementTree

from tests.jetstream_conformance.results import TestResult, read_junit
from tests.jetstream_conformance.sources import (
    HERE,
    NATS_CORE,
    NATS_JETSTREAM,
    NATS_KEY_VALUE,
    NATS_PY,
    Missing,
    fetched,
    suites_python,
)
from tests.jetstream_conformance.suite import Progress, Suite, Surroundings, running_tests

CHECKOUT: Final = "checkout"
INDEX: Final = "package index"
_OWN_PARTS: Final = HERE / "own_parts"
#: The packages of the next client in its repository, and its syntax.
_NEXT: Final = ("nats-jetstream", "nats-key-value", "nats-core", "nats-server")
_NEXT_PYTHON: Final = (3, 12)
_ANY_PYTHON: Final = (3, 11)
_COUNTS: Final = {
    ("nats-py", CHECKOUT): 140,
    ("nats-py", INDEX): 116,
    ("nats-jetstream", CHECKOUT): 308,
    ("nats-key-value", CHECKOUT): 63,
    ("nats-key-value", INDEX): 63,
}
#: A test that hangs must not stop the others.
_TEST_SECONDS: Final = 60
#: Of `-v`: `tests/test_js.py::KVTest::test_kv_simple PASSED   [ 12%]`.
_PROGRESS_WORDS: Final = ("PASSED", "FAILED", "ERROR", "SKIPPED")
#: One test of nats-py uses `unittest.mock` without importing it.
_PROGRAM: Final = "import sys, unittest.mock, pytest; sys.exit(pytest.main(sys.argv[1:]))"
_OPTIONS: Final = (
    *("-v", "-p", "no:cacheprovider", "-o", "addopts=", "-o", "junit_family=xunit1"),
    *("--color=no", "--tb=short", "--show-capture=no", f"--timeout={_TEST_SECONDS}"),
)


@dataclass(frozen=True, slots=True)
class PythonSuite(Suite):
    """Tests for pytest. Test ids are relative to `folder`."""

    name: str
    source: str
    count: int
    python: Path
    folder: Path
    tests: tuple[str, ...]
    python_path: tuple[Path, ...]
    #: Modules of ours that pytest loads, and their folder.
    plugins: tuple[str, ...] = ()
    plugin_path: tuple[Path, ...] = ()

    async def attempt(
        self, around: Surroundings, tests: Sequence[str], only: str, number: int
    ) -> list[TestResult]:
        report = around.logs / f"{self.name}-{number}.xml"
        report.unlink(missing_ok=True)
        plugins = [text for plugin in self.plugins for text in ("-p", plugin)]
        select = ["-k", only] if only else []
        command = [
            *(str(self.python), "-c", _PROGRAM, *_OPTIONS, *plugins, f"--junitxml={report}"),
            *(f"--rootdir={self.folder}", *select, *(tests or self.tests)),
        ]
        path = ":".join(str(folder) for folder in (*self.python_path, *self.plugin_path))
        environment = around.environment(
            PYTHONPATH=path,
            PYTEST_ADDOPTS="",
            # A checkout may be read-only.
            PYTHONDONTWRITEBYTECODE="1",
        )
        progress = Progress(self.name, around.say)
        log = around.logs / f"{self.name}-{number}.log"
        with log.open("wb") as file:
            async with running_tests(command, self.folder, environment) as output:
                async for line in output:
                    file.write(line)
                    _follow(line.decode(errors="replace").split(), progress)
        return read_junit(report, number, _id_of)


def _follow(words: list[str], progress: Progress) -> None:
    if len(words) > 1 and words[1] in _PROGRESS_WORDS and "::" in words[0]:
        progress.ended(words[0].partition("::")[2], failed=words[1] in ("FAILED", "ERROR"))


def _id_of(case: ElementTree.Element) -> str:
    """Return the id that pytest takes: `tests/test_js.py::KVTest::test_kv_simple`."""
    file = case.get("file") or ""
    module = file.removesuffix(".py").replace("/", ".")
    owner = (case.get("classname") or "").removeprefix(module).lstrip(".")
    return "::".join(part for part in (file, owner, case.get("name") or "") if part)


def retrying(suite: PythonSuite) -> PythonSuite:
    """Return the suite with requests that are tried again, and checks of what is stored."""
    return replace(suite, plugins=("holdfast_retrying",), plugin_path=(_OWN_PARTS,))


def prepared(name: str, checkout: Path | None, scratch: Path) -> PythonSuite:
    """Return a suite, from a checkout or else from the package index. Raises Missing."""
    if checkout is not None:
        return _from_checkout(name, checkout)
    return _FROM_INDEX[name](scratch)


def _from_checkout(name: str, checkout: Path) -> PythonSuite:
    folder = checkout / ("nats" if name == "nats-py" else name)
    if not (folder / "tests").is_dir():
        raise Missing(f"{checkout} is no checkout of nats-io/nats.py: no {folder.name}/tests")
    packages = ("nats",) if name == "nats-py" else _NEXT
    tests = "tests/test_js.py" if name == "nats-py" else "tests"
    path = tuple(checkout / package / "src" for package in packages)
    return _suite(name, CHECKOUT, folder, tests, path)


def _nats_py_of_index(scratch: Path) -> PythonSuite:
    """The tests come without the module that starts their servers."""
    source = fetched(NATS_PY)
    folder = scratch / "nats-py"
    shutil.copytree(source / "tests", folder / "tests")
    for stored in ("pyproject.toml", "README.md"):
        # Some tests put these into an object store.
        shutil.copy(source / stored, folder)
    (folder / "tests" / "__init__.py").touch()
    shutil.copy(_OWN_PARTS / "nats_py_utils.py", folder / "tests" / "utils.py")
    return _suite("nats-py", INDEX, folder, "tests/test_js.py", (folder, source / "src"))


def _key_value_of_index(scratch: Path) -> PythonSuite:
    """The tests come without their fixtures, and without the package that starts servers."""
    source = fetched(NATS_KEY_VALUE)
    folder = scratch / "nats-key-value"
    shutil.copytree(source / "tests", folder / "tests")
    shutil.copy(_OWN_PARTS / "key_value_conftest.py", folder / "tests" / "conftest.py")
    (folder / "pytest.ini").write_text("[pytest]\nasyncio_mode = auto\n")
    path = (source / "src", fetched(NATS_JETSTREAM), fetched(NATS_CORE), _OWN_PARTS)
    return _suite("nats-key-value", INDEX, folder, "tests", path)


def _jetstream_of_index(scratch: Path) -> PythonSuite:
    raise Missing("its tests are in no package: give --checkout")


_FROM_INDEX: Final[Mapping[str, Callable[[Path], PythonSuite]]] = {
    "nats-py": _nats_py_of_index,
    "nats-jetstream": _jetstream_of_index,
    "nats-key-value": _key_value_of_index,
}
SUITE_NAMES: Final = tuple(_FROM_INDEX)


def _suite(name: str, source: str, folder: Path, tests: str, path: tuple[Path, ...]) -> PythonSuite:
    python = suites_python(_ANY_PYTHON if name == "nats-py" else _NEXT_PYTHON)
    return PythonSuite(name, source, _COUNTS[name, source], python, folder, (tests,), path)
