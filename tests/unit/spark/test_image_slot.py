"""Images that take turns on one connection read as if each had one of its own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apsw
import pytest
import zstandard

from holdfast.protocol.changes import CHANGE_SET_ENTRY, CHANGE_SET_MESSAGE
from holdfast.protocol.errors import StoreDamagedError
from holdfast.protocol.names import StoreId, StoreKind
from holdfast.shared_fs.snapshots.snapshot import compress, take_image
from holdfast.shared_fs.store_file.applying import AppliedBatch
from holdfast.shared_fs.store_file.store_file import StoreFile
from holdfast.spark.rows import image_slot
from holdfast.spark.rows.batches import ColumnPiece
from holdfast.spark.rows.image_rows import StoreImage
from holdfast.spark.rows.image_slot import ImageSlot, names_in


@pytest.fixture
def slot() -> Iterator[ImageSlot]:
    with ImageSlot() as made:
        yield made


def image(folder: Path, store: StoreId, *changes: Any) -> bytes:
    """Return the image of a store with these changes, all made in the same way."""
    path = folder / f"{store.name}.db"
    file = StoreFile.create(path, store, time=1)
    file.take(1, "s1", "i1")
    file.apply([AppliedBatch(0, 1000, list(changes))])
    file.checkpoint()
    snapshot = compress(take_image(file, path.with_suffix(".draft")), 1)
    file.abandon()
    assert isinstance(snapshot.body, bytes)
    return zstandard.ZstdDecompressor().decompressobj().decompress(snapshot.body)


def stream(name: str) -> StoreId:
    return StoreId("acme", StoreKind.STREAM, name)


def messages(text: bytes, count: int, subject: str | None = None) -> list[Any]:
    more = [] if subject is None else [None, None, None, subject]
    return [[CHANGE_SET_MESSAGE, seq, b"%s %d" % (text, seq), *more] for seq in range(1, count + 1)]


def read(store: StoreId, content: bytes, slot: ImageSlot | None) -> list[Any]:
    opened = StoreImage(store, content, None, slot)
    try:
        found = []
        for piece in opened.pieces(opened.reading(None), 1, "s"):
            rows = piece.pieces() if isinstance(piece, ColumnPiece) else [piece]
            found += [row for one in rows for row in one.rows]
        return found
    finally:
        opened.close()


def test_images_that_take_turns_read_as_if_each_had_a_connection_of_its_own(
    tmp_path: Path, slot: ImageSlot
) -> None:
    kv = StoreId("acme", StoreKind.KV, "settings")
    images = {
        store: image(tmp_path, store, *changes)
        for store, changes in (
            (stream("first"), messages(b"one", 50)),
            # As many bytes, and as many changes of the file.
            (stream("other"), messages(b"two", 50)),
            (stream("about"), messages(b"three", 9, "orders.new")),
            (kv, [[CHANGE_SET_ENTRY, "theme", b"dark"]]),
            (stream("large"), messages(b"x" * 500, 300)),
            (stream("empty"), []),
        )
    }
    expected = {store: read(store, content, None) for store, content in images.items()}
    assert len(expected[stream("about")][0]) > len(expected[stream("first")][0])
    for _ in range(2):
        for order in (list(images), sorted(images), sorted(images, reverse=True)):
            for store in order:
                assert read(store, images[store], slot) == expected[store], store


def test_stores_of_a_kind_share_what_was_parsed_and_others_do_not(
    tmp_path: Path, slot: ImageSlot
) -> None:
    first, other = (image(tmp_path, stream(name), *messages(b"v", 3)) for name in "ab")
    plain = image_slot._schema_pages(first)
    assert plain is not None and plain == image_slot._schema_pages(other)
    # Its file has another header, and so the first page another checksum.
    many = image(tmp_path, stream("many"), *messages(b"v", 300))
    assert image_slot._schema_pages(many) == plain
    about = image(tmp_path, stream("c"), *messages(b"v", 3, "orders.new"))
    assert image_slot._schema_pages(about) != plain
    for content in (first, about, other):
        opened = slot.put(content)
        assert opened.names == names_in(opened.connection)


def test_a_reader_that_did_not_end_does_not_see_the_next_image(
    tmp_path: Path, slot: ImageSlot
) -> None:
    first, other = (image(tmp_path, stream(name), *messages(name.encode(), 200)) for name in "ab")
    cursor = slot.put(first).connection.execute("SELECT value FROM messages ORDER BY seq")
    assert next(cursor) == (b"a 1",)
    values = slot.put(other).connection.execute("SELECT value FROM messages ORDER BY seq").get
    assert values[0] == b"b 1" and values[-1] == b"b 200"


@pytest.mark.parametrize("length", [0, 50, 150, 1023, 1500])
def test_what_is_no_image_is_an_error_and_disturbs_no_other(
    tmp_path: Path, slot: ImageSlot, length: int
) -> None:
    content = image(tmp_path, stream("a"), *messages(b"v", 3))
    with pytest.raises(apsw.Error):
        slot.put(content[:length]).connection.execute("SELECT * FROM messages").get  # noqa: B018
    assert len(read(stream("a"), content, slot)) == 3


@pytest.mark.parametrize(
    "table",
    [
        "former_names(other TEXT)",
        "bodies(other TEXT)",
        "archived(other TEXT)",
        "chain(other TEXT)",
    ],
)
def test_an_image_whose_tables_have_other_columns_is_damaged(tmp_path: Path, table: str) -> None:
    connection = apsw.Connection(":memory:")
    connection.deserialize("main", image(tmp_path, stream("a"), *messages(b"v", 3)))
    connection.execute(f"CREATE TABLE {table}; PRAGMA user_version = 10")
    with pytest.raises(StoreDamagedError, match="its image: no such column"):
        read(stream("a"), connection.serialize("main"), None)
