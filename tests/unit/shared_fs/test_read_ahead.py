"""Where the messages of a store file are, and getting them into the host's memory."""

from __future__ import annotations

import random
from collections.abc import Iterable
from itertools import islice, pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.protocol.changes import CHANGE_DELETE_MESSAGES, CHANGE_SET_MESSAGE
from holdfast.protocol.limits import KIB, MIB
from holdfast.protocol.names import StoreId, StoreKind
from holdfast.shared_fs.read_ahead.bringing import CachedPiece, bring
from holdfast.shared_fs.read_ahead.host_cache import CachedFile, host_cache
from holdfast.shared_fs.read_ahead.tree_places import END, NotATreeError, spans
from holdfast.shared_fs.store_file.applying import AppliedBatch
from holdfast.shared_fs.store_file.pages.page_sizes import LARGE_PAGE_BYTES
from holdfast.shared_fs.store_file.schema import PAGE_BYTES
from holdfast.shared_fs.store_file.store_file import StoreFile
from tests.support.effort import examples

STREAM = StoreId("acme", StoreKind.STREAM, "a.b")
PAGE_SIZES = (PAGE_BYTES, LARGE_PAGE_BYTES)


def value(seq: int, size_bytes: int) -> bytes:
    """A value that is found in the file by its first and its last bytes."""
    begin, end = b"<begin %08d>" % seq, b"<end %08d>" % seq
    return begin + bytes(max(0, size_bytes - len(begin) - len(end))) + end


def stream_of(path: Path, sizes: Iterable[int], page_bytes: int = PAGE_BYTES) -> StoreFile:
    """Return the file of a stream of messages of these sizes, all of it checkpointed."""
    file = StoreFile.create(path, STREAM, time=1, page_bytes=page_bytes)
    changes = [[CHANGE_SET_MESSAGE, seq, value(seq, size)] for seq, size in enumerate(sizes, 1)]
    for start in range(0, len(changes), 500):
        file.apply([AppliedBatch(file.meta.revision, 1, changes[start : start + 500])])
    file.checkpoint()
    return file


