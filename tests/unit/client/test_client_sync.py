"""The blocking API beside the one it blocks on, and its background.

Signatures and docstrings are generated (`docs/generate/blocking_api.py`), so only names are
compared here."""

from __future__ import annotations

import asyncio
import inspect
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

import holdfast.client as asynchronous
from holdfast.client import sync
from holdfast.client.blocking.background import Background, background
from holdfast.client.blocking.blocking_pending import PendingAck
from holdfast.client.handles import consumer, transaction
from holdfast.client.live import live_replica
from holdfast.protocol.errors import (
    BackgroundThreadError,
    ForkedError,
    HoldfastError,
    OperationTimeoutError,
)
from holdfast.protocol.messages import Ack, Durability

#: Each class of the blocking API, and what it is for an event loop.
PAIRS: dict[type, type] = {
    getattr(sync, name): getattr(asynchronous, name)
    for name in sync.__all__
    if name not in ("DELETE", "Rows", "connect")
}
#: What a name is in blocking code.
NAMES = {
    "aclose": "close",
    "__aenter__": "__enter__",
    "__aexit__": "__exit__",
    "__aiter__": "__iter__",
    "__anext__": "__next__",
    "__await__": "result",
}
#: What only blocking code has: a file's methods, and what an event loop has other means for.
MORE = {
    sync.ValueReader: {"close", "readable", "readall", "readinto", "__next__"},
    sync.PendingAck: {"give_up"},
    sync.Subscription: {"poll"},
    sync.PatternSubscription: {"poll"},
    # `error` is an attribute there, and so on no class.
    sync.LiveKV: {"error"},
    sync.LiveStream: {"error"},
}


#: What the gateway alone calls.
OF_THE_GATEWAY = {"send_now", "serving_stream", "tell_statistics"}


