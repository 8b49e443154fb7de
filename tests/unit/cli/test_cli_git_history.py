"""The history of small repositories that git itself makes."""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import Iterable
from pathlib import Path

import pytest

from holdfast.cli.demo.git_history import (
    BlobReader,
    GitError,
    blob_sizes,
    read_versions,
    repository_root,
)
from tests.support import small_repository

ENVIRONMENT = {
    **small_repository.ENVIRONMENT,
    "GIT_AUTHOR_NAME": "Ada Lövelace",
    "GIT_AUTHOR_EMAIL": "ada@example.org",
    "GIT_AUTHOR_DATE": "2026-01-02T03:04:05+01:00",
    "GIT_COMMITTER_NAME": "Ada",
    "GIT_COMMITTER_EMAIL": "ada@example.org",
}


def git(repository: Path, *arguments: str) -> str:
    return subprocess.run(
        ["git", "-C", str(repository), *arguments],
        env=ENVIRONMENT,
        check=True,
        capture_output=True,
        text=True,
        timeout=30,
    ).stdout.strip()


def commit(repository: Path, **files: str) -> str:
    """Write files and commit whatever has changed; return the commit."""
    for name, content in files.items():
        (repository / name).write_text(content)
    git(repository, "add", "--all")
    git(repository, "commit", "--quiet", "--allow-empty", "--message", "change")
    return git(repository, "rev-parse", "HEAD")


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    folder = tmp_path / "repository"
    folder.mkdir()
    git(folder, "init", "--quiet", "--initial-branch=main")
    return folder


def changes(repository: Path) -> list[tuple[str, bytes]]:
    return [(one.status, one.path) for one in read_versions(repository)]


def contents(repository: Path, blobs: Iterable[str]) -> list[bytes]:
    """Return the contents of blobs, which are read at once."""

    async def read() -> list[bytes]:
        async with BlobReader(repository) as reader:
            return await asyncio.gather(*map(reader.read, blobs))

    return asyncio.run(read())


def test_each_commit_gives_the_files_it_changed_oldest_first(repository: Path) -> None:
    first = commit(repository, a="1")
    second = commit(repository, a="2", b="3")
    versions = list(read_versions(repository))
    assert [(one.commit.id, one.status, one.path) for one in versions] == [
        (first, "A", b"a"),
        (second, "M", b"a"),
        (second, "A", b"b"),
    ]
    assert contents(repository, [one.blob for one in versions]) == [b"1", b"2", b"3"]
    assert versions[0].commit.author == "Ada Lövelace"
    assert versions[0].commit.time == "2026-01-02T03:04:05+01:00"
    assert versions[0].mode == "100644"


def test_a_deletion_has_no_content(repository: Path) -> None:
    commit(repository, a="1")
    (repository / "a").unlink()
    commit(repository)
    assert list(read_versions(repository))[-1][1:] == (b"a", "D", "", "")


def test_a_rename_is_a_deletion_and_an_addition(repository: Path) -> None:
    commit(repository, a="the same content" * 20)
    (repository / "a").rename(repository / "b")
    commit(repository)
    assert sorted(changes(repository)[1:]) == [("A", b"b"), ("D", b"a")]


@pytest.mark.parametrize(
    "name",
    [
        *("with space", "ünï 日本", "quo\"te's", "\\back", ":colon", "-dash"),
        *("new\nline", "tab\t", "a\x01b"),
    ],
)
def test_odd_file_names_come_through(repository: Path, name: str) -> None:
    commit(repository, **{name: name})
    assert changes(repository) == [("A", name.encode())]


def test_a_name_that_is_no_text_comes_through(repository: Path) -> None:
    try:
        Path(os.fsdecode(os.fsencode(repository) + b"/\xff")).write_text("x")
    except OSError:
        pytest.skip("this file system takes UTF-8 names only")
    commit(repository)
    assert changes(repository) == [("A", b"\xff")]


def test_binary_and_empty_contents_come_through(repository: Path) -> None:
    values = [bytes(range(256)) * 3, b"", b"\n", b"no line end", b"\0"]
    for number, value in enumerate(values):
        (repository / str(number)).write_bytes(value)
    commit(repository)
    versions = list(read_versions(repository))
    assert contents(repository, [one.blob for one in versions]) == values
    sizes = blob_sizes(repository, [one.blob for one in versions])
    assert [sizes[one.blob] for one in versions] == [len(value) for value in values]


