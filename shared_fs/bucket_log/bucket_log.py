"""The commit log in the bucket: dense slots, each put once; fences; reading; retirement.

    log/<server>/<incarnation>/<slot:012d>     a slot, or the fence at the first hole
    log/<server>/<incarnation>/fence           the mark: a fence exists, or is about to

One put stores data and metadata at once. It succeeds only if the slot was empty, so a
slot that was put is committed. If its owner finds something else in a slot, its
incarnation has ended. Invariants:

1. Slots are dense: slot n + 1 is put only once slot n is known to exist. So one fence, at the first
   hole, closes a log for ever.
2. The fencer puts the mark first and lists the slots then. The owner removes only slots below the
   newest one that it had put *before* it looked for the mark and found none. So every removed slot
   is below the newest slot in the fencer's list, and a hole above that is a true one: a fence can
   never be put into a slot that was used and removed, with the log continuing behind it.
3. Nobody else removes slots of an incarnation without a fence at its end. Fences and marks stay,
   and an incarnation's id is never used again, so a zombie never finds a hole, whenever it wakes.
4. A put without an answer is repeated with the same bytes; the put id of the object that is found
   then tells who put it. Nothing is concluded before that.

tests/unit/shared_fs/test_bucket_log_model.py checks every order of the steps of two fencers, an
owner and a zombie. Calls block, as the bucket's do, and raise BucketError.
"""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Final, NamedTuple

from holdfast.protocol.errors import FencedError
from holdfast.protocol.names import StoreId
from holdfast.shared_fs.bucket.bucket import Bucket
from holdfast.shared_fs.bucket.bucket_errors import (
    ObjectDamagedError,
    ObjectExistsError,
    ObjectMissingError,
)
from holdfast.shared_fs.bucket_log.log_object import (
    HEAD_BYTES,
    TAIL_BYTES,
    Block,
    Covered,
    Header,
    Sort,
    decode_block,
    decode_header,
    decode_index,
    decode_slot,
    encode_fence,
    encode_slot,
    index_bytes,
)
from holdfast.shared_fs.disk.commit_log import LogContents, LogDamage, LogRecord

LOG_PREFIX: Final = "log/"
_MARK: Final = "fence"
#: Slots read or removed at once; S3 takes about 25 ms for each.
_PARALLEL: Final = 8


def log_prefix(server: str, incarnation: str) -> str:
    return f"{LOG_PREFIX}{server}/{incarnation}/"


def slot_key(server: str, incarnation: str, slot: int) -> str:
    return f"{log_prefix(server, incarnation)}{slot:012d}"


def mark_key(server: str, incarnation: str) -> str:
    return f"{log_prefix(server, incarnation)}{_MARK}"


class Prepared(NamedTuple):
    """The object of a slot; every attempt to put it has the same bytes."""

    slot: int
    body: bytes
    put_id: str


class BucketLog:
    """The log of the running incarnation.

    One thread at a time may call `prepare` and `put`; another one may call `retire` and `is_open`.
    """

    def __init__(
        self,
        bucket: Bucket,
        server: str,
        incarnation: str,
        *,
        new_put_id: Callable[[], str] = lambda: secrets.token_hex(16),
    ) -> None:
        self._bucket = bucket
        self._server = server
        self._incarnation = incarnation
        self._new_put_id = new_put_id
        self._oldest = 0
        self._next = 0

    @property
    def next_slot(self) -> int:
        """The slot of the next object."""
        return self._next

    @property
    def oldest_slot(self) -> int:
        """The oldest slot that may still exist."""
        return self._oldest

    def begin(self) -> None:
        """Put slot 0, which is empty. From now on there is a log that can be fenced.

        Call it before the incarnation registers. Raises FencedError.
        """
        self.put(self.prepare(()))

    def prepare(self, records: Sequence[LogRecord]) -> Prepared:
        """Return the object of the next slot."""
        put_id = self._new_put_id()
        body = encode_slot(self._server, self._incarnation, self._next, put_id, records)
        return Prepared(self._next, body, put_id)

    def put(self, prepared: Prepared) -> None:
        """Commit a slot. After a BucketError the outcome is unknown:
        call it again with the same object.

        Raises FencedError: this incarnation has ended, and the slot is not part of its log.
        """
        assert prepared.slot == self._next, "slots are dense"
        key = slot_key(self._server, self._incarnation, prepared.slot)
        try:
            self._bucket.put_new(key, prepared.body)
        except ObjectExistsError as error:
            # It is ours if an earlier attempt got no answer.
            if _header(self._bucket, key).put_id != prepared.put_id:
                raise FencedError(server=self._server, incarnation=self._incarnation) from error
        self._next += 1

    def is_open(self) -> bool:
        """Tell whether nobody has begun to fence this incarnation."""
        return is_open(self._bucket, self._server, self._incarnation)

    def retire(self, below_slot: int) -> None:
        """Remove the slots below `below_slot`, which no store needs,
        oldest first; keep the newest slot.

        Raises FencedError: then the remaining slots are for the fencer to read and remove.
        """
        # Computed before the look at the mark: see the second invariant.
        end = min(below_slot, self._next - 1)
        if end <= self._oldest:
            return
        if not self.is_open():
            raise FencedError(server=self._server, incarnation=self._incarnation)
        for slot in range(self._oldest, end):
            self._bucket.delete(slot_key(self._server, self._incarnation, slot))
            self._oldest = slot + 1