def in_threads(count: int, work: Callable[[int], object]) -> list[threading.Thread]:
    """Do work in so many threads; return them when all are done."""
    threads = [threading.Thread(target=work, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return threads


def public(cls: type) -> set[str]:
    """Return the public names of a class, and the methods behind `with`, `for` and `await`."""
    return {
        name
        for base in cls.__mro__
        if base.__module__.startswith("holdfast.")
        for name in vars(base)
        if not name.startswith("_") or name in NAMES or name in NAMES.values()
    }


def parameters(of: Any) -> list[tuple[str, object, object, str]]:
    """Return name, kind, default and type of each parameter."""
    return [
        (each.name, each.kind, each.default, str(each.annotation))
        for each in inspect.signature(of).parameters.values()
    ]


def test_each_class_of_the_client_that_waits_is_there_for_blocking_code() -> None:
    waiting = {
        each
        for name in asynchronous.__all__
        if inspect.isclass(each := getattr(asynchronous, name))
        and any(
            inspect.iscoroutinefunction(member) or inspect.isasyncgenfunction(member)
            for _, member in inspect.getmembers(each)
        )
    }
    assert waiting | {asynchronous.PendingAck} == set(PAIRS.values())
    assert all(cls.__name__ == other.__name__ for cls, other in PAIRS.items())


@pytest.mark.parametrize("blocking", PAIRS, ids=lambda cls: cls.__name__)
def test_names_are_the_same(blocking: type) -> None:
    there = {NAMES.get(name, name) for name in public(PAIRS[blocking]) - OF_THE_GATEWAY}
    here = public(blocking) - MORE.get(blocking, set())
    assert here == there


def test_connect_takes_the_same_but_a_bus_which_belongs_to_one_loop() -> None:
    theirs = [each for each in parameters(asynchronous.connect) if each[0] != "bus"]
    assert parameters(sync.connect) == theirs


def test_every_public_call_that_waits_has_a_timeout_or_the_clients() -> None:
    inherits = {
        # Each request of theirs has the client's timeout.
        *{(consumer.Delivery, name) for name in ("ack", "nak", "in_progress", "term")},
        *{(consumer.Consumer, name) for name in ("ack", "deliveries", "aclose")},
        *{(transaction._Transaction, name) for name in ("commit", "get")},
        *{(asynchronous.KVTransaction, name) for name in ("get", "get_many", "get_all")},
        *{(asynchronous.StreamTransaction, name) for name in ("get", "get_many")},
        (asynchronous.Subscription, "aclose"),
        (asynchronous.PatternSubscription, "aclose"),
        (asynchronous.Client, "close"),
        # Of gateways, which tell every other second.
        (asynchronous.Client, "tell_statistics"),
        # That of `get_reader`.
        (asynchronous.ValueReader, "read"),
    }
    without = set()
    for cls in [*PAIRS.values(), live_replica.LiveReplica, transaction._Transaction]:
        for name, member in vars(cls).items():
            waits = inspect.iscoroutinefunction(member) or inspect.isasyncgenfunction(member)
            if not waits or name.startswith("_"):
                continue
            if "timeout_seconds" not in inspect.signature(member).parameters:
                without.add((cls, name))
    assert without <= inherits, without - inherits


async def test_a_connect_that_is_cancelled_leaves_no_connection() -> None:
    begun, ended = asyncio.Event(), asyncio.Event()

    async def say_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        begun.set()
        assert await reader.read() == b""
        writer.close()
        await writer.wait_closed()
        ended.set()

    async with await asyncio.start_server(say_nothing, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]

        async def connect() -> None:
            await asynchronous.connect(f"nats://127.0.0.1:{port}")

        connecting = asyncio.create_task(connect())
        async with asyncio.timeout(30):
            await begun.wait()
            # It waits for the server's first line then: cancelled while it connects, nats-py
            # waits for that line all the same, for as long as a connection may take.
            for _ in range(100):
                await asyncio.sleep(0)
            connecting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await connecting
            await ended.wait()


# The background


def test_a_coroutine_returns_and_raises_in_its_caller() -> None:
    async def add(a: int, b: int) -> float:
        await asyncio.sleep(0)
        return a / b

    assert background().run(add(6, 3)) == 2
    with pytest.raises(ZeroDivisionError):
        background().run(add(6, 0))


def test_the_background_is_one_for_all_threads_and_is_not_one_of_them() -> None:
    async def where() -> int:
        return threading.get_ident()

    found: list[tuple[Background, int]] = []
    threads = in_threads(8, lambda _: found.append((background(), background().run(where()))))
    assert len(found) == 8 and len(set(found)) == 1
    assert found[0][1] not in {threading.get_ident(), *(thread.ident for thread in threads)}


def test_it_serves_a_thread_that_runs_a_loop_of_its_own() -> None:
    async def answer() -> int:
        await asyncio.sleep(0)
        return 42

    async def cell_of_a_notebook() -> int:
        return background().run(answer())

    assert asyncio.run(cell_of_a_notebook()) == 42


def test_a_blocking_call_on_the_backgrounds_thread_is_refused_and_not_a_deadlock() -> None:
    async def wrong() -> None:
        async def never() -> None:
            raise AssertionError

        background().run(never())

    with pytest.raises(BackgroundThreadError):
        background().run(wrong())
    assert background().do(lambda: background().do(lambda: 1)) == 1, "what does not wait is done"


def test_what_is_posted_by_many_threads_is_done_in_the_order_of_each() -> None:
    done: list[tuple[int, int]] = []

    def post(number: int) -> None:
        for index in range(500):
            background().post(lambda index=index: done.append((number, index)))  # type: ignore[misc]

    in_threads(8, post)
    background().do(lambda: None)
    assert len(done) == 8 * 500
    for number in range(8):
        assert [index for by, index in done if by == number] == list(range(500))


def test_a_coroutine_can_ask_its_caller_and_ends_with_what_the_caller_raises() -> None:
    asked: list[int] = []

    def work(ask: Callable[[Callable[[], int]], Awaitable[int]]) -> Any:
        async def sum_up() -> int:
            try:
                return await ask(answer) + await ask(answer)
            except asyncio.CancelledError:
                asked.append(-1)
                raise

        return sum_up()

    def answer() -> int:
        asked.append(threading.get_ident())
        if len(asked) == 4:
            raise ZeroDivisionError
        return len(asked)

    assert background().run_asking(work) == 3
    with pytest.raises(ZeroDivisionError):
        background().run_asking(work)
    assert asked == [threading.get_ident()] * 4 + [-1]


def test_an_interrupt_cancels_the_call_and_is_raised_when_that_has_ended() -> None:
    ended = []

    async def work() -> None:
        # Only now: before, the caller might not wait yet.
        os.kill(os.getpid(), signal.SIGINT)
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            await asyncio.sleep(0)
            ended.append(True)
            raise

    with pytest.raises(KeyboardInterrupt):
        background().run(work())
    assert ended


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_child_of_a_fork_has_a_background_of_its_own_and_is_refused_the_parents() -> None:
    async def answer() -> int:
        return 42

    parents = background()
    assert parents.run(answer()) == 42
    child = os.fork()
    if not child:
        code = 1
        try:
            parents.run(answer())
        except ForkedError as error:
            right = error.made_in == os.getppid() and error.process_id == os.getpid()
            code = 0 if right and background().run(answer()) == 42 else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert parents.run(answer()) == 42


def test_a_process_ends_at_once_and_in_silence_while_the_background_is_there() -> None:
    program = (
        "from holdfast.client.blocking.background import background\n"
        "import asyncio\n"
        "async def close(): print('closed')\n"
        "serving = background()\n"
        "serving.opened(object(), close)\n"
        "serving.post(lambda: serving.create_task(asyncio.sleep(60)))\n"
        "print(serving.do(lambda: 'done'))\n"
    )
    command = [sys.executable, "-W", "error", "-c", program]
    result = subprocess.run(command, capture_output=True, timeout=30, check=False)
    assert (result.returncode, result.stdout, result.stderr) == (0, b"done\nclosed\n", b"")


# Pending acks


def to_ack(result: Any, time: int, durability: Durability) -> Ack:
    return Ack(result[0], result[1], time, durability)


def test_a_pending_ack_is_answered_for_every_thread_that_waits() -> None:
    pending = PendingAck(background(), to_ack)
    told: list[tuple[str, Ack]] = []
    pending.add_done_callback(
        lambda done: told.append((threading.current_thread().name, done.result()))
    )
    found: list[Ack] = []
    threads = [threading.Thread(target=lambda: found.append(pending.result())) for _ in range(4)]
    for thread in threads:
        thread.start()
    assert not pending.done()
    with pytest.raises(OperationTimeoutError):
        pending.result(0)
    background().post(lambda: pending.set_result(([1, 1], 5, Durability.SYNCED)))
    for thread in threads:
        thread.join()
    assert found == [Ack(1, 1, 5, Durability.SYNCED)] * 4
    assert pending.done() and pending.result() == found[0]
    background().do(lambda: None)
    assert told == [("holdfast.background", found[0])]


def test_an_answer_that_comes_after_the_wait_was_given_up_changes_nothing() -> None:
    pending = PendingAck(background(), to_ack)
    pending.give_up()
    pending.set_result(([1, 1], 5, Durability.SYNCED))
    with pytest.raises(asyncio.CancelledError):
        pending.result()


def test_a_pending_ack_raises_the_error_that_it_was_answered_with() -> None:
    pending = PendingAck(background(), to_ack)
    pending.set_result((OperationTimeoutError(timeout_seconds=1, reason="late"), 0, None))
    for _ in range(2):
        with pytest.raises(HoldfastError, match="late"):
            pending.result()
