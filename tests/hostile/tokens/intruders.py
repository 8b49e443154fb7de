"""The holders' process: `python -m tests.hostile.tokens.intruders TASK`, a Task as JSON.

Who is let in attacks over a connection of its own. Who is not knocks again and again, also with
tokens that were changed in some place. And one connection, which NATS lets publish everything,
sends in the name of all of them what the servers must refuse by themselves. Everything that arrives
is looked through for marks of what its holder may not see.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

from holdfast.protocol import frames
from holdfast.protocol.access.rights import Right
from holdfast.protocol.errors import HoldfastError
from holdfast.protocol.subjects import CLUSTER_TENANT
from tests.hostile.attacker import codes_of
from tests.hostile.tokens.attempts import NO_TOKEN, NOBODY, Attempts, inbox_of
from tests.hostile.tokens.holders import ELSEWHERE, REVOKED, Holder
from tests.hostile.tokens.office import OFFICE, Marks
from tests.support.raw_nats import Arrived, RawConnection, RawConnectionError, publication
from tests.torture.worker import listen, say

_ASK_SECONDS: Final = 5.0
_RETRY_SECONDS: Final = 0.1
_SAY_SECONDS: Final = 0.5
_KNOCK_SECONDS: Final = 0.05
_KEPT_LEAKS: Final = 200
#: Larger answers are pages: they are looked through, not counted.
_DECODED_BYTES: Final = 2_048
_REFUSED: Final = "not_allowed"


@dataclass(frozen=True, slots=True)
class Task:
    """Whom to attack as whom. No attack knows `secret` and `victims_secret`."""

    name: str
    seed: int
    nats: str
    #: Of a user that NATS lets publish everything.
    nkey: str
    file: str
    holders: list[dict[str, Any]]
    #: Ids of tokens of others, and their tenants.
    others: list[str]
    tenants: list[str]
    secret: str
    victims_secret: str
    #: 0: until it is told to finish.
    operations: int = 0

    def to_json(self) -> str:
        return json.dumps(asdict(self))


@dataclass(slots=True)
class Tally:
    """What one holder did, and what came of it."""

    operations: int = 0
    #: The same, past a NATS without permissions.
    operations_behind_nats: int = 0
    #: Of both: for other tenants, in other names, or of the cluster's own.
    foreign: int = 0
    #: What was answered, by code.
    answers: dict[str, int] = field(default_factory=dict)
    nats_errors: dict[str, int] = field(default_factory=dict)
    refused_logins: int = 0
    #: Marks that it saw and may see.
    marks_seen: int = 0
    unanswered: int = 0
    reconnects: int = 0


@dataclass(slots=True)
class Report:
    """What the holders found."""

    operations: int = 0
    tallies: dict[str, Tally] = field(default_factory=dict)
    #: What no holder may see, described.
    leaks: list[str] = field(default_factory=list)
    leak_count: int = 0
    #: Who was let in and must not be.
    let_in: list[str] = field(default_factory=list)
    #: When servers and coordinator all refused the revoked token: monotonic seconds.
    refused_at: float | None = None

    @classmethod
    def load(cls, path: Path) -> Report:
        fields = json.loads(path.read_text())
        fields["tallies"] = {name: Tally(**each) for name, each in fields["tallies"].items()}
        return cls(**fields)


class Ears:
    """Looks through what arrives for one holder, and wakes who waits for it."""

    def __init__(self, holder: Holder, intruders: Intruders) -> None:
        self._holder = holder
        self._intruders = intruders
        self.stores = holder.stores
        self.tally = intruders.report.tallies.setdefault(holder.name, Tally())
        self.answers: Counter[str] = Counter()
        self.waiting: dict[bytes, asyncio.Future[Arrived]] = {}
        ids = (holder.id, "" if holder.id else NO_TOKEN)
        tenants = (OFFICE, ELSEWHERE, *intruders.tenants, CLUSTER_TENANT, "*")
        own = [
            f"{inbox_of(tenant, id_)}."
            for tenant in tenants[: None if holder.is_operator else 2]
            for id_ in ids
        ]
        if Right.READ & holder.rights:
            stores = f"{holder.name}." if holder.tenant == OFFICE else ""
            own += [f"hf.{holder.tenant}.chg.{letter}.{stores}" for letter in "sk"]
        self._own = tuple(each.encode() for each in own)

    def hear(self, message: Arrived) -> None:
        intruders, holder = self._intruders, self._holder
        data = b"\n".join(message)
        for mark in intruders.marks.found(data):
            if holder.may_see(mark):
                self.tally.marks_seen += 1
            else:
                intruders.leak(f"{holder.name} sees the {mark.what} of {mark.stores}", message)
        if not message.subject.startswith(self._own):
            intruders.leak(f"{holder.name} hears what is not its own", message)
        elif intruders.victims_secret in data:
            intruders.leak(f"{holder.name} sees another tenant's", message)
        waiting = self.waiting.get(message.subject)
        if waiting is not None and not waiting.done():
            waiting.set_result(message)
        elif len(message.payload) < _DECODED_BYTES and message.subject.startswith(b"_INBOX."):
            place = message.subject.split(b".")[3].decode()
            self.answers.update(f"{place} {code}" for code in codes_of(message))


class Intruders:
    """One run of one task."""

    def __init__(self, task: Task) -> None:
        self.report = Report()
        self.marks = Marks(task.secret)
        self.victims_secret = task.victims_secret.encode()
        self.tenants = task.tenants
        self._task = task
        self._holders = [Holder(**each) for each in task.holders]
        self._ears = {each.name: Ears(each, self) for each in self._holders}
        self._done = asyncio.Event()
        self._connected = 0
        self._numbers: defaultdict[str, int] = defaultdict(int)

    def leak(self, what: str, message: Arrived) -> None:
        self.report.leak_count += 1
        if len(self.report.leaks) < _KEPT_LEAKS and not any(
            each.startswith(what) for each in self.report.leaks
        ):
            text = f"{what}: {message.subject!r} {message.payload[:160]!r}"
            self.report.leaks.append(text)

    async def run(self, finish: asyncio.Event) -> None:
        """Attack until `finish`, or until enough operations were sent."""
        attacking: list[asyncio.Task[None]] = []
        async with asyncio.TaskGroup() as tasks:
            for holder in self._holders:
                knows = self._attack(holder) if holder.logs_in else self._knock(holder)
                attacking.append(tasks.create_task(knows))
            attacking.append(tasks.create_task(self._attack_behind_nats()))
            saying = tasks.create_task(self._keep_saying())
            ended = [tasks.create_task(finish.wait()), tasks.create_task(self._done.wait())]
            await asyncio.wait(ended, return_when=asyncio.FIRST_COMPLETED)
            self._done.set()
            await asyncio.wait(attacking)
            for task in (saying, *ended):
                task.cancel()
        for ears in self._ears.values():
            ears.tally.answers = dict(ears.answers)

    def _attempts(self, holder: Holder, *, behind_nats: bool) -> Attempts:
        rng = random.Random(f"{self._task.seed}/{holder.name}/{behind_nats}")
        return Attempts(holder, self._task.others, self._task.tenants, rng, behind_nats=behind_nats)

    async def _attack(self, holder: Holder) -> None:
        """Send volley after volley over the holder's own connection."""
        attempts, ears = self._attempts(holder, behind_nats=False), self._ears[holder.name]
        connection: RawConnection | None = None
        while not self._done.is_set():
            if connection is None or connection.closed.is_set():
                if connection is not None:
                    ears.tally.reconnects += 1
                    self._drop(connection, ears)
                if connection is not None and holder.name == REVOKED:
                    await self._knock(holder)
                    return
                try:
                    connection = await self._log_in(holder, ears)
                except RawConnectionError:
                    await asyncio.sleep(_RETRY_SECONDS)
                    continue
                self._connected += 1
                if holder.name == REVOKED and not await self._becomes_refused(
                    connection, holder, ears
                ):
                    continue
                connection.send(attempts.listening().data)
            volley = attempts.volley()
            connection.send(volley.data)
            await connection.drain()
            self._count(volley.operations)
            ears.tally.operations += volley.operations
            ears.tally.foreign += attempts.take_foreign_count()
            tenant = OFFICE if holder.is_operator else holder.tenant
            await self._sync(connection, tenant, holder.id, ears, attempts)
        if connection is not None:
            self._drop(connection, ears)

    async def _log_in(self, holder: Holder, ears: Ears) -> RawConnection:
        connection = await RawConnection.connect(
            self._task.nats, ears.hear, holder.name, token=holder.text
        )
        own = [f"{inbox_of(holder.tenant, holder.id)}.>"]
        if holder.is_operator:
            own.append(f"{inbox_of(CLUSTER_TENANT, holder.id)}.>")
        if Right.READ & holder.rights and holder.tenant == OFFICE:
            own += [f"hf.{OFFICE}.chg.{letter}.{holder.name}.*" for letter in "sk"]
        for number, subject in enumerate(own, start=1):
            connection.subscribe(subject.encode(), number)
        await connection.round_trip()
        return connection

    async def _becomes_refused(self, connection: RawConnection, holder: Holder, ears: Ears) -> bool:
        """Return once servers and coordinator know that the token is revoked; False if the
        connection or the attack ends before."""
        while not self._done.is_set() and not connection.closed.is_set():
            if await self._is_refused(connection, holder, ears):
                return True
            await asyncio.sleep(_RETRY_SECONDS)
        return False

    async def _is_refused(self, connection: RawConnection, holder: Holder, ears: Ears) -> bool:
        """Tell, and note, if all refuse a holder."""
        if self.report.refused_at is None:
            answers = await self._ask_all(connection, holder.tenant, holder.id, ears)
            if any(each is None or not _is_refusal(each) for each in answers):
                return False
            self.report.refused_at = time.monotonic()
        return True

    async def _knock(self, holder: Holder) -> None:
        """Try to log in, with the token and with what is made of it."""
        ears = self._ears[holder.name]
        valid = [each.text for each in self._holders if each.rights and each.logs_in]
        rng = random.Random(f"{self._task.seed}/{holder.name}/knock")
        while not self._done.is_set():
            text = holder.text if rng.random() < 0.5 else changed(rng.choice(valid), rng)
            try:
                connection = await RawConnection.connect(
                    self._task.nats, ears.hear, holder.name, token=text
                )
            except RawConnectionError:
                ears.tally.refused_logins += 1
            else:
                self._drop(connection, ears)
                self.report.let_in.append(f"{holder.name}: {text}")
            self._count(1)
            ears.tally.operations += 1
            await asyncio.sleep(_KNOCK_SECONDS)

    async def _attack_behind_nats(self) -> None:
        """Send in the name of each holder what no permission stops."""
        by_id = {(each.id or NOBODY): self._ears[each.name] for each in self._holders}
        by_id[NO_TOKEN] = self._ears["none"]

        def hear(message: Arrived) -> None:
            by_id[message.subject.split(b".")[2].decode()].hear(message)

        connection = await RawConnection.connect(
            self._task.nats, hear, "behind", nkey=Path(self._task.nkey)
        )
        for number, (tenant, id_) in enumerate(
            [(tenant, id_) for tenant in (OFFICE, ELSEWHERE) for id_ in by_id], start=1
        ):
            connection.subscribe(f"_INBOX.{tenant}.{id_}.>".encode(), number)
        await connection.round_trip()
        self._connected += 1
        attempts = [(each, self._attempts(each, behind_nats=True)) for each in self._holders]
        while not self._done.is_set():
            for holder, making in attempts:
                ears = self._ears[holder.name]
                if self._done.is_set() or (
                    holder.name == REVOKED and not await self._is_refused(connection, holder, ears)
                ):
                    continue
                volley = making.volley()
                connection.send(volley.data)
                await connection.drain()
                self._count(volley.operations)
                ears.tally.operations_behind_nats += volley.operations
                ears.tally.foreign += making.take_foreign_count()
                await self._sync(connection, OFFICE, holder.id, ears, making)
        connection.close()

    async def _sync(
        self, connection: RawConnection, tenant: str, id_: str, ears: Ears, attempts: Attempts
    ) -> None:
        """Wait until what was sent is done with; learn who the servers are."""
        answers = await self._ask_all(connection, tenant, id_, ears)
        ears.tally.unanswered += answers.count(None)
        if answers[0] is not None:
            try:
                rows = frames.decode_control(answers[0].payload)["servers"]
            except HoldfastError:
                return
            attempts.world.incarnations = {row[0]: row[1] for row in rows}

    async def _ask_all(
        self, connection: RawConnection, tenant: str, id_: str, ears: Ears
    ) -> list[Arrived | None]:
        """Ask the coordinator and each server something of its own; return their answers."""
        suffix = f".{id_}" if id_ else ""
        head = frames.encode_request(b"w", [[1, f"{ears.stores}.notes", 0, 0, 0, [[frames.HEAD]]]])
        asked = [(f"hf.{tenant}.coord.servers{suffix}", frames.encode_control())]
        asked += [(f"hf.{tenant}.srv.{server}{suffix}", head) for server in ("s1", "s2")]
        self._numbers[id_] += 1
        number = self._numbers[id_]
        return list(
            await asyncio.gather(
                *(
                    self._ask(connection, subject, payload, tenant, id_, f"{number}.{index}", ears)
                    for index, (subject, payload) in enumerate(asked)
                )
            )
        )

    async def _ask(
        self,
        connection: RawConnection,
        subject: str,
        payload: bytes,
        tenant: str,
        id_: str,
        name: str,
        ears: Ears,
    ) -> Arrived | None:
        reply = f"{inbox_of(tenant, id_)}.ask.{name}".encode()
        answer = ears.waiting[reply] = asyncio.get_running_loop().create_future()
        connection.send(publication(subject.encode(), payload, reply))
        try:
            async with asyncio.timeout(_ASK_SECONDS):
                return await answer
        except TimeoutError:
            return None
        finally:
            del ears.waiting[reply]

    def _count(self, operations: int) -> None:
        self.report.operations += operations
        if 0 < self._task.operations <= self.report.operations:
            self._done.set()

    def _drop(self, connection: RawConnection, ears: Ears) -> None:
        for reason, count in connection.errors.items():
            errors = ears.tally.nats_errors
            errors[reason] = errors.get(reason, 0) + count
        connection.close()

    async def _keep_saying(self) -> None:
        """Tell how far it is; first, that all are connected who will ever be."""
        expected = sum(each.logs_in for each in self._holders) + 1
        while True:
            if self._connected >= expected:
                say(connected=True, operations=self.report.operations)
            await asyncio.sleep(_SAY_SECONDS)


def _is_refusal(message: Arrived) -> bool:
    return any(code.endswith(_REFUSED) for code in codes_of(message))


def changed(text: str, rng: random.Random) -> str:
    """Return another text, made of that of a token."""
    kinds: tuple[Callable[[], str], ...] = (
        lambda: text[: rng.randrange(len(text))],
        lambda: text + rng.choice("A.=_"),
        partial(_with_another_character, text, rng),
        lambda: ".".join(rng.sample(text.split("."), 3)),
        lambda: text.rpartition(".")[0] + "." + "A" * 86,
    )
    made = text
    while made == text:
        made = rng.choice(kinds)()
    return made


def _with_another_character(text: str, rng: random.Random) -> str:
    at = rng.randrange(len(text))
    return text[:at] + rng.choice("ABCDabcd0123-_") + text[at + 1 :]


async def _run(task: Task) -> None:
    async with AsyncExitStack() as stack:
        words = await listen(stack)
        intruders = Intruders(task)
        await intruders.run(words["finish"])
        Path(task.file).write_text(json.dumps(asdict(intruders.report)))
        say(operations=intruders.report.operations)


if __name__ == "__main__":
    asyncio.run(_run(Task(**json.loads(sys.argv[1]))))
