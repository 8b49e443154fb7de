"""Bodies of requests about streams, each into a frozen value. All raise ApiError."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from holdfast.gateway.jetstream.api import bodies, errors
from holdfast.gateway.jetstream.api.stream_config import ApiStreamConfig


@dataclass(frozen=True, slots=True)
class ConfigureStream:
    """STREAM.CREATE and STREAM.UPDATE: a configuration as it came, not checked yet."""

    config: ApiStreamConfig
    pedantic: bool = False

    @classmethod
    def parse(cls, stream: str, body: bytes) -> ConfigureStream:
        """`stream` is the name in the subject, which the body must repeat."""
        fields = bodies.parse_object(body)
        # Beside the configuration, not part of it.
        asked = {name: fields.pop(name) for name in [*fields] if name.lower() == "pedantic"}
        pedantic = bodies.read(_PEDANTIC, asked).get("pedantic", False)
        config = ApiStreamConfig.parse(fields)
        if config.name != stream:
            raise errors.stream_name_mismatch()
        return cls(config, pedantic)


@dataclass(frozen=True, slots=True)
class StreamInfoRequest:
    """STREAM.INFO: what to tell beside the state."""

    offset: int = 0
    #: The seqs of deleted messages.
    deleted_details: bool = False
    #: Subjects and counts of messages, of the subjects that match. "" is none of them.
    subjects_filter: str = ""

    @classmethod
    def parse(cls, body: bytes) -> StreamInfoRequest:
        return cls(**_optional(_INFO, body))


@dataclass(frozen=True, slots=True)
class ListStreams:
    """STREAM.NAMES and STREAM.LIST."""

    offset: int = 0
    #: Only streams one of whose subjects overlaps with it. "" is all of them.
    subject: str = ""

    @classmethod
    def parse(cls, body: bytes) -> ListStreams:
        return cls(**_optional(_LIST, body))


@dataclass(frozen=True, slots=True)
class PurgeRequest:
    """STREAM.PURGE: nothing set is everything."""

    #: Messages with this seq and later ones stay; 0 is none.
    seq: int = 0
    #: Only messages whose subject matches; "" is all.
    filter: str = ""
    #: So many of the last that match stay.
    keep: int = 0

    @classmethod
    def parse(cls, body: bytes) -> PurgeRequest:
        request = cls(**_optional(_PURGE, body))
        if request.seq and request.keep:
            raise errors.bad_request()
        return request


@dataclass(frozen=True, slots=True)
class DeleteMessage:
    """STREAM.MSG.DELETE."""

    seq: int = 0
    #: nats-server would not overwrite the bytes; stores never keep them.
    no_erase: bool = False

    @classmethod
    def parse(cls, body: bytes) -> DeleteMessage:
        if bodies.is_empty(body):
            raise errors.bad_request()
        return cls(**bodies.read(_DELETE, bodies.parse_object(body)))


def check_no_request(body: bytes) -> None:
    """Check the body of a verb that takes none: STREAM.DELETE, CONSUMER.INFO, CONSUMER.DELETE."""
    if not bodies.is_empty(body):
        raise errors.not_empty_request()


def offset(value: Any, path: str) -> int:
    """An offset into a list; below 0 is 0."""
    return max(bodies.int64(value, path), 0)


def _optional(schema: bodies.Schema, body: bytes) -> dict[str, Any]:
    """What begins otherwise than JSON counts as no body."""
    return bodies.read(schema, bodies.parse(body)) if bodies.is_object(body) else {}


_PEDANTIC: Final[bodies.Schema] = {"pedantic": bodies.boolean}
_INFO: Final[bodies.Schema] = {
    "offset": offset,
    "deleted_details": bodies.boolean,
    "subjects_filter": bodies.text,
}
_LIST: Final[bodies.Schema] = {"offset": offset, "subject": bodies.text}
_PURGE: Final[bodies.Schema] = {
    "seq": bodies.uint64,
    "filter": bodies.text,
    "keep": bodies.uint64,
}
_DELETE: Final[bodies.Schema] = {"seq": bodies.uint64, "no_erase": bodies.boolean}
