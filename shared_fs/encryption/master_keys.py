"""Master keys: 32 bytes that wrap the data keys of tenants, from a file or from a command.

A key never appears in arguments, logs or errors; what names it is its id, a hash that tells nothing
of it. Several may be given, so that servers read what the old and the new one have wrapped while
the one replaces the other. Calls block.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import os
import shlex
import stat
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from holdfast.protocol.errors import InvalidArgumentError
from holdfast.shared_fs.disk.privacy import open_to_others
from holdfast.shared_fs.encryption.ciphers import KEY_BYTES

_ARGUMENT: Final = "master key"
_ID_CHARACTERS: Final = 16
_MAX_TEXT_BYTES: Final = 4096
_COMMAND_SECONDS: Final = 30.0


@dataclass(frozen=True, slots=True)
class MasterKey:
    """A master key. Its text shows its id alone."""

    key: bytes = field(repr=False)

    @property
    def id(self) -> str:
        digest = hashlib.sha256(b"holdfast master key\0" + self.key)
        return digest.hexdigest()[:_ID_CHARACTERS]


def read_master_keys(files: Sequence[Path], commands: Sequence[str]) -> Mapping[str, MasterKey]:
    """Return the master keys by id. Raises InvalidArgumentError."""
    found = [*map(key_in_file, files), *map(key_of_command, commands)]
    return {each.id: each for each in found}


def key_in_file(path: Path) -> MasterKey:
    """Return the key in a file that only its owner may read. Raises InvalidArgumentError."""
    try:
        with path.open("rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise _wrong(f"{path} is no file")
            mode = open_to_others(path)
            if mode is not None:
                raise _wrong(f"others may open {path} (mode {mode:04o}). Try: chmod go= {path}")
            return _parsed(file.read(_MAX_TEXT_BYTES + 1), str(path))
    except OSError as error:
        raise _wrong(f"{path} cannot be read: {error.strerror}") from error


def key_of_command(command: str) -> MasterKey:
    """Return the key that a command prints, run without a shell. Raises InvalidArgumentError."""
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise _wrong(f"the command makes no sense: {error}") from error
    if not words:
        raise _wrong("the command is empty")
    try:
        done = subprocess.run(
            words,
            check=False,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            timeout=_COMMAND_SECONDS,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        # The text of a timeout has what the command has printed.
        raise _wrong(f"{words[0]} did not run: {type(error).__name__}") from None
    if done.returncode:
        raise _wrong(f"{words[0]} ended with code {done.returncode}")
    return _parsed(done.stdout, words[0])


def _parsed(text: bytes, source: str) -> MasterKey:
    """Return the key that is written as 32 bytes, in hexadecimal or in Base64."""
    if len(text) == KEY_BYTES:
        return MasterKey(text)
    stripped = text.strip()
    for decode in (binascii.unhexlify, lambda each: base64.b64decode(each, validate=True)):
        try:
            key = decode(stripped)
        except (binascii.Error, ValueError):
            continue
        if len(key) == KEY_BYTES:
            return MasterKey(key)
    raise _wrong(f"{source} does not give {KEY_BYTES} bytes, as they are, in hex or in Base64")


def _wrong(reason: str) -> InvalidArgumentError:
    return InvalidArgumentError(argument=_ARGUMENT, reason=reason)
