"""The attacker's process: `python -m tests.hostile.attacker TASK`, where TASK is a Task as JSON.

Several connections send one volley after the other, each after the servers have taken the one
before: else most of a flood would only wait in nats-server. What arrives at its subscriptions is
looked through for what belongs to others. It says on stdout how far it is, as JSON lines, hears
`finish` on stdin, and leaves a Report in `file` and a line for each volley in `attacks.jsonl`.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import random
import sys
import time
from collections import Counter
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final, TextIO

from holdfast.protocol import frames
from holdfast.protocol.access.tokens import read_token
from holdfast.protocol.errors import HoldfastError
from tests.hostile.attacks import attacks
from tests.hostile.floods import filling
from tests.hostile.templates import KVS, LARGE_STREAM, STREAMS, World
from tests.hostile.volley import KV, STREAM, Volley
from tests.support.raw_nats import Arrived, RawConnection, RawConnectionError, publication
from tests.torture.worker import listen, say

_CONNECTIONS: Final = 4
_LARGE_STREAM_MESSAGES: Final = 40_000
#: How long an ack of the attacker's own may take before it goes on without.
_SYNC_SECONDS: Final = 5.0
_LOOK_SECONDS: Final = 1.0
_RETRY_SECONDS: Final = 0.1
_DEAF_SECONDS: Final = 3.0
_APART_SECONDS: Final = 0.2
_KEPT_LEAKS: Final = 20
#: Larger answers are pages.
_DECODED_BYTES: Final = 2_048
_LOGGED_BYTES: Final = 200


@dataclass(frozen=True, slots=True)
class Task:
    """What to attack. `secret` is in all that the victim writes; no attack knows it."""

    name: str
    seed: int
    nats: str
    file: str
    tenant: str
    victim: str
    secret: str
    #: The text of its token, if the cluster asks for one.
    token: str = ""
    #: 0: until it is told to finish.
    operations: int = 0
    #: These attacks alone; empty: all.
    only: tuple[str, ...] = ()

    def to_json(self) -> str:
        return json.dumps(asdict(self))


@dataclass(slots=True)
class Report:
    """What was sent, and what came of it."""

    operations: int = 0
    messages_received: int = 0
    volleys: dict[str, int] = field(default_factory=dict)
    operations_of: dict[str, int] = field(default_factory=dict)
    #: What was answered, by code.
    answers: dict[str, int] = field(default_factory=dict)
    #: What nats-server refused.
    nats_errors: dict[str, int] = field(default_factory=dict)
    reconnects: int = 0
    #: Own writes that were not answered in time, by server.
    unanswered: dict[str, int] = field(default_factory=dict)
    longest_answer_seconds: float = 0.0
    #: Messages that are not the attacker's to see, described.
    leaks: list[str] = field(default_factory=list)
    stores: list[tuple[int, str]] = field(default_factory=list)


class Attacker:
    """One run of one task."""

    def __init__(self, task: Task, log: TextIO) -> None:
        self._task = task
        self._log = log
        grant = read_token(task.token).id if task.token else ""
        self._world = World(task.tenant, task.victim, grant=grant)
        self._secret = task.secret.encode()
        self._own = (f"hf.{task.tenant}.chg.".encode(), self._world.inbox + b".")
        self._waiting: dict[bytes, asyncio.Future[bytes]] = {}
        self._numbers = itertools.count(1)
        self._answers: Counter[str] = Counter()
        self._volleys: Counter[str] = Counter()
        self._operations_of: Counter[str] = Counter()
        self._unanswered: Counter[str] = Counter()
        self._nats_errors: Counter[str] = Counter()
        self._sync_stores: dict[str, str] = {}
        self._connections: dict[int, RawConnection] = {}
        self._done = asyncio.Event()
        self.report = Report()

    async def run(self, finish: asyncio.Event) -> None:
        """Attack until `finish`, or until enough operations were sent."""
        control = await self._connect(0)
        await self._look(control)
        say(connected=True)
        volley = filling(
            random.Random(0), self._world, b"%s.0" % self._world.inbox, _LARGE_STREAM_MESSAGES
        )
        self._count("filling", volley)
        control.send(volley.data)
        await self._sync(control, 0)
        async with asyncio.TaskGroup() as tasks:
            attacking = [
                tasks.create_task(self._attack(number)) for number in range(1, _CONNECTIONS + 1)
            ]
            looking = tasks.create_task(self._keep_looking())
            ended = [tasks.create_task(finish.wait()), tasks.create_task(self._done.wait())]
            await asyncio.wait(ended, return_when=asyncio.FIRST_COMPLETED)
            self._done.set()
            await asyncio.wait(attacking)
            for task in (looking, *ended):
                task.cancel()
        for connection in self._connections.values():
            self._drop(connection)
        self._fill_in_report()

    async def _log_in(self, name: str) -> RawConnection:
        connection = await RawConnection.connect(
            self._task.nats, self._on_message, name, token=self._task.token or None
        )
        connection.subscribe(b"%s.>" % self._world.inbox, 1)
        return connection

    async def _connect(self, number: int) -> RawConnection:
        connection = await self._log_in(f"hostile-{number}")
        if number == 0:
            for sid, letter in enumerate(("s", "k"), start=2):
                connection.subscribe(f"hf.{self._task.tenant}.chg.{letter}.>".encode(), sid)
        self._connections[number] = connection
        return connection

    def _drop(self, connection: RawConnection) -> None:
        self._nats_errors.update(connection.errors)
        self.report.messages_received += connection.received_count
        connection.close()

    def _on_message(self, message: Arrived) -> None:
        if self._secret in message.payload or not message.subject.startswith(self._own):
            if len(self.report.leaks) < _KEPT_LEAKS:
                self.report.leaks.append(f"{message.subject!r}: {message.payload[:100]!r}")
            return
        waiting = self._waiting.get(message.subject)
        if waiting is not None and not waiting.done():
            waiting.set_result(message.payload)
        elif len(message.payload) < _DECODED_BYTES and message.subject.startswith(self._own[1]):
            self._answers.update(codes_of(message))

    async def _attack(self, number: int) -> None:
        """Send volley after volley on one connection."""
        rng = random.Random(f"{self._task.seed}/{number}")
        inbox = b"%s.%d" % (self._world.inbox, number)
        only = self._task.only
        catalogue = {name: attack for name, attack in attacks().items() if not only or name in only}
        weights = [weight for _, weight in catalogue.values()]
        connection: RawConnection | None = None
        while not self._done.is_set():
            if connection is None or connection.closed.is_set():
                if connection is not None:
                    self.report.reconnects += 1
                    self._drop(connection)
                try:
                    connection = await self._connect(number)
                except RawConnectionError:
                    await asyncio.sleep(_RETRY_SECONDS)
                    continue
            [name] = rng.choices(list(catalogue), weights)
            volley = catalogue[name][0](rng, self._world, inbox)
            self._count(name, volley)
            self._note(number, name, volley)
            if volley.apart:
                await self._send_apart(volley)
            else:
                connection.send(volley.data)
                await connection.drain()
            seconds = await self._sync(connection, number)
            self._write(connection=number, attack=name, seconds=round(seconds, 3))
            if 0 < self._task.operations <= self.report.operations:
                self._done.set()

    async def _send_apart(self, volley: Volley) -> None:
        """Send it on a connection of its own, and leave."""
        try:
            connection = await self._log_in("hostile-apart")
        except RawConnectionError:
            return
        if volley.deaf:
            connection.stop_reading()
        connection.send(volley.data)
        seconds = _DEAF_SECONDS if volley.deaf else _APART_SECONDS
        try:
            async with asyncio.timeout(seconds):
                await connection.closed.wait()
        except TimeoutError:
            pass
        self._drop(connection)

    async def _sync(self, connection: RawConnection, number: int) -> float:
        """Append a message at each server and ask the coordinator: both are answered once what came
        before is done with. Return after how many seconds."""
        began_at = time.monotonic()
        async with asyncio.TaskGroup() as tasks:
            for server, name in list(self._sync_stores.items()):
                tasks.create_task(self._sync_with(connection, number, server, name))
            tasks.create_task(self._sync_with_coordinator(connection))
        seconds = time.monotonic() - began_at
        self.report.longest_answer_seconds = max(self.report.longest_answer_seconds, seconds)
        return seconds

    async def _sync_with(
        self, connection: RawConnection, number: int, server: str, name: str
    ) -> None:
        writer = b"sync-%d" % number
        counter = self._world.next_counter(writer, STREAM, name)
        group = [STREAM, name, counter, counter, 0, [[frames.APPEND, b"sync"]]]
        subject = self._world.granted(f"hf.{self._task.tenant}.srv.{server}")
        if await self._ask(connection, subject, frames.encode_request(writer, [group])) is None:
            self._unanswered[server] += 1

    async def _sync_with_coordinator(self, connection: RawConnection) -> None:
        subject = self._world.granted(f"hf.{self._task.tenant}.coord.resolve")
        asked = frames.encode_control(stores=[[STREAM, STREAMS[0]]])
        if await self._ask(connection, subject, asked) is None:
            self._unanswered["the coordinator"] += 1

    async def _ask(self, connection: RawConnection, subject: bytes, payload: bytes) -> bytes | None:
        reply = b"%s.ask.%d" % (self._world.inbox, next(self._numbers))
        answer = self._waiting[reply] = asyncio.get_running_loop().create_future()
        connection.send(publication(subject, payload, reply))
        try:
            async with asyncio.timeout(_SYNC_SECONDS):
                return await answer
        except TimeoutError:
            return None
        finally:
            del self._waiting[reply]

    async def _keep_looking(self) -> None:
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            say(operations=self.report.operations)
            self._log.flush()
            control = self._connections[0]
            if control.closed.is_set():
                self._drop(control)
                try:
                    control = await self._connect(0)
                except RawConnectionError:
                    continue
            await self._look(control)

    async def _look(self, control: RawConnection) -> None:
        """Learn who the servers are, and which of them owns what."""
        world = self._world
        names = [(STREAM, name) for name in (*STREAMS, LARGE_STREAM)]
        names += [(KV, name) for name in KVS]
        names += [(STREAM, f"sync{number}") for number in range(16)]
        asked = frames.encode_control(stores=[list(store) for store in names])
        subject = f"hf.{self._task.tenant}.coord."
        answer = await self._ask(control, world.granted(subject + "resolve"), asked)
        if answer is not None:
            try:
                owners = frames.decode_control(answer)["owners"]
            except HoldfastError as error:
                self._answers[error.code] += 1
                return
            world.owners = {
                store: owner[0] for store, owner in zip(names, owners, strict=True) if owner[0]
            }
        for server in world.servers:
            own = [name for kind, name in names[-16:] if world.owners.get((kind, name)) == server]
            if own:
                self._sync_stores[server] = own[0]
        question = frames.encode_control()
        answer = await self._ask(control, world.granted(subject + "servers"), question)
        if answer is not None:
            rows = frames.decode_control(answer)["servers"]
            world.incarnations = {row[0]: row[1] for row in rows}

    def _count(self, name: str, volley: Volley) -> None:
        self.report.operations += volley.operations
        self._volleys[name] += 1
        self._operations_of[name] += volley.operations

    def _note(self, number: int, name: str, volley: Volley) -> None:
        self._write(
            connection=number,
            attack=name,
            operations=volley.operations,
            bytes=len(volley.data),
            begins=volley.data[:_LOGGED_BYTES].decode("latin-1"),
        )

    def _write(self, **fields: object) -> None:
        """Log what was sent, before and after it was taken: to find what ended a process."""
        self._log.write(json.dumps({"at": round(time.monotonic(), 3), **fields}) + "\n")

    def _fill_in_report(self) -> None:
        report = self.report
        report.volleys = dict(self._volleys)
        report.operations_of = dict(self._operations_of)
        report.answers = dict(self._answers)
        report.nats_errors = dict(self._nats_errors)
        report.unanswered = dict(self._unanswered)
        names = [(STREAM, name) for name in (*STREAMS, LARGE_STREAM)]
        names += [(KV, name) for name in KVS]
        report.stores = [*names, *self._world.stores[-40:]]


def codes_of(message: Arrived) -> list[str]:
    """Return what a reply says of each group in it, by its code."""
    if message.headers:
        return ["status " + message.headers[9:12].decode("latin-1")]
    try:
        body = frames.decode(message.payload)
    except HoldfastError as error:
        return [f"answer that cannot be read: {error.code}"]
    if isinstance(body, dict):
        return [f"coordinator: {body.get('error', 'answered')}"]
    return [_code_of(element) for element in body]


def _code_of(element: Any) -> str:
    if element[1] != 0:
        return f"refused: {element[2]}"
    results = frames.decode_outcome(element[2]).results
    if isinstance(results, list):
        for result in results:
            if type(result) is list and len(result) == 2 and type(result[0]) is str:
                return f"operation: {result[0]}"
    return "done"


async def _run(task: Task) -> None:
    async with AsyncExitStack() as stack:
        words = await listen(stack)
        path = Path(task.file)
        log = stack.enter_context(path.with_name("attacks.jsonl").open("w"))
        attacker = Attacker(task, log)
        await attacker.run(words["finish"])
        path.write_text(json.dumps(asdict(attacker.report)))
        say(operations=attacker.report.operations)


if __name__ == "__main__":
    asyncio.run(_run(Task(**json.loads(sys.argv[1]))))
