"""The tree of errors. Each has a stable wire code and fields, and says whether a retry can help.

    HoldfastError
    ├── RequestError                the caller's fault: the same call fails again
    │   ├── InvalidNameError        tenant, store, server or key
    │   ├── InvalidArgumentError    another argument
    │   ├── InvalidSeqError         seq 0, or a set beyond last_seq + 1
    │   ├── WrongLastSeqError       expected_last_seq did not hold; carries the actual one
    │   ├── WrongLastMsgIdError     expected_last_msg_id did not hold; carries the actual one
    │   ├── WrongRevisionError      expected_revision did not hold; carries the actual one
    │   ├── TooLargeError           a value, key, header, batch or frame over its limit
    │   ├── LimitExceededError      a limit of the store does not let it in
    │   ├── DeniedError             a setting of the stream forbids it: deny_delete, sealed ...
    │   ├── DeposedWriterError      another gateway has begun to serve the stream
    │   ├── NotAllowedError         neither NATS nor a token lets this user do that
    │   ├── InvalidTokenError       a token that is none, or that its issuer did not sign
    │   ├── NotFoundError           a server or store that an operator named does not exist
    │   ├── PointNotReachedError    no snapshot and log lead to that revision or time
    │   ├── RevisionGoneError       the history of a kv does not reach back to that revision
    │   ├── UploadMismatchError     the uploaded bytes are not the announced value
    │   ├── ValueReplacedError      a large value was replaced or deleted while it was read
    │   ├── LargeValueNotHeldError  a local copy does not hold large values; use a reader
    │   ├── ForkedError             a child process used a blocking client of its parent
    │   ├── OtherLoopError          a client was used outside of its event loop
    │   ├── BackgroundThreadError   a blocking call on the thread that has to answer it
    │   ├── TenantShreddedError     the keys of its encrypted values were destroyed
    │   ├── LastServerError         a drain would leave no server that takes stores
    │   ├── ServerInUseError        a server that lives, or owns stores, cannot be forgotten
    │   └── StaleWriteError         a write arrived after its writer had abandoned it
    ├── UnavailableError            try again; the client retries until its timeout
    │   ├── NoServerError           no persist server is alive
    │   ├── NoCoordinatorError      no coordinator answers
    │   ├── DeposedError            a later coordinator has replaced the sender
    │   ├── NotOwnerError           the server does not own the store, or no longer
    │   ├── BusyError               a queue is full
    │   ├── RateLimitedError        over the store's rate; the caller decides when to retry
    │   ├── WriterGapError          a group of a writer came before its predecessors
    │   ├── KeyUnavailableError     this server lacks the key of encrypted values
    │   ├── RegistryUnreadableError who may do what cannot be read, so nobody may do anything
    │   ├── ConnectionFailedError   NATS cannot be reached
    │   │   └── LoginFailedError    NATS and this process do not accept each other
    │   └── OperationTimeoutError   no answer in time: a write may or may not be stored
    ├── StorageError                data, or its storage, is in danger
    │   ├── StoreDamagedError       a store's file or log is missing, torn or foreign
    │   ├── LargeValueDamagedError  a large value does not have its sha256
    │   ├── DecryptionFailedError   an encrypted value was changed, or belongs elsewhere
    │   ├── ValueUnreadableError    a value cannot be decompressed or decoded
    │   ├── StorageFailedError      the file system refused (full, I/O error, no descriptors)
    │   ├── ArchiveMissingError     archived messages are missing from the archive
    │   ├── ArchiveUnreadableError  this server lacks what it needs to read the archive
    │   ├── NewerFormatError        written by a later holdfast
    │   ├── FencedError             this incarnation has been fenced
    │   ├── StaleFileSystemError    a server's mount shows what has been replaced
    │   └── AlreadyRunningError     another process holds the lock
    └── ProtocolError               a bug, or a foreign peer
        ├── UnsupportedVersionError
        ├── MalformedFrameError
        ├── UnknownOperationError
        ├── InternalError           an operation met a bug and changed nothing
        └── OtherClusterError       a peer of another cluster uses the same subjects

The text of an error is built from its fields. On the wire an error is `[code, fields]`. A peer that
does not know a code makes a plain HoldfastError with it, so old clients understand new servers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from holdfast.protocol.limits import (
    MAX_ERROR_ELEMENTS,
    MAX_ERROR_FIELDS,
    MAX_ERROR_TEXT_CHARACTERS,
    MAX_INTEGER,
    MIN_INTEGER,
)


class HoldfastError(Exception):
    """Root of the tree. `code` is stable; `fields` are the constructor's keyword arguments."""

    code: ClassVar[str] = "error"
    retryable: ClassVar[bool] = False
    template: ClassVar[str] = "{reason}"

    def __init__(self, /, **fields: object) -> None:
        self.fields: dict[str, object] = fields
        super().__init__(self._text())

    def _text(self) -> str:
        try:
            return self.template.format(**self.fields)
        except (
            LookupError,
            ValueError,
            TypeError,
            AttributeError,
            ArithmeticError,
            RecursionError,
        ):
            # A newer peer may send other fields than the template names, and a field may quote
            # something too large or too deep to show.
            return f"{self.code}: " + ", ".join(f"{k}={v!r}" for k, v in wire_fields(self).items())

    def __getattr__(self, name: str) -> Any:
        fields = self.__dict__.get("fields", {})
        if name in fields:
            return fields[name]
        raise AttributeError(name)

    def __reduce__(self) -> tuple[object, ...]:
        return (_rebuild, (type(self), self.fields))


