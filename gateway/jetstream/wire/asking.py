"""Requests of a client connection: who waits for which answer. The two ClientPorts share it."""

from __future__ import annotations

import asyncio
from typing import Final

from holdfast.gateway.jetstream.wire.ports import ClientPort, PortMessage
from holdfast.protocol.bus.bus import BusTimeoutError, NoRespondersError
from holdfast.protocol.errors import NotAllowedError

_NO_RESPONDERS: Final = b"NATS/1.0 503"


class Asking:
    """Answers come to `<inbox>.<number>`; the subscription is made with the first request."""

    def __init__(self, port: ClientPort, inbox: str) -> None:
        self._port = port
        self._inbox = inbox
        self._hearing = False
        self._count = 0
        #: By number: the subject of the request, and its answer.
        self._waiting: dict[str, tuple[str, asyncio.Future[PortMessage]]] = {}
        port.on_refused(self._refused)

    async def request(
        self, subject: str, payload: bytes, timeout_seconds: float, headers: bytes
    ) -> PortMessage:
        """See ClientPort.request."""
        self._count += 1
        number = str(self._count)
        answer: asyncio.Future[PortMessage] = asyncio.get_running_loop().create_future()
        self._waiting[number] = subject, answer
        try:
            async with asyncio.timeout(timeout_seconds):
                await self._hear()
                reply = f"{self._inbox}.{number}"
                self._port.publish(subject, payload, reply=reply, headers=headers)
                message = await answer
        except TimeoutError as error:
            raise BusTimeoutError(subject=subject, timeout_seconds=timeout_seconds) from error
        finally:
            del self._waiting[number]
        if not message.payload and message.headers.startswith(_NO_RESPONDERS):
            raise NoRespondersError(subject=subject)
        return message

    async def _hear(self) -> None:
        if not self._hearing:
            # Another request may follow at once: its line comes behind that of the subscription.
            self._hearing = True
            try:
                await self._port.subscribe(f"{self._inbox}.*", self._answered)
            except BaseException:
                self._hearing = False
                raise

    def _answered(self, message: PortMessage) -> None:
        asked = self._waiting.get(message.subject.rpartition(".")[2])
        if asked is not None and not asked[1].done():
            asked[1].set_result(message)

    def _refused(self, error: NotAllowedError) -> None:
        # Either a request was refused, or the subscription to all answers.
        for subject, answer in self._waiting.values():
            refused = error.fields.get("subject")
            if refused in (subject, f"{self._inbox}.*") and not answer.done():
                answer.set_exception(error)
