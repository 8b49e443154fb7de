"""Keeps a streaming query's driver informed of the streams, at little cost.

The first look asks for the head of every stream that matches. From then on it listens to the
owners' broadcasts, and only asks again about streams that have changed. So streams that nobody
writes to stay closed at their owners, however many there are and however often Spark looks. After a
reconnect, and every few minutes in case a broadcast was lost, it asks about all streams.

It has one connection and one thread in the driver's process, from the first look until `close`. It
is never sent to tasks after the first look; before that, it can be pickled.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from contextlib import ExitStack
from typing import Final

from holdfast.client import Client, connect
from holdfast.protocol.bus.bus import Bus, BusMessage
from holdfast.protocol.bus.bus_nats import connect_nats
from holdfast.protocol.names import StoreId, StoreKind
from holdfast.protocol.subjects import Subjects
from holdfast.spark.event_loop import EventLoop, running_loop
from holdfast.spark.options import Connection, NamePattern
from holdfast.spark.source import live
from holdfast.spark.source.ranges import StoreExtent

#: A broadcast should only be lost with a connection. This interval guards against other causes.
_ASK_ALL_SECONDS: Final = 300.0


class StoreSurvey:
    """The extents of the streams of a pattern. For one thread."""

    def __init__(self, connection: Connection, pattern: NamePattern) -> None:
        self._connection = connection
        self._pattern = pattern
        self._link: _Link | None = None
        self._known: dict[str, StoreExtent] = {}
        self._ask_all_at = 0.0

    def look(self) -> list[StoreExtent]:
        """Return the present extents of the streams, by name. Raises what any read raises."""
        if self._link is None:
            self._link = _Link(self._connection)
        heard = self._link.take_heard()
        ask_all_at, self._ask_all_at = self._ask_all_at, 0.0
        # If the rest fails, the next look asks about all streams.
        if heard is None or time.monotonic() >= ask_all_at:
            found = self._link.ask_all(self._pattern)
            self._known = {extent.name: extent for extent in found}
            ask_all_at = time.monotonic() + _ASK_ALL_SECONDS
        else:
            names = sorted(name for name in heard if self._pattern.matches(name))
            self._known.update((extent.name, extent) for extent in self._link.ask(names))
        self._ask_all_at = ask_all_at
        return [self._known[name] for name in sorted(self._known)]

    def since(self, found: Iterable[StoreExtent], start_time: int) -> list[StoreExtent]:
        """Return the part of each stream that was appended from `start_time` on."""
        assert self._link is not None, "it was looked at"
        return self._link.since(list(found), start_time)

    def close(self) -> None:
        if self._link is not None:
            self._link.close()
            self._link = None


class _Link:
    """A connection that listens to changes."""

    def __init__(self, connection: Connection) -> None:
        self._names: set[str] = set()
        self._missed = True
        self._subjects = Subjects(connection.prefix)
        self._stack = ExitStack()
        try:
            self._loop: EventLoop = self._stack.enter_context(running_loop())
            self._bus: Bus = self._loop.run(self._listen(connection))
            self._stack.callback(lambda: self._loop.run(self._bus.close()))
            client = connect(
                tenant=connection.tenant,
                token=connection.login.options.get("token"),
                prefix=connection.prefix,
                bus=self._bus,
            )
            self._client: Client = self._stack.enter_context(self._loop.entered(client))
        except BaseException:
            self._stack.close()
            raise

    def take_heard(self) -> set[str] | None:
        """Return the streams that have changed since the last call, or None if
        changes were missed."""

        async def take() -> set[str] | None:
            heard = None if self._missed else self._names
            self._names, self._missed = set(), False
            return heard

        return self._loop.run(take())

    def ask_all(self, pattern: NamePattern) -> list[StoreExtent]:
        return self._loop.run(live.extents(self._client, [(StoreKind.STREAM, pattern)]))

    def ask(self, names: list[str]) -> list[StoreExtent]:
        return self._loop.run(live.extents_of(self._client, StoreKind.STREAM, names))

    def since(self, found: list[StoreExtent], start_time: int) -> list[StoreExtent]:
        return self._loop.run(live.since_time(self._client, found, start_time))

    def close(self) -> None:
        self._stack.close()

    async def _listen(self, connection: Connection) -> Bus:
        bus = await connect_nats(
            connection.nats,
            name="holdfast-spark-driver",
            login=connection.login,
            inboxes=connection.inboxes,
        )
        bus.on_reconnect(self._reconnected)
        every = StoreId(connection.tenant, StoreKind.STREAM, ">")
        try:
            await bus.subscribe(self._subjects.changes(every), self._heard)
            # From here on every broadcast is heard, so later answers cannot miss a change.
            await bus.flush()
        except BaseException:
            await bus.close()
            raise
        return bus

    def _heard(self, message: BusMessage) -> None:
        self._names.add(self._subjects.store_of(message.subject).name)

    def _reconnected(self) -> None:
        self._missed = True
