"""`make setup` says how much it installs and how far it is, and fails as pip does. A script stands
for pip."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[3]
PIP = """#!/bin/sh
case "$*" in
    *" wheel "*)
        cat "$(dirname "$0")/../parts/built" > built
        if [ -e fail-to-build ]; then echo 'ERROR: no compiler' >&2; exit 4; fi
        touch "$(dirname "$0")/../parts/pyspark.whl" ;;
    *.whl) touch installed-what-was-built ;;
    *--requirement*)
        echo 'Collecting one==1.0 (from -r constraints.txt (line 1))'
        echo '  Downloading one-1.0.whl (10 kB)'
        echo 'Collecting two==2.0 (from -r constraints.txt (line 3))'
        if [ -e fail ]; then echo 'ERROR: no such wheel' >&2; exit 3; fi
        echo 'Installing collected packages: one, two' ;;
    *--editable*) touch installed ;;
esac
"""


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    shutil.copy(ROOT / "Makefile", tmp_path)
    (tmp_path / "pyproject.toml").touch()
    (tmp_path / "constraints.txt").write_text(
        "# by make lock\none==1.0 \\\n    --hash=sha256:00\ntwo==2.0 \\\n    --hash=sha256:00\n"
    )
    python = tmp_path / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(PIP)
    python.chmod(0o755)
    return tmp_path


def setup(clone: Path) -> subprocess.CompletedProcess[str]:
    surroundings = {name: value for name, value in os.environ.items() if "MAKE" not in name}
    how: dict[str, Any] = {"capture_output": True, "text": True, "timeout": 60}
    return subprocess.run(["make", "setup"], cwd=clone, env=surroundings, check=False, **how)


def test_setup_says_how_much_it_installs_and_how_far_it_is(clone: Path) -> None:
    done = setup(clone)
    assert done.returncode == 0, done.stderr
    lines = [line.rstrip() for line in done.stdout.splitlines()]
    assert lines[0].startswith("Installing holdfast and at most 2 packages, 1.5 GB in .venv")
    assert lines[1:3] == ["  1 of 2  one==1.0", "  2 of 2  two==2.0"]
    assert "Downloading" not in done.stdout
    assert (clone / "installed").exists()
    assert "up to date" in setup(clone).stdout or "Nothing to be done" in setup(clone).stdout


def test_setup_fails_with_the_last_words_of_pip(clone: Path) -> None:
    (clone / "fail").touch()
    done = setup(clone)
    assert done.returncode != 0
    assert "ERROR: no such wheel" in done.stdout
    assert not (clone / "installed").exists()
    assert not (clone / ".venv" / ".installed").exists()


def test_what_is_published_as_source_alone_is_built_beside_and_then_installed(clone: Path) -> None:
    source = "pyspark==4.0 \\\n    --hash=sha256:00\n    # via holdfast\n"
    with (clone / "constraints.txt").open("a") as constraints:
        constraints.write(source)
        constraints.write("three==3.0 \\\n    --hash=sha256:00\n")
    (clone / "fail-to-build").touch()
    failed = setup(clone)
    assert failed.returncode != 0 and "ERROR: no compiler" in failed.stdout
    assert not (clone / "installed").exists()
    (clone / "fail-to-build").unlink()
    done = setup(clone)
    assert done.returncode == 0, done.stdout + done.stderr
    assert (clone / "built").read_text() == source
    assert (clone / "installed-what-was-built").exists() and (clone / "installed").exists()
    assert not (clone / ".venv" / "parts").exists()
