"""Archived messages as an owner gets them: from a server with the role `archive`, or by itself.

    access = ArchiveAccess(archive, life, helpers, run_in_thread)
    bodies = await access.bodies(messages)

Reading the archive takes a row group of up to 64 MiB to decode and to keep, and processor time that
live traffic needs. An owner with the role reads itself, as ever; any other one asks a server of its
zone. Invariants:

- Each body is checked by the owner's own record of the message, whoever read it (`asks.py`).
- Only the owner's own read says that something is missing, or cannot be read. Whatever a server
  refuses, gets wrong or does not answer, the owner reads itself.
- One server is asked for a part: the one that has claimed it. If it says that it has not, the owner
  looks once more who has. So no two do the same, and a dead one's part is another one's after its
  fence. Until then, or without one, the owner reads itself.
- One that did not answer is left alone for a while, so a dead, hung or older one delays few reads.
  Servers that are slow, or answer bit by bit, are waited for no longer, however many parts a read
  has, so the owner has time to read itself.
- What the answer says is no answer to a client: the read runs again, and the store as it is then
  decides what of it is still there.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Any, Final, Protocol

from holdfast.persist.archive_reading.asks import (
    ArchiveAsk,
    NotClaimedError,
    WrongAnswerError,
    bodies_of_answer,
    parts_of,
    work_of,
)
from holdfast.persist.archive_reading.kept_rows import KeptRows
from holdfast.persist.incarnation import Incarnation
from holdfast.persist.peers.zone_helpers import ZoneHelpers
from holdfast.persist.threads.run_in_thread import RunInThread
from holdfast.protocol import frames
from holdfast.protocol.errors import (
    ArchiveUnreadableError,
    BusyError,
    HoldfastError,
    UnavailableError,
)
from holdfast.protocol.limits import ARCHIVE_ASK_SECONDS, PAGE_ROWS
from holdfast.protocol.monitoring import metrics
from holdfast.protocol.work.roles import Role
from holdfast.shared_fs.store_file.archived_blocks import ArchivedMessage, Bodies

logger = logging.getLogger("holdfast.persist")

#: Who is named first, and who has the part since.
_MOST_ASKED: Final = 2
#: For as many times `ARCHIVE_ASK_SECONDS` servers are waited for in all: the last one asked that
#: hangs must be known to hang.
_ASKS_WAITED_FOR: Final = _MOST_ASKED + 0.5
_AWAY_SECONDS: Final = 10.0
#: A server that gave a wrong answer is of no use until somebody has looked at it.
_WRONG_SECONDS: Final = 60.0


class ReadsArchive(Protocol):
    """What reads tables of archived messages: `archive_table.Archive`. It blocks."""

    def bodies(self, messages: Sequence[ArchivedMessage]) -> Bodies:
        """Return values and headers of archived messages of one store."""

    def warm(self, messages: Sequence[ArchivedMessage]) -> None:
        """Read what has the last of these messages into memory, if there is room once what has
        none from the first one on was dropped."""

    def look_again(self, table: str) -> None:
        """Make the next read of a table look up its newest version."""

    def forget(self) -> None:
        """Drop all rows that are in memory."""


class ArchiveAccess:
    """The archive as one incarnation reads it."""

    def __init__(
        self,
        archive: ReadsArchive,
        life: Incarnation,
        helpers: ZoneHelpers,
        run_in_thread: RunInThread,
    ) -> None:
        """`run_in_thread` is for work that waits for the table."""
        self._archive = archive
        self._bus = life.bus
        self._subjects = life.subjects
        self._zone = life.zone
        self._helpers = helpers
        self._run_in_thread = run_in_thread
        self._reads_itself = Role.ARCHIVE in life.roles
        #: When the version of a table must have been looked up, at the earliest.
        self._looked_at: dict[str, float] = {}
        #: The same as far as reads here have looked it up.
        self._looked_here: dict[str, float] = {}
        self._sources = life.statistics.counters(metrics.ARCHIVE_READS)
        self._wrong = life.statistics.counter(metrics.ARCHIVE_WRONG)
        #: The rows that this server's own reads keep.
        self.kept_rows = KeptRows(archive.forget, run_in_thread)

    async def bodies(self, messages: Sequence[ArchivedMessage]) -> Bodies:
        """Return values and headers of archived messages of one store.

        Raises ArchiveMissingError, ArchiveUnreadableError if a package is missing, and
        UnavailableError while the table cannot be reached.
        """
        if self._reads_itself:
            found = await self._read(messages)
            self._sources.add("own", len(messages))
            return found
        told: dict[tuple[int, int], Any] = {}
        left: list[ArchivedMessage] = []
        refusal: HoldfastError | None = None
        until = asyncio.get_running_loop().time() + _ASKS_WAITED_FOR * ARCHIVE_ASK_SECONDS
        for part in parts_of(messages):
            try:
                async with asyncio.timeout_at(until):
                    told.update(await self._from_servers(part))
            except TimeoutError:
                refusal = UnavailableError(reason="servers of the archive take too long")
                left += part
            except HoldfastError as error:
                refusal = error
                left += part
        self._sources.add("server", len(told))
        if not left:
            return told
        try:
            found = await self._read(left)
        except ArchiveUnreadableError as error:
            if isinstance(refusal, UnavailableError):
                # This server never could, and another one soon can.
                raise refusal from error
            raise
        self._sources.add("fallback", len(left))
        return {**told, **found}

    async def warm(self, messages: Sequence[ArchivedMessage]) -> None:
        """Have whoever reads the archive for a reader, which is at the first of these messages and
        will come to the last one, prepare for that. Raises HoldfastError."""
        if self._reads_itself:
            self.kept_rows.used()
            await self._run_in_thread(lambda: self._archive.warm(messages))
            return
        last = messages[-1]
        holder = await self._helpers.archive_holder(work_of(self._zone, last))
        if holder is not None:
            server, epoch = holder
            ask = ArchiveAsk(last.place, messages, epoch=epoch, is_ahead=True)
            payload = frames.encode_control(**ask.to_wire())
            subject = self._subjects.archive(server)
            await self._bus.request(subject, payload, ARCHIVE_ASK_SECONDS)

    def look_again(self, table: str) -> None:
        """Have reads from now on use a version of a table that is looked up from now on.

        Call it before values are left to the archive for good: they must be in that version.
        """
        self._looked_at[table] = asyncio.get_running_loop().time()

    async def _read(self, messages: Sequence[ArchivedMessage]) -> Bodies:
        """Read the table here."""

        def work() -> Bodies:
            for table in {message.place.table for message in messages}:
                wanted = self._looked_at.get(table, 0.0)
                if self._looked_here.get(table, 0.0) < wanted:
                    # It waits while another thread looks a table up.
                    self._archive.look_again(table)
                    self._looked_here[table] = wanted
            return self._archive.bodies(messages)

        self.kept_rows.used()
        found: Bodies = await self._run_in_thread(work)
        return found

    async def _from_servers(self, part: list[ArchivedMessage]) -> Bodies:
        """Return what a server of the zone read. Raises HoldfastError."""
        refusal: HoldfastError = UnavailableError(reason="no server of the zone reads the archive")
        work, holder = work_of(self._zone, part[0]), None
        for _ in range(_MOST_ASKED):
            holder = await self._helpers.archive_holder(work, other_than=holder)
            if holder is None:
                break
            server, epoch = holder
            try:
                return await self._ask(server, epoch, part)
            except WrongAnswerError as error:
                logger.error("archive.wrong server=%s reason=%s", server, error)
                self._wrong.value += 1
                self._helpers.leave_alone(Role.ARCHIVE, server, _WRONG_SECONDS)
                raise
            except HoldfastError as error:
                if isinstance(error, UnavailableError) and not isinstance(error, BusyError):
                    self._helpers.leave_alone(Role.ARCHIVE, server, _AWAY_SECONDS)
                logger.debug("archive.refused server=%s reason=%s", server, error)
                refusal = error
                if error.code != NotClaimedError.code:
                    break
        raise refusal

    async def _ask(self, server: str, epoch: int, part: list[ArchivedMessage]) -> Bodies:
        """Return what one server read. Raises HoldfastError."""
        loop = asyncio.get_running_loop()
        found: dict[tuple[int, int], Any] = {}
        while part:
            looked_at = self._looked_at.get(part[0].place.table)
            age_ms = None if looked_at is None else int((loop.time() - looked_at) * 1000)
            ask = ArchiveAsk(part[0].place, part, age_ms, epoch)
            payload = frames.encode_control(**ask.to_wire())
            subject = self._subjects.archive(server)
            reply = await self._bus.request(subject, payload, ARCHIVE_ASK_SECONDS)

            def checked(reply: bytes = reply, part: list[ArchivedMessage] = part) -> Bodies:
                answer = frames.decode_control(reply, max_length=PAGE_ROWS)
                return bodies_of_answer(answer, part)

            bodies = await self._run_in_thread(checked)
            found.update(bodies)
            part = part[len(bodies) :]
        return found
