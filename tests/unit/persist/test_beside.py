"""Work in the process of a server: it begins after the server, ends before it, and does not end it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable

import pytest

from holdfast.persist import beside
from holdfast.persist.beside import working_beside
from holdfast.protocol.errors import UnavailableError
from holdfast.protocol.serving.monitor import Monitor
from holdfast.protocol.serving.process import ServerProcess
from tests.support.waiting import until


class Process:
    """What is around the server: `signal` is a SIGTERM."""

    def __init__(self) -> None:
        self.signal: Callable[[], object] = lambda: None
        self.ready = asyncio.Event()
        self.process = ServerProcess(self._on_signals, self.ready, Monitor(None))

    def _on_signals(self, stop: Callable[[], object]) -> None:
        self.signal = stop


class Work:
    """Fails as often as it is told to, and then works until it is cancelled."""

    def __init__(self, *failures: BaseException) -> None:
        self.failures = list(failures)
        self.begun = 0
        self.is_ready_first = False
        self.said: list[str] = []

    async def __call__(self, process: ServerProcess) -> None:
        self.begun += 1
        if self.is_ready_first:
            process.ready.set()
        if self.failures:
            raise self.failures.pop(0)
        process.ready.set()
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            self.said.append("work ended")


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(beside, "_AGAIN_SECONDS", 0.001)
    monkeypatch.setattr(beside, "_MAX_AGAIN_SECONDS", 0.002)


async def test_it_begins_when_the_server_is_ready_and_ends_with_it() -> None:
    around, work = Process(), Work()
    async with working_beside(around.process, work, "s1"):
        for _ in range(5):
            await asyncio.sleep(0)
        assert work.begun == 0
        around.ready.set()
        await until(lambda: work.begun == 1)
    assert work.said == ["work ended"]


async def test_a_signal_ends_it_before_the_server() -> None:
    around, work = Process(), Work()
    around.ready.set()
    async with working_beside(around.process, work, "s1") as own:
        own.on_signals(lambda: work.said.append("server stops"))
        await until(lambda: work.begun == 1)
        around.signal()
        assert work.said == []
        await until(lambda: len(work.said) == 2)
    assert work.said == ["work ended", "server stops"]


async def test_work_that_fails_at_its_end_has_ended(caplog: pytest.LogCaptureFixture) -> None:
    begun = 0

    async def work(process: ServerProcess) -> None:
        nonlocal begun
        begun += 1
        try:
            await asyncio.Event().wait()
        finally:
            raise UnavailableError(reason="NATS has gone")

    around = Process()
    around.ready.set()
    async with working_beside(around.process, work, "s1"):
        await until(lambda: begun == 1)
    await asyncio.sleep(0.01)
    assert begun == 1


async def test_work_that_does_not_end_keeps_no_server_from_stopping(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(beside, "_END_SECONDS", 0.02)
    go_on = asyncio.Event()
    said: list[str] = []

    async def work(process: ServerProcess) -> None:
        while not go_on.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await go_on.wait()

    around = Process()
    around.ready.set()
    async with working_beside(around.process, work, "s1") as own:
        own.on_signals(lambda: said.append("server stops"))
        await asyncio.sleep(0.001)
        around.signal()
        await until(lambda: said == ["server stops"])
    go_on.set()


async def test_a_signal_before_the_server_is_ready_stops_it_too() -> None:
    around, work = Process(), Work()
    async with working_beside(around.process, work, "s1") as own:
        own.on_signals(lambda: work.said.append("server stops"))
        around.signal()
        await until(lambda: work.said == ["server stops"])
    assert work.begun == 0


async def test_what_fails_is_tried_again_and_the_server_hears_nothing_of_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    around = Process()
    # A cancellation that nobody asked for must not end it for ever.
    away = UnavailableError(reason="no leafnodes")
    work = Work(away, ZeroDivisionError(), asyncio.CancelledError())
    around.ready.set()
    with caplog.at_level(logging.ERROR, "holdfast.persist"):
        async with working_beside(around.process, work, "s1"):
            await until(lambda: work.begun == 4)
    assert work.said == ["work ended"]
    assert "server.beside_ended server=s1" in caplog.text
    assert "no leafnodes" in caplog.text
    assert "server.beside_failed what=s1" in caplog.text


async def test_the_pauses_grow_until_it_was_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(beside, "_MAX_AGAIN_SECONDS", 0.004)
    pauses: list[float] = []
    real_sleep = asyncio.sleep

    async def sleep(seconds: float) -> None:
        if seconds:
            pauses.append(seconds)
        await real_sleep(0)

    around, work = Process(), Work(*[UnavailableError(reason="away") for _ in range(5)])
    around.ready.set()
    monkeypatch.setattr(beside.asyncio, "sleep", sleep)
    async with working_beside(around.process, work, "s1"):
        while work.begun < 5:
            await real_sleep(0)
        work.is_ready_first = True
        while work.begun < 6:
            await real_sleep(0)
    assert pauses[:4] == [0.001, 0.002, 0.004, 0.004]
