"""Replies of the API: what a request is answered with, as bytes.

A reply has the `type` of its verb. nats-server leaves out what is empty, with exceptions that
clients count on: those are written here, field by field. Nothing else is sent: nats-jetstream
refuses a reply with a field that it does not know.

`PubAcks` makes the answers to publishes, which is most of what a gateway sends.
"""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from holdfast.gateway.jetstream.api.consumer_config import ApiConsumerConfig
from holdfast.gateway.jetstream.api.errors import ApiError
from holdfast.gateway.jetstream.api.limits import (
    API_LEVEL,
    INFOS_IN_A_PAGE,
    NAMES_IN_A_PAGE,
    NO_LIMITS,
    SUBJECTS_IN_A_PAGE,
    AccountLimits,
)
from holdfast.gateway.jetstream.api.requests.verbs import ApiVerb
from holdfast.gateway.jetstream.api.stream_config import ApiStreamConfig
from holdfast.gateway.jetstream.api.stream_source import origin_info
from holdfast.gateway.jetstream.api.times import (
    MILLISECOND,
    ZERO_TIME,
    format_ms,
    format_time,
)

_TYPES: Final = "io.nats.jetstream.api.v1."
_PAGE: Final = {"total": 0, "offset": 0, "limit": 0}
#: What an error has beside `type` and `error`.
_WITH_ERRORS: Final[Mapping[ApiVerb, Mapping[str, Any]]] = {
    ApiVerb.STREAM_INFO: _PAGE,
    ApiVerb.STREAM_NAMES: _PAGE | {"streams": None},
    ApiVerb.STREAM_LIST: _PAGE | {"streams": []},
    ApiVerb.STREAM_PURGE: {"purged": 0},
    ApiVerb.CONSUMER_NAMES: _PAGE | {"consumers": []},
    ApiVerb.CONSUMER_LIST: _PAGE | {"consumers": []},
    ApiVerb.CONSUMER_PAUSE: {"paused": False, "pause_until": ZERO_TIME},
    ApiVerb.CONSUMER_RESET: {"reset_seq": 0},
}


def reply_type(verb: ApiVerb) -> str:
    """Return the `type` of the replies of a verb."""
    name = _ODD_TYPES.get(verb) or f"{verb.value.lower().replace('.', '_')}_response"
    return _TYPES + name


_ODD_TYPES: Final = {
    ApiVerb.INFO: "account_info_response",
    ApiVerb.STREAM_PEER_REMOVE: "stream_remove_peer_response",
    ApiVerb.CONSUMER_DURABLE_CREATE: "consumer_create_response",
}


def error_reply(verb: ApiVerb, error: ApiError) -> bytes:
    return _reply(verb, error=error.to_json(), **_WITH_ERRORS.get(verb, {}))


def success_reply(verb: ApiVerb) -> bytes:
    """The reply of STREAM.DELETE, STREAM.MSG.DELETE and CONSUMER.DELETE."""
    return _reply(verb, success=True)


@dataclass(frozen=True, slots=True)
class ApiStreamState:
    """What a stream holds. Times are milliseconds since 1970; 0 is none."""

    messages: int = 0
    bytes: int = 0
    first_seq: int = 0
    first_ms: int = 0
    last_seq: int = 0
    last_ms: int = 0
    consumer_count: int = 0
    num_subjects: int = 0
    num_deleted: int = 0
    #: If asked for.
    deleted: Sequence[int] = ()
    subjects: Mapping[str, int] = field(default_factory=dict)
    #: What there is to tell about its mirror's origin, or each of its sources, as JSON.
    origins: Sequence[Mapping[str, Any]] = ()

    def to_json(self) -> dict[str, Any]:
        made: dict[str, Any] = {
            "messages": self.messages,
            "bytes": self.bytes,
            "first_seq": self.first_seq,
            "first_ts": format_ms(self.first_ms),
            "last_seq": self.last_seq,
            "last_ts": format_ms(self.last_ms),
        }
        if self.num_subjects:
            made["num_subjects"] = self.num_subjects
        if self.subjects:
            made["subjects"] = dict(self.subjects)
        if self.num_deleted:
            made["num_deleted"] = self.num_deleted
        if self.deleted:
            made["deleted"] = list(self.deleted)
        made["consumer_count"] = self.consumer_count
        return made


