"""Runs of plain messages: what becomes of one that the owner does not answer in time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from holdfast.client.wire.waiting import fail
from holdfast.gateway.jetstream.publishing.plain_runs import PlainRuns
from holdfast.gateway.jetstream.wire.ports import PortMessage
from holdfast.protocol.errors import OperationTimeoutError


class Store:
    """Takes runs, as a client's queue does, and answers none."""

    def __init__(self) -> None:
        self.waiters: list[Any] = []

    def before_sending(self, gather: Callable[[], None]) -> None:
        """The test sends."""

    def append_soon(self, waiter: Any, *append: Any) -> None:
        self.waiters.append(waiter)

    def append_run_soon(self, waiter: Any, run: Any) -> None:
        self.waiters.append(waiter)


async def test_a_run_that_expires_is_answered_once_and_leaves_the_queue() -> None:
    answers: list[tuple[int, Any]] = []
    store: Any = Store()

    def answered(run: list[PortMessage], size_bytes: int, answer: Any) -> None:
        answers.append((len(run), type(answer[0])))

    runs = PlainRuns(store, answered)
    for subject in ("a", "b"):
        runs.add(PortMessage(subject, "", b"", b"v"), 1)
    runs.submit()
    [waiter] = store.waiters
    assert not waiter.done()
    late = OperationTimeoutError(timeout_seconds=1, reason="no reply")
    # The client looks at its queue again and again.
    for _ in range(2):
        fail((b"", waiter, 0.0, 0, 1.0), late)
    assert answers == [(2, OperationTimeoutError)]
    # Only what is done is dropped from the queue.
    assert waiter.done()
