"""Verifies the chain of a stream: reads all messages, computes the chain anew, compares it."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterable
from itertools import pairwise
from typing import NamedTuple

from holdfast.client.wire.link import Link
from holdfast.client.wire.store_queue import StoreKey
from holdfast.protocol.chain.checking import ChainReport, ChainWalk, leaf_of_message
from holdfast.protocol.chain.hashing import ChainLink
from holdfast.protocol.errors import InvalidArgumentError, MalformedFrameError
from holdfast.protocol.frames import CHAIN, pack
from holdfast.protocol.limits import SHA256_BYTES
from holdfast.protocol.messages import Ack, Message


class ChainPage(NamedTuple):
    """What the owner tells of a chain: see CHAIN in `protocol/frames.py`."""

    base: ChainLink
    last: ChainLink
    leaves: list[tuple[int, bytes]]
    next_after_seq: int | None


async def verify_chain(
    link: Link,
    key: StoreKey,
    pages_of: Callable[[int, int], AsyncGenerator[list[Message], None]],
    kept: Iterable[ChainLink | Ack],
    timeout_seconds: float | None,
) -> ChainReport:
    """Do what `Stream.verify_chain` does. `pages_of(start_seq, end_seq)` reads messages."""
    first = await chain_page(link, key, 0, timeout_seconds)
    end = first.last
    walk = ChainWalk(first.base, [*kept, *([end] if end.seq > first.base.seq else [])])
    pages = pages_of(first.base.seq + 1, end.seq)
    async with contextlib.aclosing(pages):
        async for page in pages:
            messages = deque((message.seq, leaf_of_message(message)) for message in page)
            if messages:
                await _walk(link, key, walk, messages, messages[-1][0], timeout_seconds)
    await _walk(link, key, walk, deque(), end.seq, timeout_seconds)
    return walk.report()


async def _walk(
    link: Link,
    key: StoreKey,
    walk: ChainWalk,
    messages: deque[tuple[int, bytes]],
    end_seq: int,
    timeout_seconds: float | None,
) -> None:
    """Walk up to `end_seq` over messages that were read, and over the leaves of those that were
    removed before that: what is asked for after the messages has them all."""
    after_seq: int | None = walk.last.seq
    while after_seq is not None:
        page = await chain_page(link, key, after_seq, timeout_seconds)
        if page.base.seq > walk.last.seq:
            while messages and messages[0][0] <= page.base.seq:
                messages.popleft()
            walk.restart(page.base)
        for seq, leaf in page.leaves:
            if seq > end_seq:
                break
            while messages and messages[0][0] < seq:
                walk.step(*messages.popleft())
            if messages and messages[0][0] == seq:
                # Archived, or removed since: what was read is checked, not what is said of it.
                walk.step(*messages.popleft())
            elif seq > walk.last.seq:
                walk.step(seq, leaf, is_removed=True)
        after_seq = page.next_after_seq
        if after_seq is not None and after_seq >= end_seq:
            break
    while messages:
        walk.step(*messages.popleft())


async def chain_page(
    link: Link, key: StoreKey, after_seq: int, timeout_seconds: float | None
) -> ChainPage:
    """Return what the owner tells of a chain, with leaves after a seq. Raises
    InvalidArgumentError."""
    packed = pack([CHAIN, after_seq, None])
    answer, *_ = await link.call(key, packed, False, 0, timeout_seconds)
    if answer is None:
        raise InvalidArgumentError(argument="store", reason="it keeps no chain")
    try:
        base_seq, base, last_seq, chain, leaves, next_after_seq = answer[:6]
        found = [(seq, leaf) for seq, leaf in leaves]
        hashes = [base, chain, *(leaf for _, leaf in found)]
        seqs = [base_seq, last_seq, *(seq for seq, _ in found)]
        wrong = (
            any(type(each) is not bytes or len(each) != SHA256_BYTES for each in hashes)
            or any(type(each) is not int for each in seqs)
            or type(next_after_seq) not in (int, type(None))
            or (next_after_seq is not None and next_after_seq <= after_seq)
            or any(one >= other for (one, _), (other, _) in pairwise(found))
        )
    except (TypeError, ValueError) as error:
        raise MalformedFrameError(reason=f"a page of a chain: {error}") from error
    if wrong:
        raise MalformedFrameError(reason="a page of a chain has other types or another order")
    return ChainPage(ChainLink(base_seq, base), ChainLink(last_seq, chain), found, next_after_seq)
