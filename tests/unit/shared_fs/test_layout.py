"""The layout: a folder of ours is known, a stranger's is left alone, no two stores share a path."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.protocol.errors import NewerFormatError, StorageFailedError, StoreDamagedError
from holdfast.protocol.names import StoreId, StoreKind
from holdfast.shared_fs.disk.disk import Disk
from holdfast.shared_fs.disk.layout import FORMAT_VERSION, HASH_FOLDER, Layout, open_layout
from tests.support.effort import examples

DISK = Disk()
NAMES = st.from_regex(r"[a-z=%-]{1,4}(\.[a-z=%-]{1,4}){0,2}", fullmatch=True)
STORES = st.builds(StoreId, st.sampled_from(["a", "b"]), st.sampled_from(StoreKind), NAMES)


def test_a_missing_or_empty_folder_is_made_ours_and_found_again(tmp_path: Path) -> None:
    for root in (tmp_path / "new" / "deep", tmp_path / "empty"):
        if root.name == "empty":
            root.mkdir()
        layout = open_layout(root, DISK)
        assert layout.format_file.read_text() == "holdfast shared file system, format 1\n"
        assert open_layout(root, DISK) == layout


def test_a_crash_before_the_first_file_was_renamed_does_not_make_it_a_strangers(
    tmp_path: Path,
) -> None:
    (tmp_path / "FORMAT.17-abcd.tmp").write_bytes(b"hold")
    (tmp_path / "lost+found").mkdir()
    assert open_layout(tmp_path, DISK).format_file.exists()


def test_a_folder_with_something_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    with pytest.raises(StoreDamagedError, match="photos"):
        open_layout(tmp_path, DISK)
    assert [path.name for path in tmp_path.iterdir()] == ["photos"]


def test_the_tree_of_a_later_version_is_refused(tmp_path: Path) -> None:
    (tmp_path / "FORMAT").write_text("holdfast shared file system, format 2\n")
    with pytest.raises(NewerFormatError) as caught:
        open_layout(tmp_path, DISK)
    assert (caught.value.found, caught.value.known) == (2, FORMAT_VERSION)


@pytest.mark.parametrize(
    "content",
    [b"", b"\n", b"7", b"\xff\xfe", "holdfast shared file system, format ²".encode(),
     b"holdfast shared file system, format ", b"holdfast shared file system, format -1"],
)  # fmt: skip
def test_a_damaged_format_file_is_never_taken_for_a_new_tree(
    tmp_path: Path, content: bytes
) -> None:
    (tmp_path / "FORMAT").write_bytes(content)
    with pytest.raises(StoreDamagedError):
        open_layout(tmp_path, DISK)
    assert (tmp_path / "FORMAT").read_bytes() == content


def test_a_root_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(StorageFailedError):
        open_layout(tmp_path / "file", DISK)


@given(STORES, STORES, st.integers(1, 3), st.integers(1, 3))
@settings(deadline=None, max_examples=examples(300))
def test_no_two_stores_or_generations_share_a_path(
    one: StoreId, other: StoreId, generation: int, other_generation: int
) -> None:
    layout = Layout(Path("/data"))
    same = (one, generation) == (other, other_generation)
    assert (layout.store(one, generation) == layout.store(other, other_generation)) == same


def test_paths_do_not_depend_on_how_the_kind_is_given() -> None:
    layout = Layout(Path("/data"))
    path = layout.store(StoreId("acme", StoreKind.STREAM, "project.42"))
    assert path == layout.store(StoreId("acme", 1, "project.42"))
    assert path.name == "project.42.stream.1.db"
    assert path.parts[:4] == ("/", "data", "stores", "acme")
    assert HASH_FOLDER.fullmatch(path.parts[4])
    assert len(path.parts) == 6


def test_an_incarnations_files_lie_in_its_folder() -> None:
    layout = Layout(Path("/data"))
    home = layout.incarnation("s1", "i1")
    assert layout.fence("s1", "i1").parent == home
    assert layout.log("s1", "i1").parent == home


def test_a_tree_that_another_process_begins_meanwhile_is_no_strangers(tmp_path: Path) -> None:
    class Late(Disk):
        def names(self, path: Path) -> list[str]:
            # The other one makes FORMAT after this process has looked for it.
            open_layout(path, DISK)
            (path / "servers").mkdir()
            return super().names(path)

    assert open_layout(tmp_path, Late()) == Layout(tmp_path)
