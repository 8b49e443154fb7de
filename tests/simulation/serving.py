"""Gateways that serve one stream in turns: messages with subjects, and cursors.

Each client has a gateway. One that serves writes and reads until another has begun to serve, or
until it does not know what became of a step. What all of them did is judged in the end, reign by
reign (`tests/support/checking/reigns.py`).
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

from holdfast.client.connection import Client
from holdfast.client.handles.serving import ServingStream
from holdfast.client.handles.serving_wire import NewMessage, ServedMessage
from holdfast.protocol.errors import DeposedWriterError, HoldfastError, WrongLastSeqError
from tests.simulation.workload import DEFINITE, Application
from tests.support.checking.history import Outcome
from tests.support.checking.reigns import Reign, Step, check_reigns

if TYPE_CHECKING:
    from tests.simulation.simulated_cluster import Simulation
    from tests.simulation.simulated_nodes import ClientNode

STREAM: Final = "served"
_SUBJECTS: Final = ("a", "a.b", "a.c", "d.b", "d")
_FILTERS: Final = (["a"], ["a.*"], ["*.b"], [">"], ["d.>", "a"], [])
_CURSORS: Final = ("one", "two")
#: How long a gateway leaves the stream to another one, and how long it takes to begin anew after a
#: step of which it does not know what became.
_AWAY_SECONDS: Final = 5.0
_AGAIN_SECONDS: Final = 0.3


class Gateway(Application):
    """One gateway. `reigns` are those of all gateways of the run."""

    role = "g"

    def __init__(
        self, simulation: Simulation, node: ClientNode, client: Client, reigns: list[Reign]
    ) -> None:
        super().__init__(simulation, node, client)
        self._reigns = reigns
        self._simulation = simulation
        self._reign: Reign | None = None
        self._is_deposed = node.name != "k1"

    async def work(self, until: float) -> None:
        """Serve whenever it can, until the time `until`."""
        loop, chance = asyncio.get_running_loop(), self._chance
        while loop.time() < until:
            pause_seconds = _AWAY_SECONDS if self._is_deposed else _AGAIN_SECONDS
            await asyncio.sleep(chance.expovariate(1 / pause_seconds))
            stream = await self._begin(chance.choice((1.0, 3.0)))
            while stream is not None and self._reign is not None and loop.time() < until:
                await asyncio.sleep(chance.expovariate(12.0))
                await self._step(stream, chance.choice((0.5, 2.0, 5.0)))

    async def finish(self) -> None:
        """Serve once more, and judge all that was served. Run it when everything has healed."""
        stream = await self._begin(20.0)
        if stream is None:
            self._simulation.fail("nobody can serve the stream in the end")
            return
        await self._ask(stream, "read", 20.0, filters=[])
        await self._ask(stream, "all_cursors", 20.0)
        await self._ask(stream, "delete", 20.0, seqs=[1 << 40])
        if self._reign is None or len(self._reign.counted) < 3:
            self._simulation.fail("what gateways served cannot be read in the end")
        for what in check_reigns(self._reigns):
            self._simulation.fail(f"served stream: {what}")

    async def _begin(self, timeout_seconds: float) -> ServingStream | None:
        """Begin to serve. Return None if that failed, or another gateway was first."""
        stream = self._client.serving_stream(STREAM)
        try:
            config = await stream.config(timeout_seconds=timeout_seconds)
            epoch = (config.serving_epoch or 0) + 1
            await stream.configure(serving_epoch=epoch, timeout_seconds=timeout_seconds)
        except HoldfastError as error:
            self._trace.add(f"does not serve {type(error).__name__}")
            self._is_deposed = isinstance(error, DeposedWriterError)
            return None
        stream.serving_epoch = epoch
        self._reign = Reign(epoch, self._name)
        self._reigns.append(self._reign)
        self._trace.add(f"serves in epoch {epoch}")
        await self._ask(stream, "all_cursors", timeout_seconds)
        await self._ask(stream, "read", timeout_seconds, filters=[])
        return stream

    async def _step(self, stream: ServingStream, timeout_seconds: float) -> None:
        chance = self._chance
        dice = chance.random()
        subject = chance.choice(_SUBJECTS)
        filters = chance.choice(_FILTERS)
        if dice < 0.3:
            await self._append(stream, subject, timeout_seconds)
        elif dice < 0.5:
            await self._record(stream, timeout_seconds)
        elif dice < 0.55:
            steps = [
                ("delete", {"seqs": [chance.randint(1, 40)]}),
                ("cursor", self._cursor()),
                ("append", {"subject": subject, "value": self._value()}),
            ]
            await self._ask(stream, "batch", timeout_seconds, steps=steps)
        elif dice < 0.6:
            bounds = chance.choice(((None, None), (None, 2), (chance.randint(1, 40), None)))
            filter_ = chance.choice((None, "a.*", subject))
            await self._ask(
                stream, "purge", timeout_seconds,
                filter_=filter_, before_seq=bounds[0], keep=bounds[1],
            )  # fmt: skip
        elif dice < 0.7:
            await self._ask(stream, "read", timeout_seconds, filters=filters)
        elif dice < 0.8:
            await self._ask(stream, "lasts", timeout_seconds, filters=filters)
        elif dice < 0.85:
            await self._ask(stream, "subjects", timeout_seconds, filter_=(filters or [">"])[0])
        elif dice < 0.95:
            start = chance.randint(1, 40)
            await self._ask(stream, "count", timeout_seconds, filters=filters, start_seq=start)
        else:
            await self._ask(stream, "all_cursors", timeout_seconds)

    async def _append(
        self, stream: ServingStream, subject: str, timeout_seconds: float
    ) -> None:
        chance = self._chance
        more: dict[str, Any] = {}
        dice = chance.random()
        if dice < 0.2:
            more["rollup"] = chance.choice(("sub", "sub", "sub", "all"))
        elif dice < 0.5:
            last_seq = self._last_seqs.get(subject, 0)
            more["expected"] = last_seq if chance.random() < 0.8 else last_seq + 1
        value = self._value()
        await self._ask(stream, "append", timeout_seconds, subject=subject, value=value, **more)

    async def _record(self, stream: ServingStream, timeout_seconds: float) -> None:
        if self._chance.random() < 0.1:
            name = self._chance.choice(_CURSORS)
            await self._ask(stream, "drop_cursor", timeout_seconds, name=name)
        else:
            await self._ask(stream, "cursor", timeout_seconds, **self._cursor())

    def _cursor(self) -> dict[str, Any]:
        chance = self._chance
        return {
            "name": chance.choice(_CURSORS),
            "state": self._value()[:20],
            "rows": {
                chance.randint(1, 12): self._value()[:20] for _ in range(chance.randint(0, 3))
            },
            "removed": [chance.randint(1, 12) for _ in range(chance.randint(0, 2))],
        }

    async def _ask(
        self, stream: ServingStream, action: str, timeout_seconds: float, **arguments: Any
    ) -> None:
        """Take a step, and note it. The reign ends unless it is known what became of it."""
        reign = self._reign
        if reign is None:
            return
        outcome, answer = Outcome.OK, None
        ask = getattr(self, f"_ask_{action}")
        try:
            answer = await ask(stream, timeout_seconds, **arguments)
        except WrongLastSeqError as error:
            outcome, answer = Outcome.REFUSED, error.code
            self._last_seqs[arguments["subject"]] = error.actual
        except HoldfastError as error:
            definite = isinstance(error, DEFINITE)
            outcome, answer = Outcome.REFUSED if definite else Outcome.UNKNOWN, error.code
            self._is_deposed = isinstance(error, DeposedWriterError)
            if not definite or self._is_deposed:
                self._reign = None
        self._trace.add(f"{action} {arguments!r:.60} {outcome} {answer!r:.60}")
        reign.steps.append(Step(action, arguments, outcome, answer))

    # What the handle is asked
    async def _ask_append(
        self,
        stream: ServingStream,
        timeout_seconds: float,
        subject: str,
        value: bytes,
        expected: int | None = None,
        rollup: str | None = None,
    ) -> int:
        options: dict[str, Any] = {}
        if expected is not None:
            options["expected_last_subject_seq"] = expected
        if rollup is not None:
            options["rollup"] = rollup
        done = await stream.append(
            subject, value, options=options or None, timeout_seconds=timeout_seconds
        )
        self._last_seqs[subject] = done.seq
        return done.seq

    async def _ask_purge(
        self,
        stream: ServingStream,
        timeout_seconds: float,
        filter_: str | None,
        before_seq: int | None,
        keep: int | None,
    ) -> int:
        return await stream.purge(
            filter_, before_seq=before_seq, keep=keep, timeout_seconds=timeout_seconds
        )

    async def _ask_delete(
        self, stream: ServingStream, timeout_seconds: float, seqs: list[int]
    ) -> int:
        return await stream.delete(*seqs, timeout_seconds=timeout_seconds)

    async def _ask_cursor(
        self,
        stream: ServingStream,
        timeout_seconds: float,
        name: str,
        state: bytes,
        rows: dict[int, bytes],
        removed: list[int],
    ) -> None:
        await stream.set_cursor(
            name,
            state=state,
            rows=list(rows.items()),
            removed=removed,
            timeout_seconds=timeout_seconds,
        )

    async def _ask_drop_cursor(
        self, stream: ServingStream, timeout_seconds: float, name: str
    ) -> bool:
        return await stream.delete_cursor(name, timeout_seconds=timeout_seconds)

    async def _ask_batch(
        self,
        stream: ServingStream,
        timeout_seconds: float,
        steps: list[tuple[str, dict[str, Any]]],
    ) -> list[Any]:
        packer = stream.packer
        (_, delete), (_, cursor), (_, append) = steps
        operations = [
            packer.delete_operation(delete["seqs"]),
            packer.cursor_operation(
                cursor["name"],
                state=cursor["state"],
                rows=list(cursor["rows"].items()),
                removed=cursor["removed"],
            ),
            packer.append_operation(NewMessage(append["subject"], append["value"])),
        ]
        deleted, _, appended = await stream.batch(operations, timeout_seconds=timeout_seconds)
        return [deleted[0], None, appended.seq]

    async def _ask_read(
        self,
        stream: ServingStream,
        timeout_seconds: float,
        filters: list[str],
    ) -> dict[int, tuple[str, bytes]]:
        found: list[ServedMessage] = []
        start: int | None = None
        while True:
            page, start = await stream.by_subject(
                filters, start_seq=start, limit=7, timeout_seconds=timeout_seconds
            )
            found += page
            if start is None:
                return {each.seq: (each.subject, each.value) for each in found}

    async def _ask_lasts(
        self, stream: ServingStream, timeout_seconds: float, filters: list[str]
    ) -> list[int]:
        page, following = await stream.lasts(filters, timeout_seconds=timeout_seconds)
        assert following is None
        return [each.seq for each in page]

    async def _ask_subjects(
        self, stream: ServingStream, timeout_seconds: float, filter_: str
    ) -> list[tuple[str, int, int, int]]:
        found, after = await stream.subjects(filter_, timeout_seconds=timeout_seconds)
        assert after is None
        return [(each.subject, each.count, each.first_seq, each.last_seq) for each in found]

    async def _ask_count(
        self, stream: ServingStream, timeout_seconds: float, filters: list[str], start_seq: int
    ) -> int:
        found, _ = await stream.count(filters, start_seq, timeout_seconds=timeout_seconds)
        return found

    async def _ask_all_cursors(
        self, stream: ServingStream, timeout_seconds: float
    ) -> dict[str, tuple[bytes, bytes, dict[int, bytes]]]:
        found = await stream.cursors(timeout_seconds=timeout_seconds)
        return {each.name: (each.config, each.state, dict(each.rows)) for each in found}