def is_open(bucket: Bucket, server: str, incarnation: str) -> bool:
    """Tell whether nobody has begun to fence an incarnation."""
    try:
        bucket.head(mark_key(server, incarnation))
    except ObjectMissingError:
        return True
    return False


def fence_log(bucket: Bucket, server: str, incarnation: str) -> int:
    """Fence an incarnation for ever, even one that never existed, and return the slot of the fence.

    When this returns, everything that the incarnation ever acknowledged is in the slots before the
    fence, and it can acknowledge nothing more. It may be called again, and by several callers at
    once. After an error the incarnation may or may not be fenced, and must count as alive.
    """
    put_id = secrets.token_hex(16)
    # An earlier fencer may have put the mark, and perhaps no more.
    with contextlib.suppress(ObjectExistsError):
        bucket.put_new(mark_key(server, incarnation), encode_fence(server, incarnation, 0, put_id))
    slots = _slots(bucket, server, incarnation)
    # The newest slot may already be a fence.
    slot = slots[-1] if slots else 0
    while True:
        key = slot_key(server, incarnation, slot)
        try:
            bucket.put_new(key, encode_fence(server, incarnation, slot, put_id))
        except ObjectExistsError:
            if not _is_fence(bucket, key):
                slot += 1
                continue
        return slot


def fence_every_log(bucket: Bucket) -> list[tuple[str, str]]:
    """Fence every incarnation that has an object in the bucket, and return all of them."""
    logs = list_logs(bucket)
    for log in logs:
        fence_log(bucket, log.server, log.incarnation)
    return [(log.server, log.incarnation) for log in logs]


@dataclass(frozen=True, slots=True)
class ListedLog:
    """An incarnation's slots as listed. If it has a fence, that is the last one."""

    server: str
    incarnation: str
    slots: tuple[int, ...]
    #: Somebody has begun to fence it, and may have finished.
    marked: bool
    size_bytes: int = 0


@dataclass(slots=True)
class _Listed:
    slots: list[int] = field(default_factory=list)
    marked: bool = False
    size_bytes: int = 0


def list_logs(bucket: Bucket, server: str = "", incarnation: str = "") -> list[ListedLog]:
    """Return all incarnations that have an object in the bucket, of one server or of all."""
    assert server or not incarnation
    prefix = (
        LOG_PREFIX + (f"{server}/" if server else "") + (f"{incarnation}/" if incarnation else "")
    )
    found: dict[tuple[str, str], _Listed] = {}
    for listed in bucket.list(prefix):
        parts = listed.key.removeprefix(LOG_PREFIX).split("/")
        if len(parts) != 3 or not (parts[2].isdigit() or parts[2] == _MARK):
            continue
        one = found.setdefault((parts[0], parts[1]), _Listed())
        if parts[2] == _MARK:
            one.marked = True
        else:
            one.slots.append(int(parts[2]))
            one.size_bytes += listed.size_bytes
    return [
        ListedLog(*name, tuple(one.slots), one.marked, one.size_bytes)
        for name, one in found.items()
    ]


def fence_slot(bucket: Bucket, log: ListedLog) -> int | None:
    """Return the slot of the fence that ends `log`; None if it has none."""
    if not log.slots:
        return None
    slot = log.slots[-1]
    return slot if _is_fence(bucket, slot_key(log.server, log.incarnation, slot)) else None


