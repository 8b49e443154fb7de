"""A client whose token is read again when it connects anew, amid unanswered writes."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import replace

import pytest

from holdfast.client import connect
from holdfast.protocol import frames
from holdfast.protocol.access.tokens import Token, sign_token
from holdfast.protocol.bus.bus import BusMessage
from holdfast.protocol.bus.bus_memory import MemoryNetwork
from tests.simulation.virtual_loop import VirtualLoop
from tests.support.tokens import ISSUER_KEY, a_token

_FIRST = a_token(subject="ada")


def _subjects_after_a_reconnection(read: Callable[[], str]) -> list[str]:
    """Return where the one write of a client was sent whose server does not answer, before it
    connects anew and at once after it."""
    sent: list[str] = []

    async def run() -> None:
        network = MemoryNetwork()
        cluster, client_bus = network.connect("cluster"), network.connect("k")

        def name_owner(message: BusMessage) -> None:
            reply = frames.encode_control(owners=[["a", "a-1", 1]])
            answers.append(asyncio.ensure_future(cluster.publish(message.reply, reply)))

        answers: list[asyncio.Future[None]] = []
        await cluster.subscribe("hf.acme.coord.resolve.*", name_owner)
        await cluster.subscribe("hf.acme.srv.a.*", lambda message: sent.append(message.subject))
        async with connect(bus=client_bus, token=read) as client:
            writing = asyncio.ensure_future(client.stream("s").append(b"v"))
            await asyncio.sleep(0.01)
            client_bus.drop()
            client_bus.come_back()
            await asyncio.sleep(0.01)
            writing.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await writing

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(run())
    return sent


def _texts(*tokens: Token) -> Callable[[], str]:
    texts = [sign_token(token, ISSUER_KEY) for token in tokens]
    return lambda: texts.pop(0) if len(texts) > 1 else texts[0]


def test_a_renewed_token_is_asked_with_at_once() -> None:
    renewed = a_token(subject="ada")
    assert _subjects_after_a_reconnection(_texts(_FIRST, renewed)) == [
        f"hf.acme.srv.a.{_FIRST.id}",
        f"hf.acme.srv.a.{renewed.id}",
    ]


@pytest.mark.parametrize("error", [RuntimeError("the provider is away"), OSError("no file")])
def test_a_token_that_cannot_be_read_again_holds_nothing_up(
    error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    first = _texts(_FIRST)
    was_read: list[str] = []

    def read() -> str:
        if was_read:
            raise error
        was_read.append(first())
        return was_read[0]

    assert _subjects_after_a_reconnection(read) == 2 * [f"hf.acme.srv.a.{_FIRST.id}"]
    assert "client.token_not_renewed" in caplog.text


@pytest.mark.parametrize("other", [a_token(subject="ben"), replace(a_token(), tenant="evil")])
def test_a_token_of_another_holder_is_not_taken(
    other: Token, caplog: pytest.LogCaptureFixture
) -> None:
    assert _subjects_after_a_reconnection(_texts(_FIRST, other)) == 2 * [
        f"hf.acme.srv.a.{_FIRST.id}"
    ]
    assert "client.token_not_renewed" in caplog.text
