"""What publishers are told when a store's owner refuses a message."""

from __future__ import annotations

import pytest

from holdfast.gateway.jetstream.publishing.refusals import api_error
from holdfast.protocol.errors import (
    BusyError,
    ConnectionFailedError,
    DeniedError,
    HoldfastError,
    InvalidArgumentError,
    LimitExceededError,
    OperationTimeoutError,
    RateLimitedError,
    StorageFailedError,
    TooLargeError,
    WrongLastMsgIdError,
    WrongLastSeqError,
)


def _full(what: str) -> LimitExceededError:
    return LimitExceededError(what=what, limit=1, value=2)


@pytest.mark.parametrize(
    ("error", "code", "text"),
    [
        (WrongLastSeqError(expected=1, actual=7), 10071, "wrong last sequence: 7"),
        (WrongLastMsgIdError(expected="a", actual="b"), 10070, "wrong last msg ID: b"),
        (WrongLastMsgIdError(expected="a", actual=None), 10070, "wrong last msg ID: "),
        (_full("max_messages"), 10077, "maximum messages exceeded"),
        (_full("max_bytes"), 10077, "maximum bytes exceeded"),
        (_full("max_messages_per_subject"), 10077, "maximum messages per subject exceeded"),
        (_full("max_message_bytes"), 10054, "message size exceeds maximum allowed"),
        (_full("the tenant's bytes"), 10077, "the tenant's bytes exceeded"),
        (TooLargeError(what="a value", size=2, limit=1), 10054, None),
        (RateLimitedError(retry_after_seconds=1), 10167, "too many requests"),
        (BusyError(reason="x"), 10167, None),
        (StorageFailedError(reason="disk full"), 10023, "insufficient resources"),
        (DeniedError(setting="sealed", action="append"), 10109, None),
        (ConnectionFailedError(url="x", reason="y"), 10008, None),
        (InvalidArgumentError(argument="subject", reason="odd"), 10077, None),
        (HoldfastError(reason="of a later version"), 10077, "of a later version"),
    ],
)
def test_each_refusal_has_its_error(error: HoldfastError, code: int, text: str | None) -> None:
    found = api_error(error)
    assert found is not None and found.err_code == code
    assert text is None or found.description == text


def test_nobody_is_told_what_nobody_knows() -> None:
    assert api_error(OperationTimeoutError(timeout_seconds=1, reason="no reply")) is None
