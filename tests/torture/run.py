"""One torture, from the first process to the verdict.

1. The cluster starts; writers, followers and a typist begin.
2. Faults come until the time is up.
3. Everything heals. Writers answer what they began and end.
4. Every server is killed at once: what is read from here on is what the disk has.
5. A marker is written to each store; followers go on until they have heard it.
6. A fresh client reads everything back, and the checker judges.
"""

from __future__ import annotations

import asyncio
import json
import signal
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Protocol

from holdfast.client import Client, connect
from tests.support.checking.calls import read_final
from tests.support.checking.history import Final as FinalState
from tests.support.checking.history import History, Operation, Store
from tests.support.supervised_cluster import (
    SERVERS,
    ClientProcess,
    Parts,
    SupervisedParts,
    running,
)
from tests.torture import editing_trace
from tests.torture.deadlines import all_ended, heard, within
from tests.torture.editing_trace import EditingTrace, Typed
from tests.torture.faults import Fault
from tests.torture.recording import EXPECTED_ERRORS, Recorder, judge, load, name_of, subject_of
from tests.torture.tormentor import Tormentor
from tests.torture.worker import Task
from tests.torture.workload import KVS, MARKER_ID, MARKER_KEY, STREAMS, is_stream
from tests.torture.writer import perform

WRITER_COUNT: Final = 4
#: Of all writers together. More would be no harder on the cluster, only on the checker's memory.
OPERATIONS_PER_SECOND: Final = 1200.0
_READY_SECONDS: Final = 60.0
#: Writers answer in the usual timeout, three times over for one with a `msg_id`.
_FINISH_SECONDS: Final = 120.0
#: A marker is tried for 60 s.
_MARK_SECONDS: Final = 90.0
#: Each page is answered in the usual timeout or refused; a long run has many.
_READ_SECONDS: Final = 600.0
_POLL_SECONDS: Final = 0.1
#: A longer run has more typists.
_SECONDS_OF_A_TRACE: Final = 180.0


class Strikes(Protocol):
    """What strikes a cluster: the `Tormentor`, or another."""

    #: Those that were.
    faults: list[Fault]

    async def run(self, until: float) -> None:
        """Strike until the monotonic time `until`; then wait until no fault lasts any more."""

    async def well_servers(self) -> Collection[str]:
        """Return the servers that run and serve."""


@dataclass(slots=True)
class Result:
    """What one torture found."""

    seed: int
    seconds: float
    history: History
    faults: list[Fault]
    violations: list[str]
    #: In words: what editing traces came to.
    documents: list[str] = field(default_factory=list)
    #: When all was well again after the faults, in monotonic seconds.
    well_at: float = 0.0


