"""The bytes of store files that SQLite has not opened yet.

`empty_store_image` is an empty store: its tables without a meta row. Writing it is several times
cheaper than having SQLite create eight tables and indexes in each new file.

`new_store_image` is a new store with its first changes, made by SQLite in memory. Writing it in one
go costs half of what a file with a WAL does. It only has b-tree pages, so that any loss by a power
cut is noticed: SQLite knows no b-tree page of zeros, and the checksum of a partly written page is
wrong. Neither would reveal an overflow page of zeros.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Sequence
from typing import Final, NamedTuple

import apsw

from holdfast.protocol import changes, frames
from holdfast.protocol.names import StoreId, StoreKind
from holdfast.shared_fs.store_file import schema
from holdfast.shared_fs.store_file.applying import (
    AppliedBatch,
    StoreMeta,
    WriterOutcome,
    apply_to_stream,
    keep_outcomes,
)
from holdfast.shared_fs.store_file.bodies import Bodies
from holdfast.shared_fs.store_file.chain.chain_rows import ChainState, StoredChain
from holdfast.shared_fs.store_file.encrypted.encrypted_rows import (
    EncryptionState,
    StoredEncryption,
)
from holdfast.shared_fs.store_file.history.history_rows import HistoryState, StoredHistory
from holdfast.shared_fs.store_file.history.kv_applying import apply_to_kv
from holdfast.shared_fs.store_file.pages.page_sizes import user_version_of
from holdfast.shared_fs.store_file.sqlite_connection import (
    our_error,
    page_checksum,
    set_checksums,
)
from holdfast.shared_fs.store_file.subject_rows import StoredSubjects

#: The place of the read and write versions in a file's header, and the value for WAL
#: (sqlite.org/fileformat2.html, "The Database Header").
_FORMAT_VERSIONS: Final = slice(18, 20)
_WAL: Final = b"\x02\x02"
#: Where the b-tree of the first page begins, after the file's
#: header, and the kinds of b-tree pages.
_FIRST_BTREE: Final = 100
_BTREE_KINDS: Final = frozenset((2, 5, 10, 13))
#: A connection serves one thread at a time.
_lock: Final = threading.Lock()


class NewStore(NamedTuple):
    """The file of a new store, its meta row, whether messages in it have subjects and header
    blocks, its history, its chain, and whether values in it are encrypted."""

    store: StoreId
    meta: StoreMeta
    image: bytes
    has_subjects: bool
    is_marked: bool
    history: HistoryState
    chain: ChainState
    encryption: EncryptionState


@functools.cache
def empty_store_image(kind: StoreKind, page_bytes: int = schema.PAGE_BYTES) -> bytes:
    """Return a store file of `kind` without its meta row."""
    with _lock:
        connection = _workshop(kind)
        if page_bytes != schema.PAGE_BYTES:
            connection = _made(kind, page_bytes)
        image = bytearray(connection.serialize("main"))
    image[_FORMAT_VERSIONS] = _WAL
    set_checksums(image, page_bytes)
    return bytes(image)


def new_store_image(
    store: StoreId,
    *,
    time: int,
    owner: tuple[int, str, str],
    batches: Sequence[AppliedBatch],
    outcomes: Sequence[WriterOutcome],
) -> NewStore | None:
    """Return the file of a new store of `owner` (epoch, server, incarnation) with the batches.

    The batches begin at revision 0. None if the file would have pages that are not of b-trees.
    Raises StorageFailedError.
    """
    kind = StoreKind(store.kind)
    if any(_is_large(change) for batch in batches for change in batch.changes):
        return None
    try:
        subjects, history, chain, encryption, meta, image = _build(
            store, kind, time, owner, batches, outcomes
        )
    except apsw.Error as error:
        raise our_error(error, store) from error
    image[_FORMAT_VERSIONS] = _WAL
    if not _finish_pages(image, kind):
        return None
    return NewStore(
        store,
        meta,
        bytes(image),
        subjects.exists,
        subjects.is_marked,
        history.state,
        chain.state,
        encryption.state,
    )


def _is_large(change: frames.WireChange) -> bool:
    """Tell whether a change certainly takes pages that are not of b-trees, before any are made."""
    number = changes.number_of(change)
    if number in changes.SETS:
        value = changes.set_value(change)
        return type(value) is bytes and len(value) >= schema.PAGE_BYTES
    return bool(number == changes.CHANGE_PUT_CHUNK)


def _build(
    store: StoreId,
    kind: StoreKind,
    time: int,
    owner: tuple[int, str, str],
    batches: Sequence[AppliedBatch],
    outcomes: Sequence[WriterOutcome],
) -> tuple[
    StoredSubjects, StoredHistory, StoredChain, StoredEncryption, StoreMeta, bytearray
]:
    with _lock:
        connection = _workshop(kind)
        cursor = connection.cursor()
        cursor.execute("BEGIN")
        try:
            cursor.execute(schema.INSERT_META, (*store, time, *owner))
            first, bodies = StoreMeta(*owner, 0, 0, 0, 0, 0, 0), Bodies(cursor.execute)
            subjects, history = StoredSubjects(cursor.execute, store), StoredHistory(cursor.execute)
            chain = StoredChain(cursor.execute, is_kv=kind is StoreKind.KV)
            encryption = StoredEncryption(cursor.execute)
            if kind is StoreKind.STREAM:
                meta, _ = apply_to_stream(
                    cursor, first, batches, bodies, subjects, chain, encryption
                )
            else:
                meta = apply_to_kv(cursor, first, batches, bodies, history, chain, encryption)
            keep_outcomes(cursor, outcomes)
            cursor.execute(schema.UPDATE_META, meta.counters)
            # The image of an in-memory database includes uncommitted changes.
            image = bytearray(connection.serialize("main"))
            return subjects, history, chain, encryption, meta, image
        finally:
            cursor.execute("ROLLBACK")


@functools.cache
def _workshop(kind: StoreKind) -> apsw.Connection:
    """Return the in-memory database in which files of `kind` are made.

    Its transactions are always rolled back. A new database for each file would have to read its
    schema first, which takes as long as all the rest.
    """
    return _made(kind, schema.PAGE_BYTES)


def _made(kind: StoreKind, page_bytes: int) -> apsw.Connection:
    connection = apsw.Connection(":memory:")
    connection.pragma("page_size", page_bytes)
    connection.reserve_bytes("main", schema.CHECKSUM_BYTES)
    connection.pragma("application_id", schema.APPLICATION_ID)
    connection.pragma("user_version", user_version_of(schema.FORMAT_VERSION, page_bytes))
    sql = schema.CREATE_STREAM if kind is StoreKind.STREAM else schema.CREATE_KV
    for _ in connection.execute(sql):
        pass
    return connection


def _finish_pages(image: bytearray, kind: StoreKind) -> bool:
    """Set the checksum of each page; return False if a page is not of a b-tree."""
    template = empty_store_image(kind)
    for start in range(0, len(image), schema.PAGE_BYTES):
        end = start + schema.PAGE_BYTES
        if image[start or _FIRST_BTREE] not in _BTREE_KINDS:
            return False
        content_end = end - schema.CHECKSUM_BYTES
        if image[start:content_end] == template[start:content_end]:
            image[content_end:end] = template[content_end:end]
        else:
            image[content_end:end] = page_checksum(bytes(image[start:end]))
    return True
