"""Reads the history of a git repository: the versions of its files, and their contents.

It follows first parents, so a merge counts as one commit with all the merged changes. The
oldest commit counts as adding all its files, also in a shallow clone. A rename is a deletion
and an addition. It only reads, with the `git` program and options whose meaning no user's
configuration changes.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Final, NamedTuple, Self

from holdfast.protocol.errors import HoldfastError

_READ_BYTES: Final = 256 * 1024
_SUBMODULE: Final = "160000"
_ANSWER_SECONDS: Final = 60.0


class GitError(HoldfastError):
    """There is no repository, no git, or git failed."""

    code = "git"
    template = "git in {repository}: {reason}"


class Commit(NamedTuple):
    """One commit. `time` is the author's, in ISO 8601 with its zone."""

    id: str
    author: str
    time: str


class FileVersion(NamedTuple):
    """One change of one file. A deletion has the status `D`, an empty mode and an empty blob."""

    commit: Commit
    path: bytes
    status: str
    mode: str
    blob: str


def repository_root(directory: Path) -> Path | None:
    """Return the top folder of the repository that contains `directory`, or None."""
    if not directory.is_dir():
        return None
    for question in ("--show-toplevel", "--absolute-git-dir"):
        # A bare repository has no top folder; it is the folder itself.
        answer = _run(directory, ["rev-parse", question])
        if answer.returncode == 0:
            return Path(os.fsdecode(answer.stdout.removesuffix(b"\n")))
    return None


def read_versions(repository: Path) -> Iterator[FileVersion]:
    """Yield each version of each file, oldest commit first. Raises GitError.

    Submodules are not files: if one replaces a file, the file counts as deleted.
    """
    command = [
        "-c", "log.showSignature=false", "-c", "log.showRoot=true",
        "-c", "diff.ignoreSubmodules=none",
        "log", "--reverse", "--first-parent", "--diff-merges=first-parent", "--raw", "-z",
        "--no-abbrev", "--no-renames", "--no-ext-diff", "--no-textconv", "--no-notes", "--no-color",
        "--no-mailmap", "--encoding=UTF-8", "--format=%H%x01%aI%x01%an",
    ]  # fmt: skip
    if _run(repository, ["rev-parse", "--verify", "--quiet", "HEAD"]).returncode != 0:
        # A repository without commits has no history, which is not an error.
        if repository_root(repository) is None:
            raise GitError(repository=str(repository), reason="not a git repository")
        return
    with _output(repository, command) as output:
        yield from _parse(_tokens(output))


def blob_sizes(repository: Path, blobs: Iterable[str]) -> dict[str, int]:
    """Return the size in bytes of each blob, without blobs that this clone lacks."""
    request = "".join(f"{blob}\n" for blob in blobs).encode()
    answer = _run(repository, ["cat-file", "--batch-check"], request)
    if answer.returncode != 0:
        raise GitError(repository=str(repository), reason=_reason(answer.stderr))
    sizes = {}
    for line in answer.stdout.decode().splitlines():
        blob, _, rest = line.partition(" ")
        kind, _, size = rest.partition(" ")
        if kind == "blob":
            sizes[blob] = int(size)
    return sizes


class BlobReader:
    """Reads blobs through one `git cat-file --batch`. An async context manager.

    Many callers may read at once. They are served one after the other.
    """

    def __init__(self, repository: Path) -> None:
        self._repository = repository
        self._turn = asyncio.Lock()
        self._process: asyncio.subprocess.Process | None = None

    async def __aenter__(self) -> Self:
        self._process = await asyncio.create_subprocess_exec(
            *_command(self._repository, ["cat-file", "--batch"]),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            env=_environment(),
        )
        return self

    async def __aexit__(self, *exception: object) -> None:
        assert self._process is not None
        if self._process.returncode is None:
            self._process.kill()
        await self._process.wait()

    async def read(self, blob: str) -> bytes:
        """Return the content of a blob. Raises GitError."""
        assert self._process is not None
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        try:
            async with self._turn, asyncio.timeout(_ANSWER_SECONDS):
                stdin.write(f"{blob}\n".encode())
                await stdin.drain()
                head = (await stdout.readline()).split()
                if len(head) != 3:
                    raise GitError(repository=str(self._repository), reason=f"no blob {blob}")
                content = await stdout.readexactly(int(head[2]) + 1)
        except (asyncio.IncompleteReadError, TimeoutError, ConnectionError) as error:
            raise GitError(
                repository=str(self._repository), reason=f"cat-file ended at blob {blob}"
            ) from error
        return content[:-1]


def _parse(tokens: Iterator[bytes]) -> Iterator[FileVersion]:
    """Parse a sequence of `commit NUL (LF? :modes-blobs-status NUL path NUL)*`."""
    commit: Commit | None = None
    for token in tokens:
        if not token:
            continue
        if not token.lstrip(b"\n").startswith(b":"):
            id_, time, author = token.decode(errors="replace").lstrip("\n").split("\x01", 2)
            commit = Commit(id_, author, time)
            continue
        assert commit is not None
        old_mode, mode, _, blob, status = token.lstrip(b"\n:").decode().split(" ")
        path = next(tokens)
        if mode == _SUBMODULE and old_mode in (_SUBMODULE, "000000"):
            continue
        if mode in (_SUBMODULE, "000000"):
            if old_mode != _SUBMODULE:
                yield FileVersion(commit, path, "D", "", "")
        else:
            yield FileVersion(commit, path, status[:1], mode, blob)


def _tokens(output: IO[bytes]) -> Iterator[bytes]:
    pending = b""
    while chunk := output.read(_READ_BYTES):
        *whole, pending = (pending + chunk).split(b"\0")
        yield from whole
    if pending:
        yield pending


@contextmanager
def _output(repository: Path, arguments: list[str]) -> Iterator[IO[bytes]]:
    """Run git while the body reads its output. The body may stop before the end."""
    process = _start(repository, arguments)
    assert process.stdout is not None
    assert process.stderr is not None
    with process:
        try:
            yield process.stdout
        except BaseException:
            process.kill()
            raise
        reason = process.stderr.read()
    if process.returncode != 0:
        raise GitError(repository=str(repository), reason=_reason(reason))


def _start(repository: Path, arguments: list[str]) -> subprocess.Popen[bytes]:
    try:
        return subprocess.Popen(
            _command(repository, arguments),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=_environment(),
        )
    except FileNotFoundError as error:
        raise GitError(repository=str(repository), reason="no git program on PATH") from error


def _run(
    repository: Path, arguments: list[str], request: bytes = b""
) -> subprocess.CompletedProcess[bytes]:
    try:
        return subprocess.run(
            _command(repository, arguments),
            input=request,
            capture_output=True,
            env=_environment(),
            check=False,
        )
    except FileNotFoundError as error:
        raise GitError(repository=str(repository), reason="no git program on PATH") from error


def _command(repository: Path, arguments: list[str]) -> list[str]:
    return ["git", "--no-pager", "-C", str(repository), *arguments]


def _environment() -> dict[str, str]:
    """Return the environment without variables that a surrounding git hook sets
    for its repository."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    # Configuration in the environment stays in force, above all safe.directory.
    kept |= {name: value for name, value in os.environ.items() if name.startswith("GIT_CONFIG")}
    return kept | {"LC_ALL": "C", "GIT_OPTIONAL_LOCKS": "0", "GIT_NO_LAZY_FETCH": "1"}


def _reason(stderr: bytes) -> str:
    lines = stderr.decode(errors="replace").strip().splitlines()
    return lines[-1].removeprefix("fatal: ") if lines else "it failed and said nothing"
