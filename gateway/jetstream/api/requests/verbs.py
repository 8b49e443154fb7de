"""The verbs of the API: which there are, and what the subject of a request says.

A request comes on `$JS.API.<verb>`, with a domain on `$JS.<domain>.API.<verb>`. `parse_call` takes
what stands behind that prefix. Verbs that only clusters have are known too, since nats-server
refuses them; every other subject has no listener, as without JetStream.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final, NamedTuple

API_PREFIX: Final = "$JS.API."


class ApiVerb(StrEnum):
    """One verb, as in subjects. What follows are names: of a stream, of a consumer."""

    INFO = "INFO"
    STREAM_CREATE = "STREAM.CREATE"
    STREAM_UPDATE = "STREAM.UPDATE"
    STREAM_INFO = "STREAM.INFO"
    STREAM_NAMES = "STREAM.NAMES"
    STREAM_LIST = "STREAM.LIST"
    STREAM_DELETE = "STREAM.DELETE"
    STREAM_PURGE = "STREAM.PURGE"
    STREAM_MSG_GET = "STREAM.MSG.GET"
    STREAM_MSG_DELETE = "STREAM.MSG.DELETE"
    STREAM_SNAPSHOT = "STREAM.SNAPSHOT"
    STREAM_RESTORE = "STREAM.RESTORE"
    STREAM_PEER_REMOVE = "STREAM.PEER.REMOVE"
    STREAM_LEADER_STEPDOWN = "STREAM.LEADER.STEPDOWN"
    CONSUMER_CREATE = "CONSUMER.CREATE"
    CONSUMER_DURABLE_CREATE = "CONSUMER.DURABLE.CREATE"
    CONSUMER_INFO = "CONSUMER.INFO"
    CONSUMER_NAMES = "CONSUMER.NAMES"
    CONSUMER_LIST = "CONSUMER.LIST"
    CONSUMER_DELETE = "CONSUMER.DELETE"
    CONSUMER_PAUSE = "CONSUMER.PAUSE"
    CONSUMER_UNPIN = "CONSUMER.UNPIN"
    CONSUMER_RESET = "CONSUMER.RESET"
    CONSUMER_LEADER_STEPDOWN = "CONSUMER.LEADER.STEPDOWN"
    CONSUMER_MSG_NEXT = "CONSUMER.MSG.NEXT"
    DIRECT_GET = "DIRECT.GET"


#: How many names follow a verb; the last one of CONSUMER.CREATE and DIRECT.GET, a subject, may have
#: dots and may be missing.
_NAMES: Final = {
    **dict.fromkeys(ApiVerb, 1),
    **dict.fromkeys((each for each in ApiVerb if each.startswith("CONSUMER.")), 2),
    ApiVerb.INFO: 0,
    ApiVerb.STREAM_NAMES: 0,
    ApiVerb.STREAM_LIST: 0,
    ApiVerb.CONSUMER_NAMES: 1,
    ApiVerb.CONSUMER_LIST: 1,
}
_OPEN: Final = frozenset((ApiVerb.CONSUMER_CREATE, ApiVerb.DIRECT_GET))
#: What only clusters of nats-server do: `JetStream clustering support required`.
OF_CLUSTERS: Final = frozenset(
    (ApiVerb.STREAM_PEER_REMOVE, ApiVerb.STREAM_LEADER_STEPDOWN, ApiVerb.CONSUMER_LEADER_STEPDOWN)
)
#: What the gateway that serves the stream subscribes by itself, once for each stream. All gateways
#: hear the other verbs, as one queue group.
OF_SERVED_STREAMS: Final = frozenset((ApiVerb.CONSUMER_MSG_NEXT, ApiVerb.DIRECT_GET))
#: What the gateway that serves the stream answers about its consumers.
OF_CONSUMERS: Final = frozenset(
    each for each in ApiVerb if each.startswith("CONSUMER.") and each not in OF_SERVED_STREAMS
)


class ApiCall(NamedTuple):
    """What the subject of a request says. Names that a verb does not have are empty."""

    verb: ApiVerb
    stream: str = ""
    consumer: str = ""
    #: The filter of CONSUMER.CREATE, the subject of DIRECT.GET.
    subject: str = ""


def parse_call(tail: str) -> ApiCall | None:
    """Return the call whose subject ends so behind the prefix, None if there is no such verb."""
    tokens = tail.split(".")
    for length in (1, 2, 3):
        verb = _VERBS.get(".".join(tokens[:length]))
        if verb is not None:
            names = tokens[length:]
            if "" in names:
                return None
            if verb is ApiVerb.DIRECT_GET:
                return ApiCall(verb, names[0], "", ".".join(names[1:])) if names else None
            if verb is ApiVerb.CONSUMER_CREATE:
                if not names:
                    return None
                consumer = names[1] if len(names) > 1 else ""
                return ApiCall(verb, names[0], consumer, ".".join(names[2:]))
            if len(names) != _NAMES[verb]:
                return None
            return ApiCall(verb, *names)
    return None


def subjects(verb: ApiVerb) -> tuple[str, ...]:
    """Return what to subscribe for a verb, without the prefix."""
    names = ".*" * (1 if verb in _OPEN else _NAMES[verb])
    return (f"{verb}{names}", f"{verb}{names}.>") if verb in _OPEN else (f"{verb}{names}",)


_VERBS: Final = {each.value: each for each in ApiVerb}
