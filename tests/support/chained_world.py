"""Stores with a chain of hashes in a bucket: a stream with messages of every form, and a kv."""

from __future__ import annotations

import hashlib
import zlib
from typing import Any

from holdfast.protocol.chain.hashing import ChainLink, after_all
from holdfast.protocol.changes import CHANGE_CONFIGURE, CHANGE_PUT_CHUNK, CHANGE_SET_MESSAGE
from holdfast.protocol.compression import compressed_always
from holdfast.protocol.messages import LargeValue
from holdfast.protocol.names import StoreId
from tests.support.bucket_world import BucketWorld, kv, message, stream

LEDGER = stream("ledger")
RATES = kv("rates")
CHAIN = [CHANGE_CONFIGURE, {"chain": True}]
LARGE_BODY = b"large" * 5000
LARGE = LargeValue(
    bytes(16), len(LARGE_BODY), hashlib.sha256(LARGE_BODY).digest(), zlib.crc32(LARGE_BODY)
)
BLOCK = b"NATS/1.0\r\nuser: ada\r\nuser: bob\r\n\r\n"


def link(world: BucketWorld, store: StoreId) -> ChainLink:
    """What an ack of the last message or set tells."""
    held = world.held[store]
    number = held.file.meta.last_seq if store.kind == 1 else held.revision
    return ChainLink(number, held.file.chain.value or b"")


def ledger(world: BucketWorld, *values: bytes) -> list[ChainLink]:
    """Append to a stream with a chain, one by one."""
    if LEDGER not in world.held:
        world.change(LEDGER, message(1, b"before the chain"), CHAIN)
    links = []
    for value in values:
        seq = world.held[LEDGER].file.meta.last_seq + 1
        world.change(LEDGER, message(seq, value, {"salt": f"s{seq}"}))
        links.append(link(world, LEDGER))
    return links


def forge(world: BucketWorld, seq: int, value: bytes) -> None:
    """Somebody changes a message in the file, and mends the chain of it."""
    file = world.held[LEDGER].file
    execute = file._connection.execute
    execute("UPDATE messages SET value = ? WHERE seq = ?", (value, seq))
    leaves = [leaf for _, leaf in file.chain.leaves(execute, has_subjects=False)]
    mended = after_all(file.chain.base.chain, leaves)
    file.chain.go_back(file.chain.state._replace(value=mended))


def every_form(world: BucketWorld) -> list[ChainLink]:
    """Append messages of every form that a stored message has."""
    packed, marked = compressed_always(b"compressed " * 50, {"user": "eve"})
    links = ledger(world, b"", b"plain")
    forms: list[list[Any]] = [
        [CHANGE_SET_MESSAGE, 4, packed, marked],
        [CHANGE_SET_MESSAGE, 5, b"block", BLOCK, None, None, "orders.eu"],
        [CHANGE_SET_MESSAGE, 6, b"at another time", None, None, None, None, 1_700_000_000_000],
    ]
    for form in forms:
        world.change(LEDGER, form)
        links.append(link(world, LEDGER))
    put = [CHANGE_PUT_CHUNK, LARGE.upload_id, 0, LARGE_BODY, LARGE.crc32]
    world.change(LEDGER, put, [CHANGE_SET_MESSAGE, 7, list(LARGE)])
    return [*links, link(world, LEDGER)]
