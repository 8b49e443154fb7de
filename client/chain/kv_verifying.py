"""Verifies the chain of a kv: reads all entries and leaves, computes the chain anew, compares it.

Entries come by key and the chain goes by revision, so the leaves of all of them are in memory: some
100 bytes for each.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable
from contextlib import aclosing
from typing import Any

from holdfast.client.chain.verifying import chain_page
from holdfast.client.wire.link import Link
from holdfast.client.wire.operations import entry_from_wire
from holdfast.client.wire.store_queue import StoreKey
from holdfast.protocol.chain.checking import ChainReport, ChainWalk, leaf_of_entry
from holdfast.protocol.chain.hashing import ChainLink
from holdfast.protocol.messages import Ack


async def verify_kv_chain(
    link: Link,
    key: StoreKey,
    pages: AsyncGenerator[list[list[Any]], None],
    kept: Iterable[ChainLink | Ack],
    timeout_seconds: float | None,
) -> ChainReport:
    """Do what `KV.verify_chain` does. `pages` reads all entries, and is not begun yet."""
    first = await chain_page(link, key, 0, timeout_seconds)
    end = first.last
    found: dict[int, bytes] = {}
    async with aclosing(pages):
        async for page in pages:
            for entry in map(entry_from_wire, page):
                if entry.revision <= end.seq:
                    found[entry.revision] = leaf_of_entry(entry)
    # What was replaced or removed after it could be read has its leaf now, or is below the base.
    removed: dict[int, bytes] = {}
    base = first.base
    after: int | None = 0
    while after is not None:
        leaves = await chain_page(link, key, after, timeout_seconds)
        base, after = leaves.base, leaves.next_after_seq
        removed.update((seq, leaf) for seq, leaf in leaves.leaves if seq <= end.seq)
        if after is not None and after >= end.seq:
            break
    revisions = sorted(each for each in found.keys() | removed.keys() if each > base.seq)
    # What the owner itself tells is compared too: the chain is that of the last set.
    told = [ChainLink(revisions[-1], end.chain)] if revisions else []
    walk = ChainWalk(base, [*map(_by_revision, kept), *told])
    for revision in revisions:
        # What was read is checked, not what is said of it.
        leaf = found.get(revision)
        if leaf is None:
            walk.step(revision, removed[revision], is_removed=True)
        else:
            walk.step(revision, leaf)
    return walk.report()


def _by_revision(kept: ChainLink | Ack) -> ChainLink | Ack:
    """An ack of a kv is known by its revision, as it has no seq."""
    if isinstance(kept, Ack) and kept.seq is None:
        return kept._replace(seq=kept.revision)
    return kept
