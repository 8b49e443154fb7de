"""What the gateways of a tenant say to each other: heartbeats, and the giving up of shards.

Every gateway hears `<prefix>.<tenant>.js.hb`, and has `<prefix>.<tenant>.js.gw.<gateway>.>` to
itself: there others pass on requests (`api.`, with the rest of the request's subject behind it),
ask for shards (`release`, answered with `released`) and offer them (`offer`). That subject also
shows whether a gateway is connected, because the leafnode connection tells of its interest.

What arrives is checked as if it came from strangers: a tenant's users may be able to publish here.
"""

from __future__ import annotations

import asyncio
import functools
import json
import logging
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Final

from holdfast.gateway.jetstream.serving.live_gateways import HEARTBEAT_SECONDS, LiveGateways
from holdfast.gateway.jetstream.serving.presence import GatewayPresence
from holdfast.gateway.jetstream.serving.shard_keeper import AskRelease, Offer
from holdfast.gateway.jetstream.serving.shards import SHARD_COUNT
from holdfast.gateway.jetstream.wire.ports import (
    ClientPort,
    InterestWatch,
    LeafPort,
    PortMessage,
)
from holdfast.protocol.errors import InvalidNameError, TooLargeError, UnavailableError
from holdfast.protocol.names import check_server

logger = logging.getLogger("holdfast.gateway")

#: How long a gateway that comes waits for the others to answer its greeting.
_GREETING_SECONDS: Final = 0.25
#: How long another gateway is waited for.
_QUESTION_SECONDS: Final = 1.0
_API: Final = "api."


class PeerListener(ABC):
    """Reacts to what other gateways say. Plain functions."""

    @abstractmethod
    def gateways_changed(self, live: Sequence[str], leaving: Sequence[str]) -> None:
        """These gateways are alive now, and these others leave."""

    @abstractmethod
    def asked_to_release(self, gateway: str, number: int, shards: Sequence[int]) -> None:
        """A gateway asks for shards."""

    @abstractmethod
    def offered(self, gateway: str, shards: Sequence[int]) -> None:
        """A gateway holds shards that hash to this one."""

    @abstractmethod
    def released(self, gateway: str, number: int, revision: int) -> None:
        """A gateway has given up the shards that this one asked for by `number`. The catalogue was
        at `revision` then."""

    @abstractmethod
    def questioned(self, what: str, body: dict[str, Any], message: PortMessage) -> None:
        """Another gateway asks for something, and waits for an answer to the message."""

    @abstractmethod
    def passed_on(self, verb: str, message: PortMessage) -> None:
        """Another gateway passes on a request: `verb` is its subject behind `$JS.API.`."""


