"""Forking a store: the client's side of what two owners do (`persist/jobs/forking.py`).

The parent's owner has the bucket hold all of it, and the fork's owner makes the fork of that. The
request has an id, so that a retry after a lost reply finds what the first one made."""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.client.handles.owner_jobs import have_done
from holdfast.client.wire.link import Link
from holdfast.client.wire.operations import check_count
from holdfast.client.wire.store_queue import StoreKey
from holdfast.protocol.names import check_store


@dataclass(frozen=True, slots=True)
class StoreFork:
    """A fork that was made. Its numbers continue above the parent's."""

    revision: int
    #: Of a stream: the seq of its last message.
    last_seq: int
    #: True if no data was copied: it shares the parent's snapshot.
    shared: bool


async def fork(
    link: Link,
    key: StoreKey,
    new: str,
    point: tuple[int | None, int | None],
    timeout_seconds: float | None,
) -> StoreFork:
    """Make the store `new` a fork of a store, at a seq or a revision if one is given. Raises
    OperationTimeoutError, and what the owners raise."""
    timeout = link.timeout_seconds if timeout_seconds is None else timeout_seconds
    kind = key[0]
    child: StoreKey = (kind, check_store(new))
    subject_of = link.subjects.fork
    seq, revision = point
    for argument, number in (("seq", seq), ("revision", revision)):
        if number is not None:
            check_count(argument, number)
    least = 0
    if revision is None:
        prepared = await have_done(link, key, subject_of, {"parent": list(key)}, timeout)
        least = prepared["revision"]
    fields = {
        "store": list(child),
        "parent": list(key),
        "seq": seq,
        "revision": revision,
        "least": least,
        "request": link.entropy.randbytes(8).hex(),
    }
    made = await have_done(link, child, subject_of, fields, timeout)
    return StoreFork(made["new_revision"], made["last_seq"], made["shared"])
