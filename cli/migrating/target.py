"""The tenant to copy into: stores that no gateway serves yet, and the catalogue that names them.

A stream is copied into a store of its own. Only when all of it is there does the catalogue get its
entry, and with that a gateway begins to serve it. Until then the kv MIGRATIONS_KV remembers which
store it is and where it comes from, so that a migration that was interrupted goes on.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final

from holdfast.cli.migrating.plan import ConsumerPlan, StreamPlan
from holdfast.cli.migrating.source import SourceMessage
from holdfast.client import Client
from holdfast.client.handles.serving import ServingStream
from holdfast.client.handles.serving_wire import NewMessage
from holdfast.gateway.jetstream.api.publishing.lifetime import NEVER, message_ttl
from holdfast.gateway.jetstream.api.stream_config import store_settings
from holdfast.gateway.jetstream.catalogue.catalogue import Catalogue, StreamEntry, store_names
from holdfast.gateway.jetstream.catalogue.draft import CatalogueChange, CatalogueDraft
from holdfast.gateway.jetstream.catalogue.keeper import CatalogueKeeper
from holdfast.gateway.jetstream.consumers.cursor import encoded_config, encoded_position
from holdfast.protocol.errors import HoldfastError, MalformedFrameError
from holdfast.protocol.frames import APPEND
from holdfast.protocol.header_block import MSG_ID_HEADER, HeaderBlock
from holdfast.protocol.limits import MAX_MESSAGE_SUBJECT_BYTES, MAX_MSG_ID_BYTES

#: By stream: what is being copied.
MIGRATIONS_KV: Final = "jetstream-migrations"
_DELETED_AT_A_TIME: Final = 1000
#: Below that of every gateway: a copy that goes on after a gateway serves the stream is refused.
_SERVING_EPOCH: Final = 1
_READ: Final = 1000
#: Of one batch, well below a frame.
_BATCH_BYTES: Final = 400_000
#: More than what a message has besides value and headers.
_MESSAGE_BYTES: Final = MAX_MESSAGE_SUBJECT_BYTES + MAX_MSG_ID_BYTES + 64
#: How many messages fill a gap at a time.
_FILL: Final = 1000
_EXPECTED_LAST_SEQ: Final = 4
_TTL_HEADER: Final = "Nats-TTL"
#: Of a message that should have gone already.
_SHORTEST_TTL_SECONDS: Final = 1.0
_NS: Final = 1_000_000


class MigrationConflictError(HoldfastError):
    """The tenant has something else under a stream's name."""

    code = "migration_conflict"
    template = "{stream} cannot be copied here: {reason}"


@dataclass(frozen=True, slots=True)
class Migration:
    """A stream that is being copied: into which store, and from where."""

    store: str
    source: str

    def to_bytes(self) -> bytes:
        return json.dumps({"store": self.store, "source": self.source}).encode()

    @classmethod
    def from_bytes(cls, value: bytes) -> Migration:
        try:
            found = json.loads(value)
            return cls(str(found["store"]), str(found["source"]))
        except (ValueError, KeyError, TypeError) as error:
            raise MalformedFrameError(reason=f"a migration's entry: {error}") from error


class MigrationTarget:
    """Made by `opened_target`."""

    def __init__(self, client: Client, keeper: CatalogueKeeper, source: str) -> None:
        """`source` says where streams come from, in the words of the user."""
        self._client = client
        self._keeper = keeper
        self._source = source
        self._migrations = client.kv(MIGRATIONS_KV)

    def reason_against(self, plan: StreamPlan) -> str:
        """Return why a stream cannot be copied here, or ""."""
        return _reason_against(CatalogueDraft(self._keeper.catalogue), plan)

    async def begun(self, plan: StreamPlan) -> StreamCopy:
        """Return the copy of a stream: that of an earlier run, or a new one.

        Raises MigrationConflictError.
        """
        entry = await self._migrations.get(plan.name)
        if entry is not None:
            migration = Migration.from_bytes(entry.value)
            if migration.source != self._source:
                reason = f"it was begun to be copied from {migration.source}"
                raise MigrationConflictError(stream=plan.name, reason=reason)
        else:
            migration = Migration(await self._free_store(plan.name), self._source)
            await self._migrations.set(plan.name, migration.to_bytes(), expected_revision=0)
        return StreamCopy(plan, self._client.serving_stream(migration.store))

    async def finish(self, copy: StreamCopy) -> None:
        """Let gateways serve a stream that is complete. Raises MigrationConflictError."""
        plan = copy.plan
        entry = StreamEntry.of(plan.config.to_json(), copy.store.name, plan.created_ms)

        def decide(draft: CatalogueDraft) -> CatalogueChange | None:
            reason = _reason_against(draft, plan)
            if reason:
                raise MigrationConflictError(stream=plan.name, reason=reason)
            return CatalogueChange(plan.name, entry)

        await self._keeper.change(decide)
        await self._migrations.delete(plan.name)

    async def _free_store(self, name: str) -> str:
        for store in store_names(name):
            if self._keeper.catalogue.store_is_taken(store):
                continue
            if not (await self._client.serving_stream(store).head()).revision:
                return store
        raise AssertionError("there is always another name")


def _reason_against(draft: CatalogueDraft, plan: StreamPlan) -> str:
    if draft.get(plan.name) is not None:
        return "a stream of this name is there already"
    if draft.colliding(plan.config.subjects, other_than=plan.name):
        return "another stream here has some of its subjects"
    return ""