class RequestError(HoldfastError):
    """The caller's fault: the same call fails again."""

    code = "request"


class InvalidNameError(RequestError):
    """The name of a tenant, store, server or consumer, or a key, is not allowed."""

    code = "invalid_name"
    template = "invalid {what} name {name!r}: {reason}"


class InvalidArgumentError(RequestError):
    """An argument other than a name is wrong."""

    code = "invalid_argument"
    template = "invalid {argument}: {reason}"


class InvalidSeqError(RequestError):
    """A seq is below 1 or, for a set, above the last seq + 1."""

    code = "invalid_seq"
    template = "invalid seq {seq}: this stream has seqs 1 to {last_seq}, and {last_seq} + 1 appends"


class WrongLastSeqError(RequestError):
    """`expected_last_seq` is not the stream's last seq, which is `actual`. If it was expected of a
    subject or a filter, `subject` is that.
    """

    code = "wrong_last_seq"
    template = "expected last seq {expected}, but it is {actual}"


class WrongLastMsgIdError(RequestError):
    """`expected_last_msg_id` is not the id of the stream's last message, which is `actual`."""

    code = "wrong_last_msg_id"
    template = "expected last msg_id {expected!r}, but it is {actual!r}"


class WrongRevisionError(RequestError):
    """`expected_revision` is not the revision of `key`, which is `actual`. For a message, `key` is
    its seq. Revision 0 means that the key or message does not exist. Of a condition on a prefix,
    `key` is one that was not to exist, or not to change after revision `expected`.
    """

    code = "wrong_revision"
    template = "expected revision {expected} of {key!r}, but it is {actual}"


class TooLargeError(RequestError):
    """A value, key, header, batch or frame is above its limit."""

    code = "too_large"
    template = "{what} of {size} is over the limit of {limit}"


class LimitExceededError(RequestError):
    """A limit of the store or of its tenant refuses the write: `what` is the name of the limit,
    after `the tenant's ` if it is the tenant's; `value` is what the write would have led to.
    """

    code = "limit_exceeded"
    template = "{what} is {limit}; this would make it {value}"


class DeniedError(RequestError):
    """A setting of the stream forbids the `action`: `deny_delete`, `deny_purge`, `sealed`
    or `chain`.
    """

    code = "denied"
    template = "{setting} of the stream does not allow to {action}"


class DeposedWriterError(RequestError):
    """The write names a `serving_epoch` that is no longer that of the stream, which is `actual`:
    another gateway serves it.
    """

    code = "deposed_writer"
    template = "serving epoch {serving_epoch} is not that of the stream, which is {actual}"


class NotAllowedError(RequestError):
    """This user or token may not do that: the `action` on `subject`, a NATS subject or a store.

    If a token is what does not allow it, `missing` says what it lacks: a right such as `write`, or
    `a token`, if there is none, or if it is expired or revoked.
    """

    code = "not_allowed"
    template = "not allowed to {action} {subject!r}: {reason}"


class InvalidTokenError(RequestError):
    """What was given as a token is none, or its issuer did not sign it."""

    code = "invalid_token"
    template = "the token is not valid: {reason}"