def test_a_symlink_is_its_target(repository: Path) -> None:
    (repository / "link").symlink_to("somewhere")
    commit(repository)
    [version] = read_versions(repository)
    assert version.mode == "120000"
    assert contents(repository, [version.blob]) == [b"somewhere"]


def test_a_commit_that_changes_nothing_gives_nothing(repository: Path) -> None:
    commit(repository, a="1")
    commit(repository)
    commit(repository)
    commit(repository, b="2")
    assert changes(repository) == [("A", b"a"), ("A", b"b")]


def test_a_merge_counts_as_one_commit_of_the_first_parent(repository: Path) -> None:
    commit(repository, a="1")
    git(repository, "checkout", "--quiet", "-b", "side")
    for number in range(3):
        commit(repository, side=str(number))
    git(repository, "checkout", "--quiet", "main")
    commit(repository, b="2")
    git(repository, "merge", "--quiet", "--no-ff", "-m", "merge", "side")
    versions = list(read_versions(repository))
    assert [one.path for one in versions] == [b"a", b"b", b"side"]
    assert contents(repository, [versions[-1].blob]) == [b"2"]


def test_a_submodule_is_left_out_and_deletes_the_file_it_replaces(repository: Path) -> None:
    first = commit(repository, a="1", file="2")
    git(repository, "update-index", "--add", "--cacheinfo", f"160000,{first},module")
    git(repository, "update-index", "--cacheinfo", f"160000,{first},file")
    git(repository, "commit", "--quiet", "--message", "modules")
    assert changes(repository) == [("A", b"a"), ("A", b"file"), ("D", b"file")]


def test_the_oldest_commit_of_a_shallow_clone_adds_all_its_files(
    repository: Path, tmp_path: Path
) -> None:
    for number in range(4):
        commit(repository, **{f"file{number}": str(number)})
    clone = tmp_path / "clone"
    git(tmp_path, "clone", "--quiet", "--depth", "2", repository.as_uri(), str(clone))
    assert changes(clone) == [("A", b"file0"), ("A", b"file1"), ("A", b"file2"), ("A", b"file3")]


def test_a_user_s_configuration_changes_nothing(repository: Path) -> None:
    commit(repository, ä="1" * 100)
    (repository / "ä").rename(repository / "b")
    commit(repository)
    plain = list(read_versions(repository))
    for name, value in {
        "diff.renames": "copies",
        "log.showRoot": "false",
        "log.showSignature": "true",
        "log.decorate": "full",
        "color.ui": "always",
        "core.quotePath": "true",
        "core.abbrev": "4",
        "format.pretty": "oneline",
        "diff.noprefix": "true",
        "i18n.logOutputEncoding": "latin1",
    }.items():
        git(repository, "config", name, value)
    assert list(read_versions(repository)) == plain
    assert len(plain) == 3


def test_reading_may_stop_anywhere(repository: Path) -> None:
    for number in range(50):
        (repository / f"file{number}").write_text("x")
    commit(repository)
    versions = read_versions(repository)
    assert next(versions).path == b"file0"
    del versions


def test_a_folder_without_repository_is_an_error(tmp_path: Path) -> None:
    assert repository_root(tmp_path) is None
    with pytest.raises(GitError, match="not a git repository"):
        list(read_versions(tmp_path))


def test_a_repository_without_commits_has_no_versions(repository: Path) -> None:
    assert list(read_versions(repository)) == []


def test_a_bare_repository_is_read_like_any_other(repository: Path, tmp_path: Path) -> None:
    commit(repository, a="1")
    bare = tmp_path / "bare.git"
    git(tmp_path, "clone", "--quiet", "--bare", str(repository), str(bare))
    assert repository_root(bare) == bare
    assert changes(bare) == [("A", b"a")]


def test_a_blob_that_the_clone_lacks_has_no_size_and_cannot_be_read(repository: Path) -> None:
    commit(repository, a="1")
    absent = "1" * 40
    assert blob_sizes(repository, [absent]) == {}
    with pytest.raises(GitError, match=absent):
        contents(repository, [absent])


def test_many_readers_at_once_get_their_own_blobs(repository: Path) -> None:
    for number in range(20):
        (repository / f"{number:02}").write_text(str(number) * (number * 1000))
    commit(repository)
    blobs = [one.blob for one in read_versions(repository)]
    assert contents(repository, blobs) == [(str(n) * (n * 1000)).encode() for n in range(20)]


def test_variables_of_a_surrounding_git_hook_do_not_lead_astray(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit(repository, a="1")
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "elsewhere"))
    assert changes(repository) == [("A", b"a")]