@dataclass(frozen=True, slots=True)
class ApiStreamInfo:
    """What replies tell about a stream."""

    config: ApiStreamConfig
    created_ms: int
    state: ApiStreamState
    domain: str = ""

    def to_json(self, now_ms: int) -> dict[str, Any]:
        domain = {"domain": self.domain} if self.domain else {}
        return {
            "config": self.config.to_json(),
            "created": format_ms(self.created_ms),
            "state": self.state.to_json(),
            **domain,
            **self._origins(),
            "ts": format_ms(now_ms),
        }

    def _origins(self) -> dict[str, Any]:
        # Nobody copies into a sealed stream, nor into one that no gateway serves just then.
        found = [*self.state.origins] or [origin_info(each) for each in self.config.origins]
        if self.config.mirror is not None:
            return {"mirror": found[0]}
        return {"sources": found} if self.config.sources else {}


def stream_created_reply(info: ApiStreamInfo, now_ms: int) -> bytes:
    """Of a new stream, and of an equal one that was there."""
    return _reply(ApiVerb.STREAM_CREATE, **info.to_json(now_ms), did_create=True)


def stream_updated_reply(info: ApiStreamInfo, now_ms: int) -> bytes:
    return _reply(ApiVerb.STREAM_UPDATE, **info.to_json(now_ms))


def stream_info_reply(
    info: ApiStreamInfo, now_ms: int, *, subject_count: int = 0, offset: int = 0
) -> bytes:
    """`subject_count` is how many subjects match the filter, 0 if none was asked for; the info has
    those of this page. nats.js asks again while the total is above what it has.
    """
    limit = SUBJECTS_IN_A_PAGE if subject_count else 0
    page = {"total": subject_count, "offset": min(offset, subject_count), "limit": limit}
    return _reply(ApiVerb.STREAM_INFO, **page, **info.to_json(now_ms))


def stream_names_reply(names: Sequence[str], offset: int = 0) -> bytes:
    """`names` are all that were asked for, sorted; the reply has the page from `offset` on."""
    page, head = _page(names, offset, NAMES_IN_A_PAGE)
    return _reply(ApiVerb.STREAM_NAMES, **head, streams=page or None)


def stream_list_reply(
    infos: Iterable[ApiStreamInfo], now_ms: int, *, total: int, offset: int = 0
) -> bytes:
    """`infos` are those of the page, of which INFOS_IN_A_PAGE fit."""
    head = {"total": total, "offset": min(offset, total), "limit": INFOS_IN_A_PAGE}
    return _reply(ApiVerb.STREAM_LIST, **head, streams=[each.to_json(now_ms) for each in infos])


def purged_reply(count: int) -> bytes:
    return _reply(ApiVerb.STREAM_PURGE, success=True, purged=count)


def message_reply(subject: str, seq: int, time_ms: int, block: bytes, payload: bytes) -> bytes:
    """One stored message. An empty `block` is none: there was none, or none was wanted."""
    # As a bucket's get asks for it, so it is made without an encoder, in less than half the time.
    headers = b',"hdrs":"%b"' % b64encode(block) if block else b""
    data = b',"data":"%b"' % b64encode(payload) if payload else b""
    return b'%b{"subject":%b,"seq":%d%b%b,"time":"%b"}}' % (
        _MESSAGE_HEAD,
        json.dumps(subject).encode(),
        seq,
        headers,
        data,
        format_ms(time_ms).encode(),
    )


@dataclass(frozen=True, slots=True)
class SequenceState:
    """A place in the deliveries of a consumer and in its stream; 0 is no time."""

    consumer_seq: int = 0
    stream_seq: int = 0
    last_active_ms: int = 0

    def to_json(self) -> dict[str, Any]:
        made: dict[str, Any] = {
            "consumer_seq": self.consumer_seq,
            "stream_seq": self.stream_seq,
        }
        if self.last_active_ms:
            made["last_active"] = format_ms(self.last_active_ms)
        return made