class NotFoundError(RequestError):
    """A consumer, dead letter, server or store does not exist."""

    code = "not_found"
    template = "no {what} {name!r}"


class PointNotReachedError(RequestError):
    """Neither snapshots nor logs can restore the store to that point. `before` and `after` are
    `[revision, time]` of the nearest points that can be restored, or None.
    """

    code = "point_not_reached"
    template = "{store} cannot be restored to {target}: {reason}"


class RevisionGoneError(RequestError):
    """The history of a kv does not reach back to `revision`, of `key` or, if that is None, of all
    keys that were asked for.
    """

    code = "revision_gone"
    template = "the history of {store} does not reach back to revision {revision}"


class UploadMismatchError(RequestError):
    """An upload is not complete, was removed, or has other content: it has `staged_bytes` of
    `size_bytes`.
    """

    code = "upload_mismatch"
    template = (
        "{staged_bytes} of {size_bytes} bytes are uploaded, or their content differs: upload again"
    )


class ValueReplacedError(RequestError):
    """A large value was replaced or deleted while it was read."""

    code = "value_replaced"
    template = "{what} was replaced or deleted while its value was read"


class LargeValueNotHeldError(RequestError):
    """A live replica does not hold large values. `get_reader` of the store reads them."""

    code = "large_value_not_held"
    template = "{what} is large, and a local copy does not hold it: use get_reader of its store"


class ForkedError(RequestError):
    """A blocking client was made in process `made_in` and used in its child `process_id`. Connect
    again in the child.
    """

    code = "forked"
    template = (
        "this blocking client belongs to process {made_in}, and this is its child {process_id}: "
        "connect again in the child"
    )


class OtherLoopError(RequestError):
    """A client was used outside of the event loop in which it connected: in a second loop, in
    another thread, or in a forked child. Nothing was sent.
    """

    code = "other_loop"
    template = (
        "this client belongs to another event loop: connect in this one, or use "
        "holdfast.client.sync, whose clients serve all threads"
    )


class BackgroundThreadError(RequestError):
    """A callback made a blocking call on the background's thread, which would have to answer it."""

    code = "background_thread"
    template = "a blocking call cannot be made here: {reason}"


class TenantShreddedError(RequestError):
    """The keys of this tenant's encrypted values were destroyed, so nobody can read them again."""

    code = "tenant_shredded"
    template = "the keys of tenant {tenant!r} were destroyed: its values are gone for good"


class LastServerError(RequestError):
    """A drain would leave no server that takes stores."""

    code = "last_server"
    template = "no server except {server!r} takes stores: start another one first"


class ServerInUseError(RequestError):
    """A server that is not dead, or that is still recorded as the owner of stores, was to be
    forgotten."""

    code = "server_in_use"
    template = "server {server!r} cannot be forgotten: {reason}"


class StaleWriteError(RequestError):
    """A write arrived after its writer had given it up. It was not stored."""

    code = "stale_write"
    template = "write group {counter} arrived after its writer had abandoned it"


class UnavailableError(HoldfastError):
    """Try again later. The client retries by itself until the timeout of the operation."""

    code = "unavailable"
    retryable = True


class NoServerError(UnavailableError):
    """No persist server is alive."""

    code = "no_server"
    template = (
        "no persist server is alive. Try: holdfast servers; start one: holdfast persist --help"
    )


class NoCoordinatorError(UnavailableError):
    """No coordinator answers."""

    code = "no_coordinator"
    template = (
        "no coordinator answers on prefix {prefix!r}. Try: holdfast up, or holdfast coordinator"
    )


class DeposedError(UnavailableError):
    """A coordinator that has a successor sent this."""

    code = "deposed"
    template = "a coordinator of term {newer_term} has replaced the coordinator of term {term}"


class NotOwnerError(UnavailableError):
    """The server does not own the store, or no longer owns it."""

    code = "not_owner"
    template = "server {server!r} does not own this store"


class BusyError(UnavailableError):
    """A queue is full."""

    code = "busy"
    template = "busy: {what} is full"


class RateLimitedError(UnavailableError):
    """A rate of the store or of its tenant is used up, and nothing was stored. The client does not
    retry this error: try again after `retry_after_seconds`.
    """

    code = "rate_limited"
    template = "{what} is {limit:g}; try again in {retry_after_seconds:g} s"


