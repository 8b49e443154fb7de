"""What the tests of this folder share: what a follower makes of its changes, what a store
holds."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import TypeVar

from holdfast.client import KV, Change, ChangeKind, Stream

T = TypeVar("T")

State = dict[int | str, bytes]


async def take(changes: AsyncIterator[T], count: int) -> list[T]:
    """Return the next `count` of what is followed."""
    async with asyncio.timeout(30):
        return [await anext(changes) for _ in range(count)]


async def take_until(changes: AsyncIterator[Change], revision: int) -> list[Change]:
    """Return what comes up to the change of `revision`."""
    found: list[Change] = []
    async with asyncio.timeout(30):
        while not found or found[-1].revision < revision:
            found.append(await anext(changes))
    return found


def apply(change: Change, state: State) -> None:
    """Do to `state` what a change says."""
    if change.message is not None:
        state[change.message.seq] = change.message.value
    elif change.entry is not None:
        state[change.entry.key] = change.entry.value
    elif change.kind is ChangeKind.DELETE:
        for gone in change.seqs or change.keys:
            state.pop(gone, None)
    elif change.kind is ChangeKind.RESET or not change.end_seq:
        if change.kind is not ChangeKind.READY:
            state.clear()
    else:
        for seq in [seq for seq in state if isinstance(seq, int) and seq <= change.end_seq]:
            del state[seq]


def state_of(changes: list[Change]) -> State:
    """Return what a follower holds after `changes`."""
    state: State = {}
    for change in changes:
        apply(change, state)
    return state


async def stored(store: Stream | KV) -> State:
    """Return what the owner holds."""
    if isinstance(store, Stream):
        return {message.seq: message.value async for message in store.get_all()}
    return {entry.key: entry.value async for entry in store.get_all()}