def read_bucket_log(bucket: Bucket, server: str, incarnation: str) -> LogContents:
    """Read the whole log of an incarnation, up to its fence, or as far as a living one has come.

    Only the log of a fenced incarnation has everything that it ever acknowledged. Nothing follows
    the fence at the first hole. A fence before other slots is in a slot whose object was collected:
    its fencer had listed the slots long before.
    """
    contents = LogContents()
    slots = _slots(bucket, server, incarnation)
    read = partial(_read_slot, bucket, server, incarnation)
    last: int | None = None
    with ThreadPoolExecutor(_PARALLEL, "holdfast.log") as threads:
        for slot, found in zip(slots, threads.map(read, slots), strict=True):
            if found is None:
                # It was removed after the list was made, and so was everything
                # before it: durable elsewhere.
                contents = LogContents()
                last = slot
                continue
            if isinstance(found, tuple) and found[0].sort is Sort.FENCE:
                continue
            if last is not None and slot != last + 1:
                if _read_slot(bucket, server, incarnation, last) is None:
                    contents = LogContents()
                else:
                    _damaged(contents, slot, f"slots {last + 1} to {slot - 1} are missing")
            last = slot
            if isinstance(found, ObjectDamagedError):
                _damaged(contents, slot, str(found.fields["reason"]))
                continue
            _, records, size_bytes = found
            contents.records.extend(records)
            contents.size_bytes += size_bytes
    return contents


def read_store_records(
    bucket: Bucket, server: str, incarnation: str, slots: Iterable[int], store: StoreId
) -> Iterator[LogRecord]:
    """Yield one store's records in these slots, while reading little else.

    Missing slots and fences have none. Raises ObjectDamagedError.
    """
    for slot in slots:
        key = slot_key(server, incarnation, slot)
        try:
            for block in _read_index(bucket, key):
                if any(covered.store == store for covered in block.covered):
                    part = bucket.get_range(key, block.offset, block.length)
                    records = decode_block(key, block, part.body)
                    yield from (record for record in records if record.store == store)
        except ObjectMissingError:
            continue


def read_coverage(bucket: Bucket, server: str, incarnation: str, slot: int) -> list[Covered]:
    """Return the stores and revisions that a slot has. Raises ObjectMissingError,
    ObjectDamagedError."""
    blocks = _read_index(bucket, slot_key(server, incarnation, slot))
    return [covered for block in blocks for covered in block.covered]


def remove_log(bucket: Bucket, log: ListedLog) -> None:
    """Remove the slots of a log that no store needs, oldest first; keep the fence that ends it.

    Does nothing if the log has no fence.
    """
    fence = fence_slot(bucket, log)
    if fence is None:
        return
    for slot in log.slots:
        if slot < fence:
            bucket.delete(slot_key(log.server, log.incarnation, slot))


def _read_index(bucket: Bucket, key: str) -> list[Block]:
    tail = bucket.get_tail(key, TAIL_BYTES)
    needed = index_bytes(key, tail.body, tail.size_bytes)
    if needed > len(tail.body):
        tail = bucket.get_tail(key, needed)
    return decode_index(key, tail.body, tail.size_bytes)


def _slots(bucket: Bucket, server: str, incarnation: str) -> tuple[int, ...]:
    return next((log.slots for log in list_logs(bucket, server, incarnation)), ())


def _header(bucket: Bucket, key: str) -> Header:
    return decode_header(key, bucket.get_range(key, 0, HEAD_BYTES).body)


def _is_fence(bucket: Bucket, key: str) -> bool:
    try:
        return _header(bucket, key).sort is Sort.FENCE
    except ObjectDamagedError:
        # At worst, a fence is put behind a fence.
        return False


def _read_slot(
    bucket: Bucket, server: str, incarnation: str, slot: int
) -> tuple[Header, list[LogRecord], int] | ObjectDamagedError | None:
    key = slot_key(server, incarnation, slot)
    try:
        body = bucket.get(key).body
        header, records = decode_slot(key, body)
    except ObjectMissingError:
        return None
    except ObjectDamagedError as error:
        return error
    if (header.server, header.incarnation, header.slot) != (server, incarnation, slot):
        return ObjectDamagedError(key=key, reason=f"it is slot {header.slot} of {header.server}")
    return header, records, len(body)


def _damaged(contents: LogContents, slot: int, reason: str) -> None:
    contents.damage.append(LogDamage(f"{slot:012d}", 0, reason, torn_end=False))
    contents.sound_from = len(contents.records)