class Peers:
    """This gateway among the others. `start`, then `run` in a task."""

    def __init__(
        self,
        client: ClientPort,
        leaf: LeafPort,
        start: str,
        own: str,
        presence: GatewayPresence,
        listener: PeerListener,
    ) -> None:
        """`start` is `<prefix>.<tenant>.js`."""
        self._presence = presence
        self.live_gateways = LiveGateways(own)
        self._client = client
        self._leaf = leaf
        self.heartbeats = f"{start}.hb"
        self._gateways = f"{start}.gw"
        self._own = own
        self._listener = listener
        self._watches: dict[str, InterestWatch] = {}
        self._leaving = False

    async def start(self) -> None:
        """Greet the others, and return when they have had time to answer."""
        barrier: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._leaf.barrier(functools.partial(_resolve, barrier))
        await barrier
        alone = not self._leaf.has_interest(self.heartbeats)
        await self._client.subscribe(self.heartbeats, self._on_heartbeat)
        await self._client.subscribe(f"{self._gateways}.{self._own}.>", self._on_message)
        await self._client.flush()
        self._say(hello=True)
        if not alone:
            await asyncio.sleep(_GREETING_SECONDS)
        self._tell()

    async def run(self) -> None:
        """Say regularly that this gateway is alive, and notice who is not."""
        while True:
            await asyncio.sleep(HEARTBEAT_SECONDS)
            if not self._client.connected:
                # Nothing is heard of anybody.
                continue
            hears = self._presence.hears
            self._say()
            if hears:
                # The silence of others says nothing while this gateway does not hear itself.
                self._note(self.live_gateways.look())
            for gateway in self.live_gateways.forgotten():
                self._watches.pop(gateway).close()

    def leave(self) -> None:
        """Tell the others that this gateway takes no more streams."""
        self._leaving = True
        self._say()
        self._note(self.live_gateways.leave())

    def ask(self, question: AskRelease) -> None:
        """Ask a gateway for shards."""
        body = {"number": question.number, "shards": sorted(question.shards)}
        self._send(question.gateway, "release", body)

    def offer(self, offer: Offer) -> None:
        """Tell a gateway what of its shards this one holds."""
        self._send(offer.gateway, "offer", {"number": 0, "shards": sorted(offer.shards)})

    def answer(self, gateway: str, number: int, revision: int) -> None:
        """Tell a gateway that the shards it asked for are given up."""
        self._send(gateway, "released", {"number": number, "revision": revision})

    async def question(self, gateway: str, what: str, body: dict[str, Any]) -> Any:
        """Ask a gateway for something, and return its answer; None if there is none in time."""
        payload = json.dumps({"gateway": self._own, **body}).encode()
        subject = f"{self._gateways}.{gateway}.{what}"
        try:
            answer = await self._client.request(subject, payload, timeout_seconds=_QUESTION_SECONDS)
            return json.loads(answer.payload)
        except (UnavailableError, TooLargeError, ValueError, RecursionError) as error:
            logger.warning("jetstream.gateway_silent gateway=%s reason=%s", gateway, error)
            return None

    def pass_on(self, gateway: str, verb: str, message: PortMessage) -> None:
        """Let another gateway answer a request."""
        self._client.publish(
            f"{self._gateways}.{gateway}.{_API}{verb}",
            message.payload,
            reply=message.reply,
            headers=message.headers,
        )

    def _say(self, *, hello: bool = False) -> None:
        body: dict[str, Any] = {"beat": self._presence.said()}
        if hello:
            body["hello"] = True
        self._publish(self.heartbeats, body)

    def _send(self, gateway: str, what: str, body: dict[str, Any]) -> None:
        self._publish(f"{self._gateways}.{gateway}.{what}", body)

    def _publish(self, subject: str, body: dict[str, Any]) -> None:
        who: dict[str, Any] = {"gateway": self._own}
        if self._leaving:
            who["leaving"] = True
        self._client.publish(subject, json.dumps({**who, **body}).encode())

    def _on_heartbeat(self, message: PortMessage) -> None:
        found = _read(message)
        if found is None:
            return
        gateway, body = found
        if gateway == self._own:
            beat = body.get("beat")
            if type(beat) is int:
                self._presence.came_back(beat)
            return
        self._hear(gateway, body)
        if body.get("hello"):
            self._say()

    def _on_message(self, message: PortMessage) -> None:
        what = message.subject[len(self._gateways) + len(self._own) + 2 :]
        if what.startswith(_API):
            self._listener.passed_on(what[len(_API) :], message)
            return
        found = _read(message)
        if found is None:
            return
        gateway, body = found
        if message.reply:
            self._listener.questioned(what, body, message)
            return
        number = body.get("number")
        if type(number) is not int:
            return
        if what in ("release", "offer"):
            shards = body.get("shards")
            if type(shards) is not list or len(shards) > SHARD_COUNT:
                return
            self._hear(gateway, body)
            numbers = [each for each in shards if type(each) is int]
            if what == "offer":
                self._listener.offered(gateway, numbers)
            else:
                self._listener.asked_to_release(gateway, number, numbers)
        elif what == "released":
            revision = body.get("revision")
            self._listener.released(gateway, number, revision if type(revision) is int else 0)

    def _hear(self, gateway: str, body: dict[str, Any]) -> None:
        gateways = self.live_gateways
        new = not gateways.knows(gateway)
        changed = gateways.heard(gateway, leaving=body.get("leaving") is True)
        if new and gateways.knows(gateway):
            subject = f"{self._gateways}.{gateway}.alive"
            self._watches[gateway] = self._leaf.watch(
                subject, lambda connected: self._on_interest(gateway, connected)
            )
        self._note(changed)

    def _on_interest(self, gateway: str, connected: bool) -> None:
        self._note(self.live_gateways.interest(gateway, connected))

    def _note(self, changed: bool) -> None:
        if changed:
            logger.info("jetstream.gateways live=%s", ",".join(self.live_gateways.live))
            self._tell()

    def _tell(self) -> None:
        self._listener.gateways_changed(self.live_gateways.live, self.live_gateways.leaving)


def _resolve(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def _read(message: PortMessage) -> tuple[str, dict[str, Any]] | None:
    """Return who says it and what, or None if that makes no sense."""
    try:
        body = json.loads(message.payload)
        return str(check_server(body["gateway"])), body
    except (ValueError, TypeError, KeyError, RecursionError, InvalidNameError):
        logger.debug("jetstream.peer_malformed subject=%s", message.subject)
        return None
