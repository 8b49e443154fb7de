"""One run, from the first process to the verdict.

1. The cluster starts; the other tenant writes and follows.
2. The attacker attacks, with tokens also the holders of all kinds of them, until the time is
   up, or until it (with tokens: the holders) has sent so many operations.
3. Every server is killed at once: each must open again what the attacker left in its logs and
   files.
4. A marker is written to each store; the follower goes on until it has heard it.
5. A fresh client reads everything back, that of the attacker's stores too, and all is judged.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import Any, Final

from holdfast.client import Client, connect
from holdfast.client.connecting import Connecting
from holdfast.protocol.access.tokens import read_token
from holdfast.protocol.errors import HoldfastError, RequestError
from holdfast.protocol.names import StoreKind
from tests.hostile import attacker
from tests.hostile.cluster import (
    HOSTILE,
    SERVERS,
    VICTIM,
    attacked_parts,
    parts_with_tokens,
    url_of,
)
from tests.hostile.tokens.access import Access
from tests.hostile.tokens.attack import TokenAttack
from tests.hostile.tokens.planted import PLANTED_PROGRAM
from tests.hostile.verdict import judge
from tests.hostile.watch import Evidence, Watch
from tests.support.checking.history import Final as FinalState
from tests.support.checking.history import History, Store
from tests.support.raw_nats import RawConnection, publication
from tests.support.supervised_cluster import PROGRAM, ClientProcess, Parts, running
from tests.torture import worker
from tests.torture.deadlines import all_ended, heard
from tests.torture.measure import Pause, pauses
from tests.torture.recording import Recorder, load
from tests.torture.recording import judge as judge_history
from tests.torture.run import mark, read_back

#: Of the other tenant: enough that every store waits for an ack most of the time.
_OPERATIONS_PER_SECOND: Final = 150.0
_READY_SECONDS: Final = 60.0
_FINISH_SECONDS: Final = 120.0
_POLL_SECONDS: Final = 0.1
_PROGRESS_SECONDS: Final = 10.0
#: A store of the attacker's may hold millions: that it opens and answers is what is asked of it.
_READ_MESSAGES: Final = 200
#: What comes of values that the attacker made unreadable by itself.
_OWN_FAULT: Final = ("value_unreadable", "large_value_damaged")


@dataclass(slots=True)
class Result:
    """What one run found."""

    seed: int
    seconds: float
    report: attacker.Report
    evidence: Evidence
    history: History
    pauses: list[Pause]
    wrong: list[str] = field(default_factory=list)
    #: Of a run with tokens.
    tokens: TokenAttack | None = None


class HostileRun:
    """One run in the folder `data`. With `planted` things go wrong that the verdict must name."""

    def __init__(
        self,
        data: Path,
        seed: int,
        seconds: float,
        say: Callable[[str], None],
        *,
        operations: int = 0,
        only: Sequence[str] = (),
        planted: bool = False,
        tokens: bool = False,
    ) -> None:
        self._data = data
        self._seed = seed
        self._seconds = seconds
        self._say = say
        self._operations = operations
        self._only = tuple(only)
        self._planted = planted
        #: What was planted is in the evidence; what comes after need not be tried.
        self._expects_harm = planted
        self._histories = data / "history"
        #: In every value of the victim's, since the names of values begin with that of their
        #: writer.
        self._secret = blake2b(os.urandom(16), digest_size=8).hexdigest()
        self._wrong: list[str] = []
        self._access: Access | None = None
        if tokens:
            data.mkdir(parents=True, exist_ok=True)
            self._access = Access(data, (VICTIM, HOSTILE))
        self._token_attack: TokenAttack | None = None

    async def run(self) -> Result:
        """Attack; return the verdict. Raises what keeps it from being carried out."""
        self._histories.mkdir(parents=True)
        async with running(self._parts()) as parts:
            await parts.wait_for_nats()
            if self._access is not None:
                await self._access.wait_until_served(parts.nats_url)
            async with self._connect(parts, VICTIM, "watch") as client:
                await _wait_until_well(client)
                self._say(f"the cluster is up on {parts.nats_address}, in {self._data}")
                watch = Watch(parts, client)
                seconds, report, final = await self._attack(parts, watch)
                tracebacks = parts.tracebacks
        self._say("checking")
        history = await asyncio.to_thread(load, sorted(self._histories.glob("w*.jsonl")))
        found = pauses(history)
        self._wrong += judge(watch.evidence, found, tracebacks)
        self._wrong += await asyncio.to_thread(judge_history, history, final)
        return Result(
            self._seed,
            seconds,
            report,
            watch.evidence,
            history,
            found,
            self._wrong,
            self._token_attack,
        )

    def _parts(self) -> Parts:
        if self._access is None:
            return attacked_parts(self._data)
        return parts_with_tokens(
            self._data, self._access, PLANTED_PROGRAM if self._expects_harm else PROGRAM
        )

    def _url(self, parts: Parts, tenant: str) -> str:
        return parts.nats_url if self._access is not None else url_of(parts, tenant)

    def _text(self, tenant: str) -> str | None:
        return None if self._access is None else self._access.text(tenant)

    def _connect(self, parts: Parts, tenant: str, name: str) -> Connecting:
        return connect(
            self._url(parts, tenant),
            tenant=tenant,
            inbox_prefix=f"_INBOX.{tenant}",
            name=name,
            token=self._text(tenant),
        )

    async def _attack(
        self, parts: Parts, watch: Watch
    ) -> tuple[float, attacker.Report, dict[Store, FinalState]]:
        if self._access is not None:
            self._token_attack = TokenAttack(
                self._access,
                parts.nats_url,
                self._histories / "intruders.json",
                self._seed,
                self._operations,
                self._secret,
            )
            await self._token_attack.fill()
            self._say("the stores of the holders are written")
        writer = self._client_process(parts, "writer", f"w{self._secret}")
        follower = self._client_process(parts, "follower", "watcher")
        hostile = ClientProcess(self._attacker_task(parts), "tests.hostile.attacker")
        # First, since it has to see each question to know its answer.
        if self._access is None:
            await watch.listen()
        else:
            await watch.listen(self._access.nkey, read_token(self._access.text(VICTIM)).id)
        async with asyncio.TaskGroup() as tasks:
            following = tasks.create_task(follower.run())
            writing = tasks.create_task(writer.run())
            await heard("connected", [writer, follower])
            watch.begin()
            watching = tasks.create_task(watch.run())
            began_at = time.monotonic()
            attacking = tasks.create_task(hostile.run())
            if self._access is None:
                await self._let_it_attack(parts, watch, hostile, attacking)
            else:
                await self._attack_with_tokens(parts, watch, hostile, attacking)
            seconds = time.monotonic() - began_at
            self._say("the attack is over")
            watch.look_at_processes()
            watching.cancel()
            await watch.close()
            for process in (writer, follower):
                process.tell("finish")
            _, unfinished = await asyncio.wait([writing], timeout=_FINISH_SECONDS)
            if unfinished:
                self._wrong.append(f"a writer still waits {_FINISH_SECONDS:g} s after the attack")
                writer.kill()
            report = attacker.Report(**json.loads(Path(hostile.task.file).read_text()))
            watch.evidence.leaks += report.leaks
            if not self._expects_harm:
                await self._restart(parts, watch)
            await heard("settled", [follower])
            final = await self._read_back(parts, follower, report)
            follower.tell("end")
            self._wrong += [
                f"a follower: {wrong}" for wrong in await all_ended({following: follower})
            ]
        return seconds, report, final

    async def _let_it_attack(
        self,
        parts: Parts,
        watch: Watch,
        hostile: ClientProcess[attacker.Task],
        attacking: asyncio.Task[None],
        beside: asyncio.Task[None] | None = None,
    ) -> None:
        """Let it attack until the time is up, or until it or what runs beside it is done."""
        hearing = asyncio.create_task(hostile.hear("connected"))
        await asyncio.wait([hearing, attacking], return_when=asyncio.FIRST_COMPLETED)
        hearing.cancel()
        give_up_at = time.monotonic() + self._seconds
        plant_at = time.monotonic() + self._seconds / 2
        say_at = time.monotonic() + _PROGRESS_SECONDS
        awaited = [attacking] if beside is None else [attacking, beside]
        while time.monotonic() < give_up_at and not any(each.done() for each in awaited):
            await asyncio.wait(awaited, timeout=_POLL_SECONDS, return_when=asyncio.FIRST_COMPLETED)
            if time.monotonic() > say_at:
                say_at += _PROGRESS_SECONDS
                self._say(f"{hostile.said.get('operations', 0):,} operations")
            if self._planted and time.monotonic() > plant_at:
                self._planted = False
                await self._plant(parts, watch)
        hostile.tell("finish")
        await asyncio.wait_for(attacking, _FINISH_SECONDS)

    async def _attack_with_tokens(
        self,
        parts: Parts,
        watch: Watch,
        hostile: ClientProcess[attacker.Task],
        attacking: asyncio.Task[None],
    ) -> None:
        """The same with holders of all kinds of tokens beside it, until they have sent enough."""
        holders = self._token_attack
        assert holders is not None
        begun, finish = asyncio.Event(), asyncio.Event()
        async with asyncio.TaskGroup() as tasks:
            beside = tasks.create_task(holders.run(begun, finish))
            await begun.wait()
            self._say("the holders attack")
            await self._let_it_attack(parts, watch, hostile, attacking, beside)
            finish.set()
        self._say(f"{holders.report.operations:,} operations of holders of tokens")

    async def _plant(self, parts: Parts, watch: Watch) -> None:
        """Do what no attack may achieve: a server ends, a reply goes astray, a value is shown."""
        self._say("planted: a killed server, a reply to the victim, a value to the attacker")
        parts.servers[SERVERS[0]].signal(signal.SIGKILL)
        nkey, own = None, f"_INBOX.{HOSTILE}"
        if self._access is not None:
            nkey, own = self._access.nkey, f"{own}.{read_token(self._access.text(HOSTILE)).id}"
        bus = await RawConnection.connect(parts.nats_url, lambda message: None, nkey=nkey)
        bus.send(publication(f"_INBOX.{VICTIM}.canary.1".encode(), b"astray"))
        bus.send(publication(f"{own}.1".encode(), self._secret.encode()))
        await bus.round_trip()
        bus.close()
        # The next life of the server takes as long as it takes.
        async with asyncio.timeout(_READY_SECONDS):
            while len(watch.evidence.incarnations.get(SERVERS[0], ())) < 2:
                await asyncio.sleep(_POLL_SECONDS)

    async def _restart(self, parts: Parts, watch: Watch) -> None:
        """Kill every server, and wait until others serve in their place."""
        self._say("killing every server at once")
        before = {name: part.restart_count for name, part in parts.servers.items()}
        for part in parts.servers.values():
            part.signal(signal.SIGKILL)
        async with asyncio.timeout(_READY_SECONDS):
            while any(part.restart_count == before[name] for name, part in parts.servers.items()):
                await asyncio.sleep(_POLL_SECONDS)

    async def _read_back(
        self, parts: Parts, follower: ClientProcess[worker.Task], report: attacker.Report
    ) -> dict[Store, FinalState]:
        restarts = {part.name: part.restart_count for part in parts.all}
        async with self._connect(parts, VICTIM, "reader") as reader:
            with (self._histories / "w-marker.jsonl").open("w") as file:
                await mark(reader, Recorder(file))
            try:
                await heard("caught_up", [follower])
            except TimeoutError as error:
                self._wrong.append(f"a follower: {error}")
            final = await read_back(reader)
        if self._token_attack is not None:
            self._wrong += await self._token_attack.judged()
        if not self._expects_harm:
            await self._open_all(parts, report)
        for part in parts.all:
            if part.restart_count != restarts[part.name]:
                self._wrong.append(f"a process ended after the attack: {part.name}")
        return final

    async def _open_all(self, parts: Parts, report: attacker.Report) -> None:
        """Read some of each of the attacker's stores as an honest client of the same tenant."""
        async with self._connect(parts, HOSTILE, "heir") as client:
            for kind, name in report.stores:
                try:
                    await _read_some(client, kind, name)
                except HoldfastError as error:
                    if isinstance(error, RequestError) or error.code in _OWN_FAULT:
                        continue
                    store = f"{StoreKind(kind).word}:{name}"
                    self._wrong.append(f"the attacker's own {store}: {error.code}: {error}")

    def _client_process(self, parts: Parts, role: str, name: str) -> ClientProcess[worker.Task]:
        task = worker.Task(
            role=role,
            name=name,
            seed=self._seed * 1000 + len(role),
            nats=self._url(parts, VICTIM),
            file=str(self._histories / f"w-{role}.jsonl"),
            seconds=self._seconds,
            operations_per_second=_OPERATIONS_PER_SECOND,
            tenant=VICTIM,
            token_file="" if self._access is None else str(self._access.file(VICTIM)),
        )
        return ClientProcess(task, "tests.torture.worker")

    def _attacker_task(self, parts: Parts) -> attacker.Task:
        return attacker.Task(
            name="attacker",
            seed=self._seed,
            nats=self._url(parts, HOSTILE),
            token=self._text(HOSTILE) or "",
            file=str(self._histories / "attacker.json"),
            tenant=HOSTILE,
            victim=VICTIM,
            secret=self._secret,
            operations=self._operations if self._access is None else 0,
            only=self._only,
        )


async def _read_some(client: Client, kind: int, name: str) -> None:
    count = 0
    rows: Any = client.kv(name).get_all() if kind == StoreKind.KV else client.stream(name).get_all()
    async for _ in rows:
        count += 1
        if count >= _READ_MESSAGES:
            break


async def _wait_until_well(client: Client) -> None:
    async with asyncio.timeout(_READY_SECONDS):
        while True:
            try:
                rows = await client.servers()
            except HoldfastError:
                rows = []
            if {row.server for row in rows if row.state == "live"} == set(SERVERS):
                return
            await asyncio.sleep(_POLL_SECONDS)
