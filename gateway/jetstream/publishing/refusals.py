"""Errors of a store's owner in JetStream's words. Pure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from holdfast.gateway.jetstream.api import errors
from holdfast.gateway.jetstream.api.errors import ApiError
from holdfast.protocol.errors import (
    BusyError,
    HoldfastError,
    LimitExceededError,
    OperationTimeoutError,
    RateLimitedError,
    StorageFailedError,
    TooLargeError,
    UnavailableError,
    WrongLastSeqError,
)

_FULL: Final = {
    "max_messages": "maximum messages exceeded",
    "max_bytes": "maximum bytes exceeded",
    "max_messages_per_subject": "maximum messages per subject exceeded",
}


def api_error(error: HoldfastError) -> ApiError | None:
    """Return the error of JetStream for an append that its owner refused. None: nobody can say
    whether the message was stored, and the publisher must find out by its own timeout.
    """
    make = _MAKERS.get(error.code)
    if make is not None:
        return make(error)
    if isinstance(error, OperationTimeoutError):
        return None
    if isinstance(error, UnavailableError):
        return errors.temporarily_unavailable()
    return errors.stream_store_failed(str(error))


def _limit_exceeded(error: HoldfastError) -> ApiError:
    what = str(error.fields.get("what"))
    if what == "max_message_bytes":
        return errors.message_too_large()
    return errors.stream_store_failed(_FULL.get(what, f"{what} exceeded"))


_MAKERS: Final[dict[str, Callable[[HoldfastError], ApiError]]] = {
    WrongLastSeqError.code: lambda error: errors.wrong_last_sequence(error.fields.get("actual")),
    "wrong_last_msg_id": lambda error: errors.wrong_last_msg_id(error.fields.get("actual") or ""),
    LimitExceededError.code: _limit_exceeded,
    TooLargeError.code: lambda error: errors.message_too_large(),
    RateLimitedError.code: lambda error: errors.too_many_requests(),
    BusyError.code: lambda error: errors.too_many_requests(),
    StorageFailedError.code: lambda error: errors.insufficient_resources(),
    "denied": lambda error: errors.stream_sealed(),
}