class WriterGapError(UnavailableError):
    """A group of writes arrived before the groups that precede it."""

    code = "writer_gap"
    template = "write group {counter} arrived before group {expected} of the same writer"


class KeyUnavailableError(UnavailableError):
    """The tenant's values are encrypted, and the server does not have the key. Nothing was read or
    stored, and nothing is damaged. `key` is the number of the data key, 0 if it needs all of them.
    The client does not retry this error: try again once the server has the key.
    """

    code = "key_unavailable"
    template = "the values of tenant {tenant!r} are encrypted, and key {key} is missing: {reason}"


class RegistryUnreadableError(UnavailableError):
    """The server cannot read the registry of tokens, or what was revoked. Until it can, it refuses
    everything; nothing was stored.
    """

    code = "registry_unreadable"
    template = "the server cannot read who may do what: {reason}"


class ConnectionFailedError(UnavailableError):
    """NATS cannot be reached. Without `url`, the application has closed the connection, and
    `reason` says what it closed; or it has not opened it, and `advice` says how.
    """

    code = "connection_failed"
    template = (
        "cannot reach NATS at {url}: {reason}. Try: holdfast up, or check --nats and HOLDFAST_NATS"
    )

    def _text(self) -> str:
        url, reason = self.fields.get("url"), self.fields.get("reason", "the connection")
        if url == "NATS":
            # A connection that was there, to whichever server.
            return super()._text().replace("cannot reach NATS at NATS:", "cannot reach NATS:", 1)
        if url:
            return super()._text()
        if "advice" in self.fields:
            return f"{reason}. Try: {self.fields['advice']}"
        return f"{reason} has been closed. Try: connect again"


class LoginFailedError(ConnectionFailedError):
    """NATS does not accept the user or the certificate of this process, or this process not that of
    NATS. `advice` is what to try.
    """

    code = "login_failed"
    template = "cannot log in to NATS at {url}: {reason}. Try: {advice}"


class OperationTimeoutError(UnavailableError, TimeoutError):
    """No answer came before the timeout. A write may or may not be stored. It is also a
    TimeoutError.
    """

    code = "timeout"
    template = "no answer within {timeout_seconds:g} s ({reason}); a write may or may not be stored"


class StorageError(HoldfastError):
    """Data, or the place where it is stored, is in danger."""

    code = "storage"


class StoreDamagedError(StorageError):
    """The file or the log of a store is missing, torn or foreign."""

    code = "store_damaged"
    template = "{store} is damaged: {reason}"


class LargeValueDamagedError(StorageError):
    """A large value that was read has another sha256 than its writer computed."""

    code = "large_value_damaged"
    template = "the value of {what} differs from what was stored: {reason}"


class DecryptionFailedError(StorageError):
    """The key is there, and an encrypted value does not fit it: the value was changed, or moved
    here from another place. `place` is its seq, key or offset.
    """

    code = "decryption_failed"
    template = "the encrypted value of {store} at {place} was changed, or is not of that place"


class ValueUnreadableError(StorageError):
    """A value cannot be decompressed, or was written with another codec. The store's other values
    are unaffected.
    """

    code = "value_unreadable"
    template = "{what} cannot be read: {reason}"


class StorageFailedError(StorageError):
    """The file system refused: it is full, has an I/O error, or has no descriptors left."""

    code = "storage_failed"
    template = "the file system refused: {reason}"


class ArchiveMissingError(StorageError):
    """Messages that have left their store's file are not in the archive. No other message is
    affected.
    """

    code = "archive_missing"
    template = (
        "messages {first_seq} to {last_seq} of {store} are not in the archive {table}: {reason}"
    )


class ArchiveUnreadableError(StorageError):
    """The server lacks what it needs to read the archive."""

    code = "archive_unreadable"
    template = "{store} has archived messages, which this server cannot read: {reason}"


class NewerFormatError(StorageError):
    """A file or object was written by a later version of holdfast."""

    code = "newer_format"
    template = (
        "{what} has format {found}, but this holdfast reads only up to {known}: upgrade holdfast"
    )


class FencedError(StorageError):
    """This incarnation of a server has been fenced."""

    code = "fenced"
    template = "incarnation {incarnation} of server {server!r} has been fenced"