class BytesFile:
    """A file in a list of what is read of it; nothing of it is in memory before."""

    def __init__(self, content: bytes) -> None:
        self.content = content
        self.brought: list[tuple[int, int]] = []
        #: The pages that were read one by one.
        self.reads: set[int] = set()

    def holds(self, offsets: Iterable[int]) -> bool:
        raise AssertionError("nobody asks")

    def read(self, offset: int, size_bytes: int) -> bytes:
        self.reads.add(offset // PAGE_BYTES)
        return self.content[offset : offset + size_bytes]

    def bring(self, offset: int, size_bytes: int) -> None:
        self.brought.append((offset, size_bytes))

    def disk_bytes(self) -> int:
        return sum(size_bytes for _, size_bytes in self.brought)

    def give_back(self, offset: int, size_bytes: int) -> None:
        raise AssertionError("nobody asks")


def pages_of(content: bytes) -> CachedFile:
    return BytesFile(content)


def holds(pieces: list[CachedPiece], content: bytes, mark: bytes, seq: int) -> bool:
    """Tell whether the piece that claims a seq has the bytes of `mark`, or the one before it: there
    the long value may be that a leaf begins with."""
    claiming = [piece for piece in pieces if piece.first_seq <= seq <= piece.last_seq]
    index = pieces.index(claiming[0])
    around = pieces[max(0, index - 1) : index + 1]
    return any(
        mark in content[piece.offset : piece.offset + piece.size_bytes] for piece in around
    )


@pytest.mark.parametrize(
    ("count", "largest"), [(1, 10), (30, 10), (20_000, 300), (3000, 4000), (300, 70_000)]
)
@pytest.mark.parametrize("page_bytes", PAGE_SIZES)
def test_each_message_lies_where_the_tree_says(
    tmp_path: Path, count: int, largest: int, page_bytes: int
) -> None:
    chance = random.Random(count)
    sizes = [chance.randint(30, max(30, largest)) for _ in range(count)]
    file = stream_of(tmp_path / "a.db", sizes, page_bytes)
    root, content = file.messages_root(), file.path.read_bytes()
    file.abandon()
    for start_seq in {1, 2, count // 3 or 1, count - 1 or 1, count}:
        pieces = bring(pages_of(content), root, start_seq, 1 << 40).pieces
        assert pieces[0].first_seq == start_seq
        assert pieces[-1].last_seq == END
        for before, after in pairwise(pieces):
            assert after.first_seq == before.last_seq + 1
        told = range(start_seq, count + 1)
        if largest >= page_bytes // 2:
            # The end of a value may lie beyond the last leaf, where the tree says nothing more; or
            # before the first one, which SQLite has moved when it added the second.
            told = range(max(start_seq, 4), count - 10)
        for seq in list(told)[:: max(1, len(told) // 60)]:
            assert holds(pieces, content, b"<begin %08d>" % seq, seq)
            assert holds(pieces, content, b"<end %08d>" % seq, seq)


@pytest.mark.parametrize("page_bytes", PAGE_SIZES)
def test_a_file_out_of_order_is_told_page_by_page(tmp_path: Path, page_bytes: int) -> None:
    size = page_bytes // 5
    file = stream_of(tmp_path / "a.db", [size] * 3000, page_bytes)
    # Later messages fill the pages that these leave, here and there.
    gone = [seq for seq in range(1, 3001) if seq // 40 % 3 == 0]
    file.apply([AppliedBatch(file.meta.revision, 1, [[CHANGE_DELETE_MESSAGES, gone]])])
    more = [[CHANGE_SET_MESSAGE, seq, value(seq, size)] for seq in range(3001, 6001)]
    file.apply([AppliedBatch(file.meta.revision, 1, more)])
    file.checkpoint()
    root, content = file.messages_root(), file.path.read_bytes()
    file.abandon()
    pieces = bring(pages_of(content), root, 1, 1 << 40).pieces
    for seq in range(1, 6001, 41):
        if seq not in gone:
            assert holds(pieces, content, b"<begin %08d>" % seq, seq)
    ordered = sum(after.offset > before.offset for before, after in pairwise(pieces))
    assert ordered < len(pieces) - 1, "the file is in order after all"


def test_long_values_that_go_on_anywhere_are_brought_too(tmp_path: Path) -> None:
    file = stream_of(tmp_path / "a.db", [1500] * 1000)
    gone = [seq for seq in range(1, 1001) if seq // 5 % 2]
    file.apply([AppliedBatch(file.meta.revision, 1, [[CHANGE_DELETE_MESSAGES, gone]])])
    more = [[CHANGE_SET_MESSAGE, seq, value(seq, 5000)] for seq in range(1001, 1101)]
    file.apply([AppliedBatch(file.meta.revision, 1, more)])
    file.checkpoint()
    root, content = file.messages_root(), file.path.read_bytes()
    file.abandon()
    source = BytesFile(content)
    bring(source, root, 1001, 1 << 40)
    pages = set(source.reads)
    for offset, size_bytes in source.brought:
        pages |= set(range(offset // PAGE_BYTES, (offset + size_bytes) // PAGE_BYTES))
    found = sum(
        content.index(b"<end %08d>" % seq) // PAGE_BYTES in pages for seq in range(1001, 1101)
    )
    assert found >= 90


@pytest.mark.parametrize("page_bytes", PAGE_SIZES)
def test_about_as_much_is_brought_as_was_wanted(tmp_path: Path, page_bytes: int) -> None:
    file = stream_of(tmp_path / "a.db", [250] * 20_000, page_bytes)
    root, content = file.messages_root(), file.path.read_bytes()
    file.abandon()
    for wanted in (1, 100 * KIB, 512 * KIB, 2 * MIB):
        source = BytesFile(content)
        pieces = bring(source, root, 5000, wanted).pieces
        brought = sum(size_bytes for _, size_bytes in source.brought)
        assert brought == sum(piece.disk_bytes for piece in pieces)
        assert wanted <= brought <= wanted + MIB
    assert len(bring(BytesFile(content), root, 1, 4 * MIB, most_pieces=2).pieces) == 2


def test_what_the_system_has_read_ahead_is_credited_to_what_follows(tmp_path: Path) -> None:
    file = stream_of(tmp_path / "a.db", [250] * 40_000)
    root, content = file.messages_root(), file.path.read_bytes()
    file.abandon()

    class EagerFile(BytesFile):
        def disk_bytes(self) -> int:
            return 4 * MIB if self.brought else 0

    source = EagerFile(content)
    pieces, surplus_bytes = bring(source, root, 1, 2 * MIB)
    brought_bytes = sum(piece.size_bytes for piece in pieces)
    assert [piece.disk_bytes for piece in pieces] == [piece.size_bytes for piece in pieces]
    assert surplus_bytes == 4 * MIB - brought_bytes
    more, left_bytes = bring(source, root, pieces[-1].last_seq + 1, 4 * MIB, surplus_bytes)
    assert left_bytes == 0
    assert sum(piece.disk_bytes for piece in more) == surplus_bytes
    assert more[0].disk_bytes == more[0].size_bytes and more[-1].disk_bytes == 0


@settings(max_examples=examples(400), deadline=None)
@given(
    content=st.lists(st.binary(min_size=PAGE_BYTES, max_size=PAGE_BYTES), max_size=4),
    kinds=st.lists(st.sampled_from([0x05, 0x0D]), min_size=4, max_size=4),
    counts=st.lists(st.integers(0, 600), min_size=4, max_size=4),
    root=st.integers(1, 5),
    start_seq=st.integers(1, END),
)
def test_bytes_that_are_no_tree_are_found_out_or_bounded(
    content: list[bytes], kinds: list[int], counts: list[int], root: int, start_seq: int
) -> None:
    pages = [
        bytes((kind, 0, 0)) + count.to_bytes(2, "big") + page[5:8] + b"\0\0\0\1" + page[12:]
        for page, kind, count in zip(content, kinds, counts, strict=False)
    ]

    def read_page(number: int) -> bytes:
        return pages[number - 1] if number <= len(pages) else b""

    try:
        for span in islice(spans(read_page, PAGE_BYTES, root, start_seq), 1000):
            assert span.offset >= 0 and span.size_bytes >= PAGE_BYTES
            assert span.first_seq <= span.last_seq
    except NotATreeError:
        pass


def test_a_tree_whose_seqs_go_back_is_found_out() -> None:
    # An interior page with the leaves 2 up to seq 10, 3 up to seq 5, and 4.
    cells = b"\0\0\0\2\x0a" + b"\0\0\0\3\x05"
    pointers = (1000).to_bytes(2, "big") + (1005).to_bytes(2, "big")
    header = b"\x05\0\0\0\2\0\0\0\0\0\0\4"
    page = (header + pointers).ljust(1000, b"\0") + cells.ljust(PAGE_BYTES - 1000, b"\0")
    leaf = b"\x0d".ljust(PAGE_BYTES, b"\0")
    found = spans(
        lambda number: page if number == 1 else leaf, PAGE_BYTES, 1, 1, leaf_by_leaf=True
    )
    assert next(found).last_seq == 10
    with pytest.raises(NotATreeError):
        next(found)


def test_what_was_let_go_is_brought_from_the_disk_and_then_held(tmp_path: Path) -> None:
    cache = host_cache()
    if cache is None:
        pytest.skip("this system does not tell what is in memory")
    file = stream_of(tmp_path / "a.db", [250] * 20_000)
    found = cache.find(file.path)
    if found is None:
        file.abandon()
        pytest.skip("this file system does not tell what is in memory")
    size_bytes = file.size_bytes()
    assert found.holds([0, size_bytes // 2, size_bytes - 1, size_bytes + MIB])
    found.give_back(0, size_bytes)
    before = cache.disk_reads()
    if found.holds([size_bytes // 2]):
        file.abandon()
        pytest.skip("this file system keeps all in memory")
    pieces = bring(found, file.messages_root(), 1, MIB).pieces
    assert cache.disk_reads() > before
    assert sum(piece.disk_bytes for piece in pieces) > MIB // 2
    assert all(found.holds([piece.offset, piece.offset + piece.size_bytes - 1]) for piece in pieces)
    file.abandon()
    assert not found.holds([0])
    with pytest.raises(OSError):
        found.read(0, 1)
    assert cache.find(file.path) is None
