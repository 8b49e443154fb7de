"""The requests about streams: create, update, delete, info, names, list, purge, and messages.

Whoever holds the stream's shard answers. Whether a stream may be created or changed is decided by
the catalogue, in a transaction; the answer comes once the change is in force, so that what the
client publishes next is stored.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from holdfast.gateway.jetstream.api import errors
from holdfast.gateway.jetstream.api.checks.source_checks import check_origins
from holdfast.gateway.jetstream.api.checks.stream_checks import check_create, check_update
from holdfast.gateway.jetstream.api.errors import ApiError
from holdfast.gateway.jetstream.api.limits import INFOS_IN_A_PAGE, SUBJECTS_IN_A_PAGE
from holdfast.gateway.jetstream.api.replies import (
    ApiStreamInfo,
    account_info_reply,
    message_reply,
    purged_reply,
    stream_created_reply,
    stream_info_reply,
    stream_list_reply,
    stream_names_reply,
    stream_updated_reply,
    success_reply,
)
from holdfast.gateway.jetstream.api.requests.message_requests import GetMessage
from holdfast.gateway.jetstream.api.requests.stream_requests import (
    ConfigureStream,
    DeleteMessage,
    ListStreams,
    PurgeRequest,
    StreamInfoRequest,
    check_no_request,
)
from holdfast.gateway.jetstream.api.requests.verbs import OF_CONSUMERS, ApiCall, ApiVerb
from holdfast.gateway.jetstream.api.stream_config import ApiStreamConfig, StorageType
from holdfast.gateway.jetstream.catalogue.catalogue import Catalogue, StreamEntry
from holdfast.gateway.jetstream.catalogue.draft import CatalogueChange, CatalogueDraft
from holdfast.gateway.jetstream.catalogue.keeper import CatalogueKeeper
from holdfast.gateway.jetstream.serving.api_router import ANSWER_TOO_LARGE, Handler
from holdfast.gateway.jetstream.serving.served_streams import ServedStreams
from holdfast.gateway.jetstream.serving.stream_infos import StreamInfos
from holdfast.gateway.jetstream.streams.account import Account
from holdfast.gateway.jetstream.streams.context import GatewayContext
from holdfast.gateway.jetstream.streams.new_stream import NewStream
from holdfast.gateway.jetstream.streams.reading import find, is_subject
from holdfast.gateway.jetstream.streams.served_stream import ServedStream
from holdfast.gateway.jetstream.wire.ports import PortMessage
from holdfast.protocol.errors import InvalidArgumentError, TooLargeError
from holdfast.protocol.subject_filters import check_filter

#: Heads that are asked for at a time.
_HEADS: Final = 256


class StreamApi:
    """What is answered about streams."""

    def __init__(
        self,
        context: GatewayContext,
        keeper: CatalogueKeeper,
        streams: ServedStreams,
        account: Account,
        infos: StreamInfos,
    ) -> None:
        self._context = context
        self._keeper = keeper
        self._catalogue = keeper.catalogue
        self._streams = streams
        self._account = account
        self._infos = infos
        self._reserved = context.reserved
        self._advisories = context.advisories

    def handlers(self) -> dict[ApiVerb, Handler]:
        """Return what answers each verb."""
        consumers = dict.fromkeys(OF_CONSUMERS, self._consumer)
        return {
            **consumers,
            ApiVerb.INFO: self._account_info,
            ApiVerb.STREAM_NAMES: self._names,
            ApiVerb.STREAM_LIST: self._list,
            ApiVerb.STREAM_CREATE: self._create,
            ApiVerb.STREAM_UPDATE: self._update,
            ApiVerb.STREAM_INFO: self._info,
            ApiVerb.STREAM_DELETE: self._delete,
            ApiVerb.STREAM_PURGE: self._purge,
            ApiVerb.STREAM_MSG_GET: self._get,
            ApiVerb.STREAM_MSG_DELETE: self._delete_message,
            ApiVerb.STREAM_SNAPSHOT: self._snapshot,
            ApiVerb.STREAM_RESTORE: self._restore,
            ApiVerb.STREAM_LEADER_STEPDOWN: self._no_cluster,
            ApiVerb.STREAM_PEER_REMOVE: self._no_cluster,
        }

    # All streams

    async def _account_info(self, call: ApiCall, message: PortMessage) -> bytes:
        usage = await self._infos.usage()
        return account_info_reply(self._account.info(self._catalogue, usage))

    async def _names(self, call: ApiCall, message: PortMessage) -> bytes:
        asked = ListStreams.parse(message.payload)
        return stream_names_reply(await self._matching(asked.subject), asked.offset)

    async def _list(self, call: ApiCall, message: PortMessage) -> bytes:
        asked = ListStreams.parse(message.payload)
        names = await self._matching(asked.subject)
        infos = await self._infos.of(names[asked.offset : asked.offset + INFOS_IN_A_PAGE])
        return stream_list_reply(
            infos, self._context.now_ms(), total=len(names), offset=asked.offset
        )

    async def _matching(self, subject: str) -> list[str]:
        """Return the names of streams, in order."""
        await self._keeper.caught_up()
        names = self._catalogue.names(subject or None)
        return [name for name in names if not self._is_deleting(name)]

    def _is_deleting(self, name: str) -> bool:
        entry = self._catalogue.get(name)
        return entry is None or entry.deleting

    # One stream

    async def _create(self, call: ApiCall, message: PortMessage) -> bytes:
        name = call.stream
        asked = ConfigureStream.parse(name, message.payload)
        config = check_create(
            asked.config, self._account.limits, pedantic=asked.pedantic, reserved=self._reserved
        )
        config = self._with_origins(CatalogueDraft(self._catalogue), config, asked.pedantic)
        new_streams = self._context.new_streams
        while (earlier := new_streams.get(name)) is not None:
            await earlier.ended()
        if self._catalogue.get(name) is not None:
            return await self._create_as(config, None)
        # What is refused here claims no store.
        self._check_room(CatalogueDraft(self._catalogue), config)
        new = new_streams[name] = NewStream(
            self._context.client, self._context.holdfast, self._keeper, config, self._context.now_ms
        )
        try:
            await new.begin()
            return await self._create_as(config, new.entry)
        finally:
            del new_streams[name]
            await new.end()

    async def _create_as(self, config: ApiStreamConfig, entry: StreamEntry | None) -> bytes:
        """Have a stream with this configuration. `entry` has the store that was claimed for a new
        one."""
        name = config.name

        def decide(draft: CatalogueDraft) -> CatalogueChange | None:
            there = draft.get(name)
            if there is None:
                self._check_room(draft, config)
                if entry is None or draft.store_is_taken(entry.store):
                    raise errors.temporarily_unavailable()
                return CatalogueChange(name, entry)
            if there.deleting:
                raise errors.temporarily_unavailable()
            if ApiStreamConfig.from_json(there.config) != config:
                raise errors.stream_name_in_use()
            return None

        await self._keeper.change(decide)
        served = await self._streams.serving(name)
        created = entry is not None and self._catalogue.get(name) == entry
        state = await (served.first_state() if created else served.state())
        info = self._infos.info(served.entry, state)
        if created:
            self._context.advise(self._advisories.stream_created(*self._context.new_event(), name))
        return stream_created_reply(info, self._context.now_ms())

    async def _update(self, call: ApiCall, message: PortMessage) -> bytes:
        name = call.stream
        asked = ConfigureStream.parse(name, message.payload)

        def decide(draft: CatalogueDraft) -> CatalogueChange | None:
            there = _found(draft, name)
            config = check_update(
                ApiStreamConfig.from_json(there.config),
                asked.config,
                self._account.limits,
                pedantic=asked.pedantic,
                reserved=self._reserved,
            )
            config = self._with_origins(draft, config, asked.pedantic)
            self._check_room(draft, config)
            new = StreamEntry.of(config.to_json(), there.store, there.created_ms)
            return None if new == there else CatalogueChange(name, new)

        await self._look_for(name)
        await self._keeper.change(decide)
        info = await self._info_of(await self._streams.serving(name))
        self._context.advise(self._advisories.stream_updated(*self._context.new_event(), name))
        return stream_updated_reply(info, self._context.now_ms())

    async def _info(self, call: ApiCall, message: PortMessage) -> bytes:
        asked = StreamInfoRequest.parse(message.payload)
        served = await self._served(call)
        most_bytes = self._context.client.max_payload_bytes
        deleted = await _deleted(served, most_bytes) if asked.deleted_details else []
        subjects: dict[str, int] = {}
        subject_count = 0
        if asked.subjects_filter:
            subjects, subject_count = await _subjects(served, asked, most_bytes)
        info = self._infos.info(served.entry, await served.state(deleted, subjects))
        return stream_info_reply(
            info, self._context.now_ms(), subject_count=subject_count, offset=asked.offset
        )

    async def _delete(self, call: ApiCall, message: PortMessage) -> bytes:
        check_no_request(message.payload)
        await self._look_for(call.stream)
        await self.delete(call.stream)
        self._context.advise(
            self._advisories.stream_deleted(*self._context.new_event(), call.stream)
        )
        return success_reply(call.verb)

    async def delete(self, name: str) -> None:
        """Delete a stream: nobody serves it, then its store is destroyed, then its name is free.
        Each step can be repeated, so another gateway can go on where this one ended."""

        def begin(draft: CatalogueDraft) -> CatalogueChange | None:
            entry = draft.get(name)
            if entry is None:
                raise errors.stream_not_found()
            deleting = StreamEntry.of(entry.config, entry.store, entry.created_ms, deleting=True)
            return None if entry.deleting else CatalogueChange(name, deleting)

        served = self._streams.get(name)
        if served is not None:
            served.deleting = True
        await self._keeper.change(begin)
        await self._streams.gone(name)
        entry = self._catalogue.get(name)
        if entry is None:
            # Another request to delete it was faster.
            return
        await self._context.holdfast.serving_stream(entry.store).destroy()

        def end(draft: CatalogueDraft) -> CatalogueChange | None:
            there = draft.get(name)
            return CatalogueChange(name, None) if there is not None and there.deleting else None

        await self._keeper.change(end)

    async def _purge(self, call: ApiCall, message: PortMessage) -> bytes:
        asked = PurgeRequest.parse(message.payload)
        served = await self._served(call)
        if served.config.sealed:
            raise errors.stream_sealed()
        if served.config.deny_purge:
            raise errors.stream_purge_failed("stream purge not permitted")
        count = await served.store.purge(
            asked.filter or None, before_seq=asked.seq or None, keep=asked.keep or None
        )
        return purged_reply(count)

    async def _get(self, call: ApiCall, message: PortMessage) -> bytes:
        asked = GetMessage.parse(message.payload)
        served = await self._served(call)
        if asked.last_by_subj and is_subject(asked.last_by_subj):
            found = await served.lasts.last(asked.last_by_subj)
        else:
            found = await find(served.store, asked)
        if found is None:
            raise errors.no_message_found()
        block = b"" if asked.no_hdr else found.headers
        return message_reply(found.subject, found.seq, found.time_ms, block, found.value)

    async def _delete_message(self, call: ApiCall, message: PortMessage) -> bytes:
        asked = DeleteMessage.parse(message.payload)
        served = await self._served(call)
        if served.config.sealed:
            raise errors.stream_sealed()
        if served.config.deny_delete:
            raise errors.message_delete_failed("message delete not permitted")
        if not asked.seq or not await served.store.delete(asked.seq):
            raise await self._not_there(served, asked.seq)
        return success_reply(call.verb)

    @staticmethod
    async def _not_there(served: ServedStream, seq: int) -> ApiError:
        """Return why a message cannot be deleted: nats-server's stores tell it in their own ways.
        """
        if served.config.storage is StorageType.FILE:
            head = await served.store.head()
            if seq > head.last_seq:
                return errors.message_delete_failed("stream store EOF")
            if seq < head.first_seq:
                return errors.message_delete_failed("no message found")
        return errors.sequence_not_found(seq)

    async def _snapshot(self, call: ApiCall, message: PortMessage) -> bytes:
        raise errors.snapshot_failed("not supported")

    async def _restore(self, call: ApiCall, message: PortMessage) -> bytes:
        raise errors.restore_failed("not supported")

    async def _no_cluster(self, call: ApiCall, message: PortMessage) -> bytes:
        raise errors.clustering_required()

    # Parts

    async def _look_for(self, name: str) -> None:
        """Raise ApiError if there is no such stream. A stream that another gateway has created a
        moment ago is found."""
        if self._catalogue.get(name) is None:
            await self._keeper.caught_up()
        _found(self._catalogue, name)

    async def _consumer(self, call: ApiCall, message: PortMessage) -> bytes | None:
        """Answer a request about consumers."""
        return await (await self._served(call)).answer(call, message)

    async def _served(self, call: ApiCall) -> ServedStream:
        await self._look_for(call.stream)
        return await self._streams.serving(call.stream)

    async def _info_of(self, served: ServedStream) -> ApiStreamInfo:
        return self._infos.info(served.entry, await served.state())

    @staticmethod
    def _with_origins(
        draft: CatalogueDraft, config: ApiStreamConfig, pedantic: bool
    ) -> ApiStreamConfig:
        """Return a configuration with what it has from its origins. Raises ApiError."""
        if not config.origins:
            return config

        def find(name: str) -> ApiStreamConfig | None:
            entry = draft.get(name)
            if entry is None or entry.deleting:
                return None
            return ApiStreamConfig.from_json(entry.config)

        check_origins(config, find)
        origin = None if config.mirror is None else find(config.mirror.name)
        if origin is None:
            return config
        if pedantic and config.mirror_direct != origin.allow_direct:
            raise errors.pedantic("origin stream has direct get set, mirror has it disabled")
        return replace(config, mirror_direct=origin.allow_direct)

    def _check_room(self, draft: CatalogueDraft, config: ApiStreamConfig) -> None:
        """Check a stream against all others. Raises ApiError."""
        if draft.colliding(config.subjects, other_than=config.name):
            raise errors.stream_subject_overlap()
        limits = self._account.limits
        if 0 <= limits.max_streams <= len(draft) and draft.get(config.name) is None:
            raise errors.maximum_streams()
        memory = config.storage is StorageType.MEMORY
        limit = limits.max_memory if memory else limits.max_storage
        if limit >= 0:
            reserved = draft.reserved_bytes(in_memory=memory, other_than=config.name)
            limits.check_reservation(
                memory=memory, max_bytes=config.max_bytes, reserved_bytes=reserved
            )


def _found(source: Catalogue | CatalogueDraft, name: str) -> StreamEntry:
    entry = source.get(name)
    if entry is None or entry.deleting:
        raise errors.stream_not_found()
    return entry


async def _deleted(served: ServedStream, most_bytes: int) -> list[int]:
    """Return the removed seqs. Raises ApiError if they are too many for an answer."""
    found: list[int] = []
    async for seqs in served.store.gaps():
        found += seqs
        # A digit and a comma each, at the least.
        if 2 * len(found) > most_bytes:
            raise errors.stream_general_error(ANSWER_TOO_LARGE)
    return found


async def _subjects(
    served: ServedStream, asked: StreamInfoRequest, most_bytes: int
) -> tuple[dict[str, int], int]:
    """Return a page of the subjects that match a filter, and how many match. Raises ApiError if the
    page is too large for an answer."""
    found: dict[str, int] = {}
    try:
        wanted = check_filter(asked.subjects_filter)
    except (InvalidArgumentError, TooLargeError):
        # No message has such a subject.
        return found, 0
    count = size_bytes = 0
    after: str | None = None
    while True:
        page, after = await served.store.subjects(wanted, after_subject=after)
        for each in page[max(0, asked.offset - count) :][: SUBJECTS_IN_A_PAGE - len(found)]:
            found[each.subject] = each.count
            size_bytes += len(each.subject)
        count += len(page)
        if size_bytes > most_bytes:
            raise errors.stream_general_error(ANSWER_TOO_LARGE)
        if after is None:
            return found, count
