"""Where other people's tests come from. Nothing of theirs is part of this repository.

From the package index, with pinned hashes, comes what it has: the tests of nats-py's last version
that ships any, and those of nats-key-value. A checkout of the clients' repository has all tests of
its day. Both are run by a Python of their own in a folder that git ignores.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path
from typing import Final, NamedTuple

HERE: Final = Path(__file__).parent
#: Beside `.venv`; ignored by git.
CACHE: Final = HERE.parents[1] / ".jetstream-suites"
#: nats-core and its neighbours use the syntax of Python 3.12.
_PYTHONS: Final = ("python3.14", "python3.13", "python3.12")
_STEP_SECONDS: Final = 600.0


class Missing(Exception):
    """A suite cannot be had here."""


class Distribution(NamedTuple):
    """A file of the package index."""

    name: str
    version: str
    sha256: str
    is_source: bool = False


NATS_PY: Final = Distribution(
    "nats-py", "2.14.0", "4ed02cb8e3b55c68074a063aa2687087115d805d1513297da90cb2068fb07bed", True
)
NATS_KEY_VALUE: Final = Distribution(
    "nats-key-value",
    "0.1.0",
    "1c4a3adfc213815748c6c9191b5711b827584b994bce9d76689b8eb4052d85ba",
    True,
)
NATS_JETSTREAM: Final = Distribution(
    "nats-jetstream", "0.3.0", "5ff60b2674bdf7cb5ec01fcddc81b6ffe8c37310cc4130c6aee2aad208f68e54"
)
NATS_CORE: Final = Distribution(
    "nats-core", "0.2.0", "86ffc0531509945cc114c03c25b6d9b1a0a4ff1f5a6a30074e3a43d3fbefa687"
)


def fetched(distribution: Distribution) -> Path:
    """Return the folder with what a distribution contains; download it if this is the first time.

    Raises Missing.
    """
    name = f"{distribution.name.replace('-', '_')}-{distribution.version}"
    folder = CACHE / name
    if folder.exists():
        return folder
    download = CACHE / "download" / name
    shutil.rmtree(download, ignore_errors=True)
    download.mkdir(parents=True)
    pinned = f"{distribution.name}=={distribution.version} --hash=sha256:{distribution.sha256}\n"
    (download / "requirements.txt").write_text(pinned)
    form = "--no-binary" if distribution.is_source else "--only-binary"
    # Nothing is built or installed, so neither the build system nor this Python's version matters.
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--require-hashes", "--no-deps"]
    command += ["--no-build-isolation", "--ignore-requires-python", form, ":all:"]
    _run([*command, "--dest", str(download), "-r", str(download / "requirements.txt")])
    unpacked = download / "unpacked"
    [archive] = [each for each in download.iterdir() if each.name.startswith(name)]
    if archive.suffix == ".whl":
        with zipfile.ZipFile(archive) as wheel:
            wheel.extractall(unpacked)
        unpacked.replace(folder)
    else:
        with tarfile.open(archive) as sdist:
            sdist.extractall(unpacked, filter="data")
        (unpacked / name).replace(folder)
    return folder


def suites_python(at_least: tuple[int, int]) -> Path:
    """Return a Python with what the suites need, in a virtual environment of their own.

    Raises Missing, also if it is not new enough.
    """
    python = _suites_python()
    code = f"import sys; sys.exit(sys.version_info < {at_least})"
    if subprocess.run([str(python), "-c", code], check=False).returncode != 0:
        wanted = ".".join(str(number) for number in at_least)
        raise Missing(f"it needs Python {wanted} or newer; none of these is: {_PYTHONS}")
    return python


def _suites_python() -> Path:
    wanted = (HERE / "requirements.txt").read_bytes()
    home = CACHE / "venv"
    python, stamp = home / "bin" / "python", home / "installed.txt"
    if stamp.exists() and stamp.read_bytes() == wanted:
        return python
    shutil.rmtree(home, ignore_errors=True)
    _run([_base_python(), "-m", "venv", str(home)])
    pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    _run([*pip, "--require-hashes", "-r", str(HERE / "requirements.txt")])
    stamp.write_bytes(wanted)
    return python


def _base_python() -> str:
    """Return the newest Python, this one if there is no newer. A command that is there may still
    not run (a version manager's shim), so each is tried."""
    managed = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"), "versions")
    candidates = [
        *(path for name in _PYTHONS if (path := shutil.which(name)) is not None),
        *(str(found / "bin" / "python3") for found in sorted(managed.glob("3.1[2-9]*"))[::-1]),
        sys.executable,
    ]
    for candidate in candidates:
        tried = subprocess.run(
            [candidate, "-c", "import ensurepip, venv"], capture_output=True, check=False
        )
        if tried.returncode == 0:
            return candidate
    raise Missing("this Python cannot make virtual environments")


def _run(command: list[str]) -> None:
    try:
        subprocess.run(command, check=True, capture_output=True, text=True, timeout=_STEP_SECONDS)
    except subprocess.CalledProcessError as error:
        last = (error.stderr or error.stdout).strip().splitlines()[-1:]
        raise Missing(f"{' '.join(command[:4])} failed: {' '.join(last)}") from error
