"""What an account of JetStream may use, as the gateway's configuration says it. -1 is no limit."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any, Final, Self

from holdfast.gateway.jetstream.api import errors
from holdfast.protocol.limits import MAX_CURSOR_ROWS

#: The level of the API that the gateway supports. 4 is nats-server 2.14's: fast batches, resets of
#: consumers, acks by flow control. 5 is about nats-servers that copy from each other.
API_LEVEL: Final = 4
#: Messages that a consumer has given up and that are still in the stream. Each is a row of its
#: cursor in the stream's store. More than that many poisoned messages forget the oldest.
MAX_GIVEN_UP: Final = 16 * 1024
#: Pending deliveries of one consumer: each is such a row, too.
MAX_ACK_PENDING: Final = MAX_CURSOR_ROWS - MAX_GIVEN_UP
#: Consumers of one stream, whatever its configuration allows. Those that are recorded are cursors
#: of the stream's store, of which there are fewer.
MAX_STREAM_CONSUMERS: Final = 16 * 1024
#: nats-server's: of a description, of all names and values of metadata together.
MAX_DESCRIPTION_LENGTH: Final = 4 * 1024
MAX_METADATA_LENGTH: Final = 128 * 1024
#: What one page of a reply has at most.
NAMES_IN_A_PAGE: Final = 1024
INFOS_IN_A_PAGE: Final = 256
SUBJECTS_IN_A_PAGE: Final = 100_000
#: The most subjects of which a `multi_last` request gets the last messages.
MAX_MULTI_LAST_SUBJECTS: Final = 1024
_MAX_DIGITS: Final = 18


@dataclass(frozen=True, slots=True)
class AccountLimits:
    """The limits of an account, by JetStream's names."""

    #: Bytes that all streams of `storage: memory` reserve by their `max_bytes`.
    max_memory: int = -1
    #: The same of `storage: file`.
    max_storage: int = -1
    max_streams: int = -1
    #: Of each stream.
    max_consumers: int = -1
    #: Of each consumer.
    max_ack_pending: int = -1
    #: `max_bytes` of each stream.
    memory_max_stream_bytes: int = -1
    storage_max_stream_bytes: int = -1
    #: A stream must have `max_bytes`.
    max_bytes_required: bool = False

    @classmethod
    def parse(cls, texts: Iterable[str]) -> Self:
        """Return the limits that texts such as `max_streams=10` say. Raises ValueError."""
        known = {name: type(value) for name, value in asdict(cls()).items()}
        given: dict[str, Any] = {}
        for text in texts:
            name, _, number = text.partition("=")
            if name not in known:
                raise ValueError(f"{name[:80]!r} is none of {', '.join(known)}")
            if not (number.isascii() and number.isdigit() and len(number) <= _MAX_DIGITS):
                raise ValueError(f"{text[:80]!r} needs a number")
            given[name] = known[name](int(number))
        return cls(**given)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def check_reservation(self, *, memory: bool, max_bytes: int, reserved_bytes: int) -> None:
        """Check that a stream fits beside the others of its storage.

        `max_bytes` are the stream's own, `reserved_bytes` the sum of the others'. Raises ApiError.
        """
        limit = self.max_memory if memory else self.max_storage
        # A stream without max_bytes reserves one byte, so that a full account refuses it.
        wanted = max_bytes if max_bytes >= 0 else 1
        if limit >= 0 and reserved_bytes + wanted > limit:
            raise (
                errors.memory_resources_exceeded()
                if memory
                else errors.storage_resources_exceeded()
            )


NO_LIMITS: Final = AccountLimits()
