"""What a writer of the torture notes of an append that it tried more than once."""

from __future__ import annotations

import io
import json
from typing import Any, cast

import pytest

from holdfast.client import Client
from holdfast.protocol.errors import (
    HoldfastError,
    NoCoordinatorError,
    OperationTimeoutError,
    WrongLastSeqError,
)
from holdfast.protocol.names import StoreKind
from tests.support.checking.history import Operation
from tests.torture.recording import Recorder
from tests.torture.writer import perform

UNKNOWN = OperationTimeoutError(timeout_seconds=1.0, reason="no answer")
NEVER_SENT = NoCoordinatorError(prefix="hf")
REFUSED = WrongLastSeqError(expected=1, actual=2)


class Refusing:
    """A client whose appends end in one error after the other."""

    def __init__(self, *errors: HoldfastError) -> None:
        self._errors = list(errors)

    def stream(self, name: str) -> Refusing:
        return self

    async def append(self, value: bytes, **options: Any) -> None:
        raise self._errors.pop(0)


@pytest.mark.parametrize(
    ("errors", "is_definite"),
    [
        ((NEVER_SENT, NEVER_SENT, NEVER_SENT), True),
        # The first try may have stored it, whatever became of the others.
        ((UNKNOWN, NEVER_SENT, NEVER_SENT), False),
        ((UNKNOWN, REFUSED), False),
        ((NEVER_SENT, NEVER_SENT, UNKNOWN), False),
        ((NEVER_SENT, REFUSED), True),
    ],
)
async def test_an_append_is_refused_only_if_no_try_may_have_stored_it(
    errors: tuple[HoldfastError, ...], is_definite: bool
) -> None:
    file = io.StringIO()
    operation = Operation(
        "w1-1",
        (int(StoreKind.STREAM), "s"),
        "append",
        0.0,
        values=(b"w1-1",),
        label="append with msg_id",
    )
    await perform(cast(Client, Refusing(*errors)), operation, 1.0, Recorder(file))
    ended = json.loads(file.getvalue().splitlines()[-1])
    assert ended["definite"] is is_definite