@dataclass(frozen=True, slots=True)
class PriorityGroupState:
    """Who is pinned in a priority group, if anybody."""

    group: str
    pinned_client_id: str = ""
    pinned_ms: int = 0

    def to_json(self) -> dict[str, Any]:
        pinned = {"pinned_client_id": self.pinned_client_id} if self.pinned_client_id else {}
        return {"group": self.group, **pinned, "pinned_ts": format_ms(self.pinned_ms)}


@dataclass(frozen=True, slots=True)
class ApiConsumerInfo:
    """What replies tell about a consumer."""

    stream_name: str
    name: str
    created_ms: int
    config: ApiConsumerConfig
    delivered: SequenceState = SequenceState()
    ack_floor: SequenceState = SequenceState()
    num_ack_pending: int = 0
    num_redelivered: int = 0
    num_waiting: int = 0
    num_pending: int = 0
    push_bound: bool = False
    priority_groups: tuple[PriorityGroupState, ...] = ()

    def to_json(self, now_ms: int) -> dict[str, Any]:
        made: dict[str, Any] = {
            "stream_name": self.stream_name,
            "name": self.name,
            "created": format_ms(self.created_ms),
            "config": self.config.to_json(),
            "delivered": self.delivered.to_json(),
            "ack_floor": self.ack_floor.to_json(),
            "num_ack_pending": self.num_ack_pending,
            "num_redelivered": self.num_redelivered,
            "num_waiting": self.num_waiting,
            "num_pending": self.num_pending,
        }
        if self.push_bound:
            made["push_bound"] = True
        remaining_ns = pause_remaining_ns(self.config.pause_until, now_ms)
        if remaining_ns:
            made["paused"] = True
            made["pause_remaining"] = remaining_ns
        made["ts"] = format_ms(now_ms)
        if self.priority_groups:
            made["priority_groups"] = [each.to_json() for each in self.priority_groups]
        return made


def consumer_created_reply(info: ApiConsumerInfo, now_ms: int) -> bytes:
    return _reply(ApiVerb.CONSUMER_CREATE, **info.to_json(now_ms))


def consumer_info_reply(info: ApiConsumerInfo, now_ms: int) -> bytes:
    return _reply(ApiVerb.CONSUMER_INFO, **info.to_json(now_ms))


def consumer_names_reply(names: Sequence[str], offset: int = 0) -> bytes:
    """`names` are those of all consumers, sorted; the reply has the page from `offset` on."""
    page, head = _page(names, offset, NAMES_IN_A_PAGE)
    return _reply(ApiVerb.CONSUMER_NAMES, **head, consumers=page)


def consumer_list_reply(
    infos: Iterable[ApiConsumerInfo], now_ms: int, *, total: int, offset: int = 0
) -> bytes:
    """`infos` are those of the page, of which INFOS_IN_A_PAGE fit."""
    head = {"total": total, "offset": min(offset, total), "limit": INFOS_IN_A_PAGE}
    return _reply(ApiVerb.CONSUMER_LIST, **head, consumers=[each.to_json(now_ms) for each in infos])


def consumer_paused_reply(pause_until_ns: int | None, now_ms: int) -> bytes:
    """Of a pause, and of a resume: None."""
    remaining_ns = pause_remaining_ns(pause_until_ns, now_ms)
    until = ZERO_TIME if pause_until_ns is None else format_time(pause_until_ns)
    remaining = {"pause_remaining": remaining_ns} if remaining_ns else {}
    paused = bool(remaining_ns)
    return _reply(ApiVerb.CONSUMER_PAUSE, paused=paused, pause_until=until, **remaining)


def consumer_unpinned_reply() -> bytes:
    return _reply(ApiVerb.CONSUMER_UNPIN)


def consumer_reset_reply(info: ApiConsumerInfo, now_ms: int, reset_seq: int) -> bytes:
    """`reset_seq` is the first stream seq that will be delivered now."""
    return _reply(ApiVerb.CONSUMER_RESET, **info.to_json(now_ms), reset_seq=reset_seq)