class StreamCopy:
    """The store into which one stream is copied."""

    def __init__(self, plan: StreamPlan, store: ServingStream) -> None:
        self.plan = plan
        self.store = store
        self._next_seq = 1

    async def begin(self) -> int:
        """Make the store, if this is the first run. Return the seq to go on from."""
        head = await self.store.head()
        self.store.serving_epoch = _SERVING_EPOCH
        if not head.revision:
            first_seq = max(1, self.plan.state.first_seq)
            # Nothing is limited until all is there.
            await self.store.configure(first_seq=first_seq, serving_epoch=_SERVING_EPOCH)
            self._next_seq = first_seq
        else:
            self._next_seq = head.last_seq + 1
        return self._next_seq

    async def put(self, messages: Sequence[SourceMessage]) -> None:
        """Store messages at their seqs, with their times, and read them back.

        Raises MigrationConflictError if what is read differs.
        """
        waiting: list[NewMessage] = []
        waiting_bytes = 0
        for each in messages:
            size_bytes = len(each.value) + len(each.headers) + _MESSAGE_BYTES
            if each.seq > self._next_seq or waiting_bytes + size_bytes > _BATCH_BYTES:
                await self._append(waiting, self._next_seq - len(waiting))
                waiting, waiting_bytes = [], 0
                await self._leave_out(each.seq, each.time_ms)
            waiting.append(self._as_new(each))
            waiting_bytes += size_bytes
            self._next_seq += 1
        await self._append(waiting, self._next_seq - len(waiting))
        await self._compare(messages)

    async def reach(self, last_seq: int) -> None:
        """Let the stream end at `last_seq`, of which the last messages may be gone."""
        head = await self.store.head()
        self._next_seq = head.last_seq + 1
        await self._leave_out(last_seq + 1, head.last_time_ms)

    def _as_new(self, message: SourceMessage) -> NewMessage:
        block, now_ms = HeaderBlock(message.headers), time.time_ns() // _NS
        options: dict[str, Any] = {"time_ms": message.time_ms}
        ttl_seconds = None
        lifetime = message_ttl(block.get(_TTL_HEADER, "")) if message.headers else None
        if lifetime is not None and self.plan.config.allow_msg_ttl:
            if lifetime == NEVER:
                options["never_expires"] = True
            else:
                left_seconds = lifetime - (now_ms - message.time_ms) / 1000
                ttl_seconds = max(_SHORTEST_TTL_SECONDS, left_seconds)
        # Its publisher may still try it again.
        is_recent = message.time_ms > now_ms - self.plan.config.duplicate_window // _NS
        return NewMessage(
            message.subject,
            message.value,
            message.headers,
            block.get(MSG_ID_HEADER) if message.headers and is_recent else None,
            ttl_seconds=ttl_seconds,
            options=options,
        )

    async def _append(self, messages: Sequence[NewMessage], first_seq: int) -> None:
        """Append messages, which are refused unless the first of them gets `first_seq`."""
        if not messages:
            return
        first = messages[0]._replace(expected_last_seq=first_seq - 1)
        if len(messages) > 1:
            await self.store.append_batch([first, *messages[1:]])
            return
        # A message alone may be of any size.
        await self.store.append(
            first.subject,
            first.value,
            first.headers,
            msg_id=first.msg_id,
            expected_last_seq=first.expected_last_seq,
            ttl_seconds=first.ttl_seconds,
            options=first.options,
        )

    async def _leave_out(self, until_seq: int, time_ms: int) -> None:
        """Let the next message be `until_seq`: fill the gap, and remove what fills it."""
        while self._next_seq < until_seq:
            seqs = range(self._next_seq, min(until_seq, self._next_seq + _FILL))
            epoch = self.store.serving_epoch
            filler = [APPEND, b"", None, None, None, None, None, epoch, {"time_ms": time_ms}]
            filling = [list(filler) for _ in seqs]
            filling[0][_EXPECTED_LAST_SEQ] = seqs.start - 1
            await self.store.batch([*filling, self.store.packer.delete_operation(seqs)])
            self._next_seq = seqs.stop

    async def remove(self, first_seq: int, deleted: Sequence[int]) -> None:
        """Remove what has been removed at the source since it was copied."""
        await self.store.purge(before_seq=first_seq)
        for start in range(0, len(deleted), _DELETED_AT_A_TIME):
            await self.store.delete(*deleted[start : start + _DELETED_AT_A_TIME])

    async def complete(self, consumers: Sequence[ConsumerPlan]) -> None:
        """Give the store its settings and its consumers."""
        await self.store.configure(**store_settings(self.plan.config))
        for each in consumers:
            await self.store.set_cursor(
                each.name,
                config=encoded_config(each.config, each.created_ns),
                state=encoded_position(each.floor_consumer_seq, each.floor_stream_seq),
            )

    async def _compare(self, messages: Sequence[SourceMessage]) -> None:
        found: list[SourceMessage] = []
        seq: int | None = messages[0].seq
        while seq is not None and len(found) < len(messages):
            page = await self.store.by_subject(start_seq=seq, limit=_READ)
            found += (
                SourceMessage(each.seq, each.time_ms, each.subject or "", each.headers, each.value)
                for each in page.messages
            )
            seq = page.next_seq
        for sent, read in zip(messages, found, strict=False):
            if sent != read:
                reason = f"message {sent.seq} reads back differently, as {read.seq}"
                raise MigrationConflictError(stream=self.plan.name, reason=reason)
        if len(found) < len(messages):
            reason = f"message {messages[len(found)].seq} was not stored"
            raise MigrationConflictError(stream=self.plan.name, reason=reason)


@asynccontextmanager
async def opened_target(client: Client, source: str) -> AsyncIterator[MigrationTarget]:
    """Follow the catalogue around the body."""
    keeper = CatalogueKeeper(client, Catalogue())
    following = asyncio.create_task(keeper.run())
    try:
        await keeper.loaded()
        yield MigrationTarget(client, keeper, source)
    finally:
        following.cancel()