class StaleFileSystemError(StorageError):
    """A server's mount shows something older than another host has made durable: beside a fence,
    so that it would hide a fence likewise and the server serves nothing; or of a dead server's log,
    so that what this may have changed is not opened; or of a store's file, which is not opened.
    """

    code = "stale_file_system"
    template = "{path} shows what another host has replaced, on {type}. Try: {mend}"


class AlreadyRunningError(StorageError):
    """Another process holds the lock."""

    code = "already_running"
    template = "{what} is already running here: another process holds {path}"


class ProtocolError(HoldfastError):
    """A bug, or a peer that does not speak this protocol."""

    code = "protocol"


class UnsupportedVersionError(ProtocolError):
    """A peer speaks another version of the protocol."""

    code = "unsupported_version"
    template = "protocol version {found}; this side speaks {known}"


class MalformedFrameError(ProtocolError):
    """A message has a wrong shape or type."""

    code = "malformed_frame"
    template = "malformed frame: {reason}"


class UnknownOperationError(ProtocolError):
    """The operation is unknown, or belongs to the other kind of store."""

    code = "unknown_operation"
    template = "unknown operation {operation}"


class InternalError(ProtocolError):
    """An operation met a bug of the server and did nothing. The server's log has the traceback."""

    code = "internal_error"
    template = "{what} failed and changed nothing, because of a bug in the server: {reason}"


def internal_error(what: str, cause: BaseException) -> InternalError:
    """Return the error that reports an unexpected exception."""
    return InternalError(what=what, reason=type(cause).__name__)


class OtherClusterError(ProtocolError):
    """A coordinator or server of another cluster uses the same subjects. `who` is the part that is
    refused.
    """

    code = "other_cluster"
    template = (
        "{who} belongs to cluster {found}, not to {expected}: give all parts of one cluster the "
        "same --data (with --disk local, the same --bucket), and each cluster its own --prefix or "
        "NATS"
    )


def error_to_wire(error: HoldfastError) -> list[object]:
    """Return `[code, fields]`, which msgpack can pack whatever the types of the fields."""
    return [error.code, wire_fields(error)]


def wire_fields(error: HoldfastError) -> dict[str, object]:
    """Return the fields of an error for the wire, bounded and of types that msgpack can carry.

    Some fields quote what a peer sent.
    """
    fields = list(error.fields.items())[:MAX_ERROR_FIELDS]
    return {_wire_text(name): _wire_value(value, nested=True) for name, value in fields}


def _wire_value(value: object, *, nested: bool) -> object:
    if value is None or type(value) in (bool, float):
        return value
    if isinstance(value, int):
        if MIN_INTEGER <= value <= MAX_INTEGER:
            return int(value)
        return f"a number of {value.bit_length()} bits"
    if isinstance(value, str):
        return _wire_text(value)
    if isinstance(value, bytes):
        return bytes(value[:MAX_ERROR_TEXT_CHARACTERS])
    if isinstance(value, list | tuple) and nested:
        return [_wire_value(each, nested=False) for each in value[:MAX_ERROR_ELEMENTS]]
    return f"a {type(value).__name__}"


def _wire_text(text: str) -> str:
    if len(text) > MAX_ERROR_TEXT_CHARACTERS:
        text = text[: MAX_ERROR_TEXT_CHARACTERS - 3] + "..."
    return text if text.isascii() else text.encode(errors="backslashreplace").decode()


def error_from_wire(code: str, fields: Mapping[str, object]) -> HoldfastError:
    """Return the error of `code`. An unknown code, from a newer peer,
    becomes a plain HoldfastError."""
    if type(fields) is not dict or not all(type(name) is str for name in fields):
        raise TypeError("the fields of an error are a map of names")
    known = ERRORS_BY_CODE.get(code)
    if known is not None:
        return known(**fields)
    error = HoldfastError(**fields)
    error.code = code  # type: ignore[misc]
    return error


def _rebuild(cls: type[HoldfastError], fields: dict[str, object]) -> HoldfastError:
    return cls(**fields)


def _by_code() -> dict[str, type[HoldfastError]]:
    found: dict[str, type[HoldfastError]] = {}
    waiting: list[type[HoldfastError]] = [HoldfastError]
    while waiting:
        cls = waiting.pop()
        assert cls.code not in found, cls.code
        found[cls.code] = cls
        waiting.extend(cls.__subclasses__())
    return found


ERRORS_BY_CODE: dict[str, type[HoldfastError]] = _by_code()