def pause_remaining_ns(pause_until_ns: int | None, now_ms: int) -> int:
    """Return how long a consumer is paused from now on, 0 if it is not."""
    return max(0, pause_until_ns - now_ms * MILLISECOND) if pause_until_ns is not None else 0


@dataclass(frozen=True, slots=True)
class AccountInfo:
    """What an account uses, in bytes and numbers, and what it may use."""

    memory: int = 0
    storage: int = 0
    reserved_memory: int = 0
    reserved_storage: int = 0
    streams: int = 0
    consumers: int = 0
    limits: AccountLimits = NO_LIMITS
    api_total: int = 0
    api_errors: int = 0
    domain: str = ""

    def to_json(self) -> dict[str, Any]:
        domain = {"domain": self.domain} if self.domain else {}
        return {
            "memory": self.memory,
            "storage": self.storage,
            "reserved_memory": self.reserved_memory,
            "reserved_storage": self.reserved_storage,
            "streams": self.streams,
            "consumers": self.consumers,
            "limits": self.limits.to_json(),
            **domain,
            "api": {"level": API_LEVEL, "total": self.api_total, "errors": self.api_errors},
        }


def account_info_reply(info: AccountInfo) -> bytes:
    return _reply(ApiVerb.INFO, **info.to_json())


class PubAcks:
    """The answers to publishes on one stream. They differ in few bytes: the rest is made once."""

    def __init__(self, stream: str, domain: str = "") -> None:
        self._stream: Final = json.dumps(stream)
        self._domain: Final = f',"domain":{json.dumps(domain)}' if domain else ""
        self._head: Final = f'{{"stream":{self._stream},"seq":'.encode()
        self._end: Final = f"{self._domain}}}".encode()
        self._duplicate: Final = f'{self._domain},"duplicate":true}}'.encode()

    def stored(self, seq: int) -> bytes:
        return b"%b%d%b" % (self._head, seq, self._end)

    def stored_run(self, first_seq: int, count: int) -> list[str]:
        """What `stored` returns for this and the following seqs, as ASCII text."""
        head, end = self._head.decode(), self._end.decode()
        return [f"{head}{seq}{end}" for seq in range(first_seq, first_seq + count)]

    def duplicate(self, seq: int) -> bytes:
        """A message with this id is there already, as `seq`."""
        return b"%b%d%b" % (self._head, seq, self._duplicate)

    def counted(self, seq: int, total: int | str, *, duplicate: bool = False) -> bytes:
        """A counter's increment, with what it comes to."""
        again = ',"duplicate":true' if duplicate else ""
        return b"%b%d%b" % (self._head, seq, f'{self._domain}{again},"val":"{total}"}}'.encode())

    def committed(
        self,
        seq: int,
        batch: str,
        count: int,
        total: int | str | None = None,
        *,
        duplicate: bool = False,
    ) -> bytes:
        """A whole batch, with the seq of its last message. `duplicate`: it is one message, which
        was there already."""
        value = "" if total is None else f',"val":"{total}"'
        again = ',"duplicate":true' if duplicate else ""
        fields = f'{self._domain}{again}{value},"batch":{json.dumps(batch)},"count":{count}}}'
        return b"%b%d%b" % (self._head, seq, fields.encode())

    def refused(self, error: ApiError) -> bytes:
        """Nothing was stored."""
        text = json.dumps(error.to_json(), separators=(",", ":"))
        return f'{{"error":{text},"stream":{self._stream},"seq":0{self._domain}}}'.encode()


_MESSAGE_HEAD: Final = f'{{"type":"{reply_type(ApiVerb.STREAM_MSG_GET)}","message":'.encode()


def _page(names: Sequence[str], offset: int, limit: int) -> tuple[list[str], dict[str, int]]:
    offset = min(offset, len(names))
    head = {"total": len(names), "offset": offset, "limit": limit}
    return list(names[offset : offset + limit]), head


def _reply(verb: ApiVerb, **fields: Any) -> bytes:
    body = {"type": reply_type(verb), **fields}
    return json.dumps(body, separators=(",", ":")).encode()
