"""The library that applications import.

    from holdfast.client import connect

    async with connect("nats://127.0.0.1:4222", tenant="acme") as hf:
        ack = await hf.stream("project.42.patches").append(b"...")
        await hf.kv("settings").set("theme", b"dark")

The path of a write: `handles/stream.py` or `kv.py` checks and packs it (`wire/operations.py`).
`wire/link.py` hands it to `coalescer.py`, which gathers the writes of a store
(`store_queue.py`) into a frame (`frame.py`) for the server that `router.py` has found, within
the client's `credit.py`.

The path of a change: `following/follower.py` feeds the `track.py` of a `subscription.py`, which
first reads what exists and then returns what `merge.py` has put in order. `pattern.py` does so for
many stores.

- `handles/`: streams, kvs, consumers and transactions; `large_values/`: values too large for
  one frame.
- `live/`: local copies that follow a store and can be written at once.
- `values/`: codecs and compression.
- `recipes/`: leases and the election of a leader.
- `blocking/` and `sync.py`: the same API for code without an event loop.

`holdfast.client.__version__` is the installed version.
"""

from typing import TYPE_CHECKING

from holdfast.client.connecting import connect
from holdfast.client.connection import Client
from holdfast.client.following.pattern import PatternSubscription, StoreChange
from holdfast.client.following.subscription import Subscription
from holdfast.client.handles.consumer import Consumer, Delivery
from holdfast.client.handles.dead_letters import DeadLetter
from holdfast.client.handles.forking import StoreFork
from holdfast.client.handles.kv import KV
from holdfast.client.handles.store_heads import StoreHead
from holdfast.client.handles.stream import Stream
from holdfast.client.handles.transaction import KVTransaction, StreamTransaction
from holdfast.client.handles.writing.pending import PendingAck
from holdfast.client.large_values.value_reader import ValueReader
from holdfast.client.live.live_entries import EntryChange
from holdfast.client.live.live_kv import DELETE, LiveKV
from holdfast.client.live.live_messages import MessageChange, MessageChangeKind
from holdfast.client.live.live_notices import Origin, Rejection
from holdfast.client.live.live_stream import LiveMessage, LiveStream
from holdfast.client.values.codec import Codec
from holdfast.protocol.bus.login import TlsFiles
from holdfast.protocol.chain.checking import (
    ChainReport,
    check_chain,
    leaf_of_entry,
    leaf_of_message,
)
from holdfast.protocol.chain.hashing import ChainLink
from holdfast.protocol.consumers import ConsumerConfig, ConsumerInfo
from holdfast.protocol.control import ServerInfo, StoreInfo, StoreState
from holdfast.protocol.distribution import version as _version
from holdfast.protocol.errors import (
    ArchiveMissingError,
    ArchiveUnreadableError,
    BackgroundThreadError,
    BusyError,
    ConnectionFailedError,
    DecryptionFailedError,
    DeniedError,
    DeposedWriterError,
    ForkedError,
    HoldfastError,
    InternalError,
    InvalidArgumentError,
    InvalidNameError,
    InvalidSeqError,
    InvalidTokenError,
    KeyUnavailableError,
    LargeValueDamagedError,
    LargeValueNotHeldError,
    LimitExceededError,
    LoginFailedError,
    MalformedFrameError,
    NewerFormatError,
    NoCoordinatorError,
    NoServerError,
    NotAllowedError,
    NotFoundError,
    OperationTimeoutError,
    OtherClusterError,
    OtherLoopError,
    PointNotReachedError,
    ProtocolError,
    RateLimitedError,
    RegistryUnreadableError,
    RequestError,
    RevisionGoneError,
    StaleWriteError,
    StorageError,
    StorageFailedError,
    StoreDamagedError,
    TenantShreddedError,
    TooLargeError,
    UnavailableError,
    UnknownOperationError,
    UnsupportedVersionError,
    UploadMismatchError,
    ValueReplacedError,
    ValueUnreadableError,
    WrongLastMsgIdError,
    WrongLastSeqError,
    WrongRevisionError,
)
from holdfast.protocol.header_block import HeaderBlock
from holdfast.protocol.messages import (
    Ack,
    Change,
    ChangeKind,
    Deleted,
    Durability,
    Entry,
    Head,
    LargeValue,
    Message,
    RemovalReason,
    SubjectInfo,
    WrittenEntry,
    WrittenMessage,
)
from holdfast.protocol.monitoring.samples import HistogramValue, PartStatistics, Sample
from holdfast.protocol.names import StoreKind, quote, unquote
from holdfast.protocol.store_config import Discard, StoreConfig

__all__ = [
    "DELETE",
    "KV",
    "Ack",
    "ArchiveMissingError",
    "ArchiveUnreadableError",
    "BackgroundThreadError",
    "BusyError",
    "ChainLink",
    "ChainReport",
    "Change",
    "ChangeKind",
    "Client",
    "Codec",
    "ConnectionFailedError",
    "Consumer",
    "ConsumerConfig",
    "ConsumerInfo",
    "DeadLetter",
    "DecryptionFailedError",
    "Deleted",
    "Delivery",
    "DeniedError",
    "DeposedWriterError",
    "Discard",
    "Durability",
    "Entry",
    "EntryChange",
    "ForkedError",
    "Head",
    "HeaderBlock",
    "HistogramValue",
    "HoldfastError",
    "InternalError",
    "InvalidArgumentError",
    "InvalidNameError",
    "InvalidSeqError",
    "InvalidTokenError",
    "KVTransaction",
    "KeyUnavailableError",
    "LargeValue",
    "LargeValueDamagedError",
    "LargeValueNotHeldError",
    "LimitExceededError",
    "LiveKV",
    "LiveMessage",
    "LiveStream",
    "LoginFailedError",
    "MalformedFrameError",
    "Message",
    "MessageChange",
    "MessageChangeKind",
    "NewerFormatError",
    "NoCoordinatorError",
    "NoServerError",
    "NotAllowedError",
    "NotFoundError",
    "OperationTimeoutError",
    "Origin",
    "OtherClusterError",
    "OtherLoopError",
    "PartStatistics",
    "PatternSubscription",
    "PendingAck",
    "PointNotReachedError",
    "ProtocolError",
    "RateLimitedError",
    "RegistryUnreadableError",
    "Rejection",
    "RemovalReason",
    "RequestError",
    "RevisionGoneError",
    "Sample",
    "ServerInfo",
    "StaleWriteError",
    "StorageError",
    "StorageFailedError",
    "StoreChange",
    "StoreConfig",
    "StoreDamagedError",
    "StoreFork",
    "StoreHead",
    "StoreInfo",
    "StoreKind",
    "StoreState",
    "Stream",
    "StreamTransaction",
    "SubjectInfo",
    "Subscription",
    "TenantShreddedError",
    "TlsFiles",
    "TooLargeError",
    "UnavailableError",
    "UnknownOperationError",
    "UnsupportedVersionError",
    "UploadMismatchError",
    "ValueReader",
    "ValueReplacedError",
    "ValueUnreadableError",
    "WrittenEntry",
    "WrittenMessage",
    "WrongLastMsgIdError",
    "WrongLastSeqError",
    "WrongRevisionError",
    "check_chain",
    "connect",
    "leaf_of_entry",
    "leaf_of_message",
    "quote",
    "unquote",
]

__version__: str

# Type checkers would accept every name.
if not TYPE_CHECKING:

    def __getattr__(name: str) -> str:
        """Look the version up only when it is asked for: most applications never ask."""
        if name == "__version__":
            return _version()
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
