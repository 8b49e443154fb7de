"""Watches the cluster from beside it: what the processes are, what the bus carries, how late this
machine is. What it saw is judged by `verdict.py`.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from holdfast.client import Client
from holdfast.protocol import frames
from holdfast.protocol.errors import HoldfastError, UnavailableError
from tests.hostile.cluster import HOSTILE, SERVERS, VICTIM
from tests.support.raw_nats import Arrived, RawConnection
from tests.support.supervised_cluster import Parts

_LOOK_SECONDS: Final = 0.25
_BEAT_SECONDS: Final = 0.05
_ASK_SECONDS: Final = 5.0
_KEPT: Final = 20
#: By how much an answer may overtake its question, on its way to this process.
_OVERTAKE_SECONDS: Final = 1.0


@dataclass(slots=True)
class Evidence:
    """What was seen from the first attack to the last."""

    #: Of every part, at the first look; and what became of those that are others since.
    pids: dict[str, int | None] = field(default_factory=dict)
    ended: list[str] = field(default_factory=list)
    #: The lives of each server, as the coordinator knows them.
    incarnations: dict[str, set[str]] = field(default_factory=dict)
    #: What servers were said to be that they never were: draining or dead.
    states: set[tuple[str, str]] = field(default_factory=set)
    #: Messages that came to inboxes and cluster subjects without being asked for, described.
    misdirected: list[str] = field(default_factory=list)
    misdirected_count: int = 0
    #: What came to the attacker and is not its own, described.
    leaks: list[str] = field(default_factory=list)
    #: How late this machine woke up a process that had nothing else to do.
    machine_late_seconds: float = 0.0


class Watch:
    """One run's eyes."""

    def __init__(self, parts: Parts, client: Client) -> None:
        self.evidence = Evidence()
        self._parts = parts
        self._client = client
        self._asked: set[bytes] = set()
        #: What came to the victim's inboxes and had not been asked for when it came; and when.
        self._early: dict[bytes, tuple[Arrived, float]] = {}
        self._bus: RawConnection | None = None
        #: The end of the victim's own subjects, and the start of its inboxes.
        self._asks = b""
        self._inboxes = f"_INBOX.{VICTIM}.".encode()

    async def listen(self, nkey: Path | None = None, grant: str = "") -> None:
        """Hear from now on what comes to the victim's inboxes and to the cluster's subjects; as a
        server with `nkey`, if the cluster asks for tokens, of which `grant` is the victim's."""
        if grant:
            self._asks = f".{grant}".encode()
            self._inboxes = f"_INBOX.{VICTIM}.{grant}.".encode()
        self._bus = await RawConnection.connect(
            self._parts.nats_url, self._on_message, "watch", nkey=nkey
        )
        subjects = (f"hf.{VICTIM}.srv.>", f"hf.{VICTIM}.coord.>", "_INBOX.>", "hf._.>")
        for number, subject in enumerate(subjects, start=1):
            self._bus.subscribe(subject.encode(), number)
        await self._bus.round_trip()

    def begin(self) -> None:
        """Remember which process each part is."""
        self.evidence.pids = {part.name: part.pid for part in self._parts.all}

    async def run(self) -> None:
        """Look until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._look_at_servers())
            tasks.create_task(self._feel_lateness())
            while True:
                self.look_at_processes()
                await asyncio.sleep(_LOOK_SECONDS)

    def look_at_processes(self) -> None:
        """Note each part that is not the process that it was."""
        for part in self._parts.all:
            text = f"{part.name} was restarted {part.restart_count} times"
            if part.restart_count and text not in self.evidence.ended:
                self.evidence.ended.append(text)
            if not part.restart_count and part.pid != self.evidence.pids[part.name]:
                text = f"{part.name} was process {self.evidence.pids[part.name]}, now {part.pid}"
                if text not in self.evidence.ended:
                    self.evidence.ended.append(text)

    async def close(self) -> None:
        if self._bus is not None:
            # What was sent until now has arrived after this.
            await self._bus.round_trip()
            self._bus.close()
            for message, _ in self._early.values():
                self._misdirected(message)

    async def _look_at_servers(self) -> None:
        while True:
            try:
                async with asyncio.timeout(_ASK_SECONDS):
                    rows = await self._client.servers()
            except (UnavailableError, TimeoutError):
                rows = []
            for row in rows:
                self.evidence.incarnations.setdefault(row.server, set()).add(row.incarnation)
                # A suspicion is a tenant's right, and gone with the probe.
                if row.state not in ("live", "suspect"):
                    self.evidence.states.add((row.server, row.state))
            await asyncio.sleep(_LOOK_SECONDS)

    async def _feel_lateness(self) -> None:
        while True:
            due_at = time.monotonic() + _BEAT_SECONDS
            await asyncio.sleep(_BEAT_SECONDS)
            late = time.monotonic() - due_at
            self.evidence.machine_late_seconds = max(self.evidence.machine_late_seconds, late)

    def _on_message(self, message: Arrived) -> None:
        subject = message.subject
        if subject.startswith(f"hf.{VICTIM}.".encode()):
            if not subject.endswith(self._asks):
                # Somebody asks past NATS, without the victim's token.
                return
            # Only the victim can publish there. NATS keeps the order of one publisher alone, so an
            # answer may arrive here a little before what it answers.
            self._asked.add(message.reply)
            early, at = self._early.pop(message.reply, (None, 0.0))
            if early is not None and time.monotonic() - at > _OVERTAKE_SECONDS:
                self._misdirected(early)
            if not message.reply:
                self._misdirected(message)
        elif subject.startswith(self._inboxes):
            if subject not in self._asked:
                self._early[subject] = message, time.monotonic()
        elif subject.startswith(b"hf._.") and not is_of_operators(subject):
            if not is_of_the_cluster(message):
                self._misdirected(message)
        elif b"canary" in subject and not subject.startswith(f"_INBOX.{HOSTILE}.".encode()):
            self._misdirected(message)

    def _misdirected(self, message: Arrived) -> None:
        self.evidence.misdirected_count += 1
        if len(self.evidence.misdirected) < _KEPT:
            self.evidence.misdirected.append(f"{message.subject!r}: {message.payload[:100]!r}")


def is_of_operators(subject: bytes) -> bool:
    """Tell if an operator who may only list may publish on a subject below `hf._.`: what lists
    tenants, and what names its token, which servers refuse."""
    tokens = subject.split(b".")
    if len(tokens) == 5:
        return tokens[2] in (b"coord", b"srv", b"destroy")
    return tokens[2:] in ([b"coord", b"tenants"], [b"coord", b"tenant"])


def is_of_the_cluster(message: Arrived) -> bool:
    """Tell if this is what servers and the coordinator say to each other."""
    try:
        if message.subject.startswith(b"hf._.own."):
            # With tokens, servers ask each other there.
            frames.decode_request(message.payload)
            return True
        body: Any = frames.decode_control(message.payload)
    except HoldfastError:
        return False
    if message.subject == b"hf._.hb":
        # A coordinator speaks to itself there.
        return body.get("server") in SERVERS or {"coordinator", "number"} <= body.keys()
    if message.subject == b"hf._.audit":
        return body.keys() == {"events"}
    if message.subject.startswith(b"hf._.ctl."):
        return "command" in body
    return message.subject.startswith(b"hf._.coord.") and not {"owners", "term"} & body.keys()