class Torture:
    """One run in the folder `data`, on loopback. A subclass says where else parts and clients run,
    and what strikes them."""

    #: The codes of errors that clients may be told while faults last.
    expected_errors: Collection[str] = EXPECTED_ERRORS

    def __init__(self, data: Path, seed: int, seconds: float, say: Callable[[str], None]) -> None:
        self._data = data
        self._seed = seed
        self._seconds = seconds
        self._say = say
        self._histories = data / "history"
        self._marker_file = self._histories / "marker.jsonl"
        self._violations: list[str] = []
        self._documents: list[str] = []
        self._well_at = 0.0

    async def run(self) -> Result:
        """Torture; return the verdict. Raises what keeps it from being carried out."""
        self._histories.mkdir(parents=True)
        async with running(self.parts()) as parts:
            await parts.wait_for_nats()
            async with connect(parts.nats_url, name="tormentor") as client:
                tormentor = self.tormentor(parts, client)
                await _wait_until_well(tormentor)
                self._say(f"the cluster is up on {parts.nats_url}, in {self._data}")
                final = await self._torment(parts, tormentor)
        self._say("checking")
        history = await asyncio.to_thread(load, sorted(self._histories.glob("*.jsonl")))
        self._violations += await asyncio.to_thread(judge, history, final, self.expected_errors)
        return Result(
            self._seed,
            self._seconds,
            history,
            tormentor.faults,
            self._violations,
            self._documents,
            self._well_at,
        )

    def parts(self) -> SupervisedParts:
        """Return the parts to be run."""
        return Parts(self._data)

    def tormentor(self, parts: SupervisedParts, client: Client) -> Strikes:
        """Return what strikes them."""
        assert isinstance(parts, Parts)
        return Tormentor(parts, client, self._seed, self._say)

    def writers(self, parts: SupervisedParts) -> list[ClientProcess[Task]]:
        """Return those that write, until they are told to finish."""
        names = [f"w{number}" for number in range(WRITER_COUNT)]
        return [
            *(self.client_process(parts, "writer", name) for name in names),
            *self.typists(parts),
        ]

    def typists(self, parts: SupervisedParts) -> list[ClientProcess[Task]]:
        """Return those that type a document, which no fault may cost a keystroke."""
        return [
            self.client_process(parts, "typist", path.name.partition(".")[0], trace=str(path))
            for path in editing_trace.traces()[: 1 + int(self._seconds // _SECONDS_OF_A_TRACE)]
        ]

    async def _torment(self, parts: SupervisedParts, tormentor: Strikes) -> dict[Store, FinalState]:
        writers = self.writers(parts)
        followers = [
            self.client_process(parts, "follower", "steady"),
            self.client_process(parts, "restless follower", "restless"),
        ]
        async with asyncio.TaskGroup() as tasks:
            following = {tasks.create_task(follower.run()): follower for follower in followers}
            writing = {tasks.create_task(writer.run()): writer for writer in writers}
            await heard("connected", writers + followers)
            await tormentor.run(time.monotonic() + self._seconds)
            self._say("faults are over: healing")
            try:
                await _wait_until_well(tormentor)
            except TimeoutError as error:
                self._violations.append(f"unexpected error: {error}")
            self._well_at = time.monotonic()
            for process in writers + followers:
                process.tell("finish")
            _, unfinished = await asyncio.wait(writing, timeout=_FINISH_SECONDS)
            if unfinished:
                names = ", ".join(writing[task].task.name for task in unfinished)
                raise TimeoutError(f"not finished {_FINISH_SECONDS:g} s after the faults: {names}")
            await heard("settled", followers)
            self._say("killing every server at once")
            for part in parts.servers.values():
                part.signal(signal.SIGKILL)
            async with connect(parts.nats_url, name="torture-reader") as reader:
                with self._marker_file.open("w") as file:
                    async with within(_MARK_SECONDS, "writing the markers"):
                        await mark(reader, Recorder(file))
                try:
                    await heard("caught_up", followers)
                except TimeoutError as error:
                    self._violations.append(f"a follower: {error}")
                async with within(_READ_SECONDS, "reading everything back"):
                    final = await read_back(reader)
                    for store in STREAMS:
                        self._violations += await check_subjects(reader, store, final[store])
                    for writer in writers:
                        if writer.task.trace:
                            await self._check_document(reader, writer)
            for follower in followers:
                follower.tell("end")
            self._violations += [f"a follower: {wrong}" for wrong in await all_ended(following)]
        return final

    async def _check_document(self, client: Client, typist: ClientProcess[Task]) -> None:
        """Compare the document that a typist's stream makes with the trace's."""
        typed = Typed(**json.loads(Path(typist.task.file).read_text()))
        trace = EditingTrace.load(Path(typist.task.trace))
        count, document = await editing_trace.read_document(client, trace)
        expected = trace.document_after(typed.transactions)
        same = count == typed.transactions and document.encode() == expected.encode()
        self._violations += [f"stream {trace.stream}: {one}" for one in typed.problems]
        if not same:
            rule = "stored twice" if count > typed.transactions else "lost"
            self._violations.append(
                f"stream {trace.stream}: {rule}: {typed.transactions} transactions were typed, "
                f"{count} are there"
            )
        total = len(trace.transactions)
        self._documents.append(
            f"{trace.name}: {typed.transactions:,} of {total:,} transactions, "
            f"{len(document.encode()):,} bytes, {'identical' if same else 'DIFFERS'}"
        )

    def client_process(
        self,
        parts: SupervisedParts,
        role: str,
        name: str,
        *,
        nats: str = "",
        prefix: Sequence[str] = (),
        operations_per_second: float = OPERATIONS_PER_SECOND / WRITER_COUNT,
        trace: str = "",
    ) -> ClientProcess[Task]:
        """Return a client to be run: where this process runs, unless `nats` and `prefix` say
        otherwise."""
        suffix = "json" if role == "typist" else "jsonl"
        task = Task(
            role=role,
            name=name,
            seed=self._seed * 1000 + sum(name.encode()),
            nats=nats or parts.nats_url,
            file=str(self._histories / f"{name}.{suffix}"),
            seconds=self._seconds,
            operations_per_second=operations_per_second,
            trace=trace,
            expected_errors=sorted(self.expected_errors),
        )
        return ClientProcess(task, "tests.torture.worker", prefix)


async def _wait_until_well(tormentor: Strikes) -> None:
    well: set[str] = set()
    try:
        async with asyncio.timeout(_READY_SECONDS):
            while (well := set(await tormentor.well_servers())) != set(SERVERS):
                await asyncio.sleep(_POLL_SECONDS)
    except TimeoutError:
        ill = ", ".join(sorted(set(SERVERS) - well))
        raise TimeoutError(f"after {_READY_SECONDS:g} s not live: {ill}") from None


async def mark(client: Client, recorder: Recorder) -> None:
    """Write the last value of every store."""
    async with asyncio.TaskGroup() as tasks:
        for number, store in enumerate(STREAMS + KVS):
            id = MARKER_ID + b"-%d" % number
            action, keys = ("append", ()) if is_stream(store) else ("set", (MARKER_KEY,))
            operation = Operation(
                id.decode(), store, action, time.monotonic(), keys, (id,), label="marker"
            )
            tasks.create_task(perform(client, operation, 60.0, recorder))


async def read_back(client: Client) -> dict[Store, FinalState]:
    """Read everything that the stores have."""
    return {store: await read_final(client, store, name_of) for store in STREAMS + KVS}


async def check_subjects(client: Client, store: Store, final: FinalState) -> list[str]:
    """Return what is wrong with the subjects of a stream, whose messages are all there."""
    stream = client.stream(store[1])
    wanted = {seq for seq, (name, _) in final.rows.items() if subject_of(name) is not None}
    seqs_of: dict[str | None, list[int]] = {}
    async for message in stream.get_all(subjects=["torture.>"]):
        seqs_of.setdefault(message.subject, []).append(message.seq)
    found = {seq for seqs in seqs_of.values() for seq in seqs}
    listed = {
        each.subject: (each.count, each.first_seq, each.last_seq)
        async for each in stream.subjects()
    }
    counted = {subject: (len(seqs), seqs[0], seqs[-1]) for subject, seqs in seqs_of.items()}
    wrong = []
    if not wanted <= found:
        wrong.append(f"stream {store[1]}: {sorted(wanted - found)} are not found by subject")
    if listed != counted:
        wrong.append(f"stream {store[1]}: its subjects are {listed}, and not {counted}")
    return wrong
