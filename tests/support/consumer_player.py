"""Plays programs of a client of JetStream's consumers, and notes what the client sees.

A program (`consumer_programs`) is a list of steps. What cannot be the same on two servers is left
out of what is seen: times, inboxes, pins.
"""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from typing import Any, NamedTuple

Step = tuple[Any, ...]
Seen = list[Any]


class Arrived(NamedTuple):
    """One message that a client got."""

    subject: str
    reply: str
    #: The first line and the fields of the header block.
    headers: str
    payload: str


class Side(ABC):
    """A server with a stream S of the subjects S.>, and a client of it."""

    def __init__(self) -> None:
        #: The subjects of open inboxes, by name.
        self.inboxes: dict[str, str] = {}
        self._acks: list[str] = []
        self._flow = ""

    @abstractmethod
    async def api(self, tail: str, body: bytes) -> dict[str, Any]:
        """Send a request of the API, and return the reply."""

    @abstractmethod
    async def publish(self, subject: str, payload: bytes, reply: str = "") -> None:
        """Publish to the server, not to the stream."""

    @abstractmethod
    async def append(self, subject: str, payload: bytes, headers: dict[str, str]) -> None:
        """Publish to the stream."""

    @abstractmethod
    async def remove(self, seq: int) -> None:
        """Delete a message."""

    @abstractmethod
    async def purge(self, end_seq: int) -> None:
        """Remove all messages below a seq; 0: all."""

    @abstractmethod
    async def listen(self, name: str, subject: str = "", queue: str = "") -> str:
        """Open an inbox of this name, unless it is open, and return its subject."""

    @abstractmethod
    async def unlisten(self, name: str) -> None:
        """Close an inbox."""

    @abstractmethod
    def arrived(self, name: str) -> list[Arrived]:
        """Return what arrived since the last time."""

    @abstractmethod
    async def wait(self, ms: int) -> None:
        """Let time pass."""

    async def play(self, program: list[Step]) -> Seen:
        """Play a program, and return what was seen."""
        seen = [await self._step(*step) for step in program]
        return [each for each in seen if each is not None]

    async def _step(self, kind: str, *rest: Any) -> Any:
        if kind == "pub":
            subject, payload, headers = (*rest, *(b"x", {})[len(rest) - 1 :])
            await self.append(subject, payload, headers)
            await self.wait(10)
        elif kind == "create":
            return await self._create(*rest)
        elif kind == "api":
            body = rest[1] if len(rest) > 1 else b""
            return _told(await self.api(rest[0], body))
        elif kind == "info":
            return _told(await self.api(f"CONSUMER.INFO.S.{rest[0]}", b""))
        elif kind == "listen":
            await self.listen(*rest)
            await self.wait(50)
        elif kind == "unlisten":
            await self.unlisten(rest[0])
            await self.wait(50)
        elif kind == "pull":
            inbox = await self.listen(rest[2] if len(rest) > 2 else "in")
            subject = f"$JS.API.CONSUMER.MSG.NEXT.S.{rest[0]}"
            await self.publish(subject, rest[1], inbox)
            await self.wait(40)
        elif kind == "take":
            return [self._noted(each) for each in self.arrived(rest[0])]
        elif kind == "ack":
            return await self._ack(*rest)
        elif kind == "flow":
            await self.publish(self._flow, b"")
            await self.wait(40)
        elif kind == "wait":
            await self.wait(rest[0])
        elif kind == "remove":
            await self.remove(rest[0])
            await self.wait(20)
        else:
            assert kind == "purge"
            await self.purge(rest[0])
            await self.wait(20)
        return None

    async def _create(self, name: str, config: dict[str, Any]) -> Any:
        """`deliver_subject` "@name" is the inbox of that name, or what it will listen on."""
        config = {"durable_name": name, "ack_policy": "explicit"} | config
        if config["durable_name"] is None:
            del config["durable_name"]
        deliver = config.get("deliver_subject", "")
        if deliver.startswith("@"):
            config["deliver_subject"] = self.inboxes.get(deliver[1:], f"D.{deliver[1:]}")
        body = json.dumps({"stream_name": "S", "config": config}).encode()
        told = _told(await self.api(f"CONSUMER.CREATE.S.{name}", body))
        await self.wait(20)
        return told

    async def _ack(self, index: int, payload: bytes, wants_answer: bool) -> Any:
        inbox = await self.listen("acks") if wants_answer else ""
        await self.publish(self._acks[index], payload, inbox)
        await self.wait(20)
        return [self._noted(each) for each in self.arrived("acks")] if wants_answer else None

    def _noted(self, message: Arrived) -> list[str]:
        """Return what is the same everywhere of a message, and note where to answer it."""
        subject, reply, headers, payload = message
        if reply.startswith("$JS.ACK."):
            self._acks.append(reply)
            tokens = reply.split(".")
            reply = ".".join((*tokens[4:7], tokens[8]))
        elif reply.startswith("$JS.FC."):
            self._flow, reply = reply, "flow control"
        headers = re.sub(r"(Nats-Pin-Id|Nats-Consumer-Stalled): \S+", r"\1: ...", headers)
        subject = "" if subject.startswith("_INBOX.") else subject
        shown = payload if len(payload) < 10 else f"{len(payload)} characters"
        return [subject, reply, headers, shown]


def _told(reply: dict[str, Any]) -> dict[str, Any]:
    """Return a reply without what differs each time."""
    left_out = ("ts", "created", "type", "pause_until", "pause_remaining", "pinned_ts")
    told = {name: value for name, value in reply.items() if name not in left_out}
    for name in ("delivered", "ack_floor"):
        if name in told:
            told[name] = [told[name]["consumer_seq"], told[name]["stream_seq"]]
    if "config" in told:
        config = {name: each for name, each in told["config"].items() if name not in left_out}
        # nats-server's own.
        config.pop("metadata", None)
        if config.get("deliver_subject", "").startswith("_INBOX."):
            config["deliver_subject"] = "_INBOX"
        told["config"] = config
    for group in told.pop("priority_groups", []):
        told["pinned"] = "pinned_client_id" in group
    return told
