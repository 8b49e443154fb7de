"""A file with a secret: new, and for this user alone."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from holdfast.protocol.errors import InvalidArgumentError


@contextmanager
def new_file(path: Path | None) -> Iterator[TextIO | None]:
    """Open a new file for this user alone around the body, or nothing without a path. It is removed
    if the body fails. Raises InvalidArgumentError if `path` exists, OSError."""
    if path is None:
        yield None
        return
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError as error:
        reason = f"{path} exists, and may be needed. Try: name a new file"
        raise InvalidArgumentError(argument="file", reason=reason) from error
    try:
        with os.fdopen(descriptor, "w") as file:
            yield file
    except BaseException:
        path.unlink(missing_ok=True)
        raise
