"""The heartbeats' subject: hears servers and other coordinators, and
sends this coordinator's messages.

The coordinator sends numbered messages to itself to prove that it hears (`standby_heartbeats.py`).
This module does not judge servers. The listener does: first `StandbyHeartbeats`, and then
`MembershipDriver` once this coordinator is the active one.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Mapping
from typing import Any, Final, Protocol

from holdfast.coordinator.decisions.part_book import PartKey
from holdfast.coordinator.decisions.succession import Succession
from holdfast.coordinator.life import Life
from holdfast.coordinator.peers.other_clusters import OtherClusters
from holdfast.protocol.bus.bus import BusMessage
from holdfast.protocol.control import Heartbeat
from holdfast.protocol.errors import ConnectionFailedError, HoldfastError
from holdfast.protocol.frames import decode_control, encode_control
from holdfast.protocol.limits import MAX_ARRAY_LENGTH, SILENCE_SECONDS
from holdfast.protocol.monitoring.description import PartKind
from holdfast.protocol.monitoring.telling import encode_report
from holdfast.protocol.names import check_server

logger = logging.getLogger("holdfast.coordinator")

#: If this many own messages in a row do not come back on a connection that stands (6 s of
#: an active coordinator), the coordinator hears nothing. It can judge nobody and must
#: end, so that another one takes over. A connection that is silent altogether is replaced earlier.
MAX_MISSING_OWN_MESSAGES: Final = 60
#: How long an own message may wait for the connection. The next one follows soon.
OWN_MESSAGE_TIMEOUT_SECONDS: Final = 0.1


#: An active coordinator sends ten messages a second, and one of them tells what it counts.
_MESSAGES_PER_REPORT: Final = 10


class HeartbeatListener(Protocol):
    """Takes what is heard on the subject."""

    def heartbeat(self, heartbeat: Heartbeat, now: float) -> None:
        """A heartbeat of a server of this cluster arrived."""

    def own_message(self, number: int, sent_at: float) -> None:
        """A message of this coordinator to itself came back."""

    def missing_own_messages(self, number: int) -> int:
        """Return how many of the `number` messages that this
        coordinator sent have not come back."""

    def connected(self, now: float, last_number: int) -> None:
        """The bus reconnected; `last_number` is the number of the last
        own message sent before that."""


class HeartbeatFeed:
    """The subject as one coordinator hears it, from its start to its end."""

    def __init__(self, life: Life, listener: HeartbeatListener) -> None:
        self._life = life
        self._listener = listener
        #: Set once the lock is held.
        self._others: OtherClusters | None = None
        #: When this coordinator became the active one.
        self._active_since: float | None = None
        self._own_message_count = 0
        #: While this coordinator stands by.
        self._succession: Succession | None = None
        #: When a server of this cluster was last heard.
        self._server_heard_at = -math.inf

    def stand_by(self, succession: Succession) -> None:
        """Tell `succession` what is heard of other coordinators, until this one is active."""
        self._succession = succession

    def hears_servers(self) -> bool:
        """Tell whether servers reach this coordinator over NATS."""
        silent_seconds = self._life.now() - self._server_heard_at
        return self._life.bus.connected and silent_seconds <= SILENCE_SECONDS

    def ignore(self, others: OtherClusters) -> None:
        """Ignore other clusters from now on; `others` knows the id of this one."""
        self._others = others

    def hand_over(self, listener: HeartbeatListener) -> None:
        """Make `listener` the judge: this coordinator is the active one from now on."""
        self._listener = listener
        self._succession = None
        self._active_since = self._life.now()

    async def prove_hearing(self) -> None:
        """Send the next message to this coordinator itself.

        Raises ConnectionFailedError if so many have not come back that
        this coordinator hears nothing.
        """
        bus = self._life.bus
        if not bus.connected:
            return
        count = self._listener.missing_own_messages(self._own_message_count)
        if count >= MAX_MISSING_OWN_MESSAGES:
            logger.error("coordinator.deaf missing=%d", count)
            reason = (
                f"it is connected but delivers nothing: {count} messages of this coordinator to "
            )
            raise ConnectionFailedError(url="NATS", reason=reason + "itself did not come back")
        self._own_message_count += 1
        report = {}
        if self._own_message_count % _MESSAGES_PER_REPORT == 1:
            report = {"report": encode_report(self._life.statistics)}
        payload = encode_control(
            coordinator=self._life.id,
            number=self._own_message_count,
            sent_at=self._life.now(),
            cluster=self._others.cluster if self._others is not None else "",
            active_seconds=self._active_seconds() or 0.0,
            storage_seconds=self._life.storage_use.longest_seconds(),
            **report,
        )
        try:
            async with asyncio.timeout(OWN_MESSAGE_TIMEOUT_SECONDS):
                await bus.publish(self._life.subjects.heartbeat(), payload)
        except TimeoutError:
            logger.debug("coordinator.own_message_waits")

    def on_connected(self) -> None:
        """Note that the bus reconnected."""
        self._listener.connected(self._life.now(), self._own_message_count)
        if self._succession is not None:
            self._succession.start_over(self._life.now())

    def on_message(self, message: BusMessage) -> None:
        """Take a message of the subject. Malformed ones are dropped."""
        try:
            fields = decode_control(message.payload, max_length=MAX_ARRAY_LENGTH)
            if "coordinator" in fields:
                self._on_coordinator(fields)
                return
            heartbeat = Heartbeat.from_wire(fields)
        except (HoldfastError, KeyError, TypeError, ValueError, OverflowError) as error:
            logger.debug("coordinator.heartbeat_malformed reason=%s", error)
            return
        if self._others is None or not self._others.is_stranger(heartbeat):
            now = self._server_heard_at = self._life.now()
            if self._succession is not None:
                self._succession.others_heard(now)
            self._listener.heartbeat(heartbeat, now)
            part = PartKey(PartKind.PERSIST, heartbeat.server)
            self._hear_report(part, fields.get("report"), heartbeat.incarnation)

    def _on_coordinator(self, fields: Mapping[str, Any]) -> None:
        """Take a message that a coordinator sent to itself: this one or another one."""
        if fields["coordinator"] == self._life.id:
            self._listener.own_message(int(fields["number"]), float(fields["sent_at"]))
        else:
            active_seconds = float(fields.get("active_seconds", 0.0))
            cluster = self._others.cluster if self._others is not None else ""
            if not cluster or fields.get("cluster") in ("", cluster):
                kind = PartKind.COORDINATOR if active_seconds > 0 else PartKind.STANDBY
                part = PartKey(kind, check_server(fields["coordinator"]))
                self._hear_report(part, fields.get("report"))
            if self._succession is not None:
                # An earlier version does not say how long its call of the storage has lasted.
                storage_seconds = float(fields.get("storage_seconds", 0.0))
                self._hear_of_the_active_one(active_seconds, storage_seconds)
            self._meet(fields.get("cluster"), active_seconds)

    def _hear_report(self, part: PartKey, report: object, incarnation: str = "") -> None:
        """Note what a part counts. Earlier versions do not tell; nonsense harms nobody else."""
        if report is None:
            return
        try:
            self._life.part_book.hear(part, report, self._life.now(), incarnation)
        except HoldfastError as error:
            logger.debug("coordinator.report_malformed part=%s reason=%s", part.name, error)

    def _hear_of_the_active_one(self, active_seconds: float, storage_seconds: float) -> None:
        assert self._succession is not None
        if active_seconds > 0:
            self._succession.announced(storage_seconds, self._life.now())
        else:
            self._succession.others_heard(self._life.now())

    def _meet(self, cluster: object, active_seconds: float) -> None:
        own_seconds = self._active_seconds()
        if self._others is None or own_seconds is None or self._life.wakeup.stopping:
            return
        error = self._others.rival(cluster, active_seconds, own_seconds)
        if error is not None:
            self._life.background_tasks.start("leave", _raise(error))

    def _active_seconds(self) -> float | None:
        return None if self._active_since is None else self._life.now() - self._active_since


async def _raise(error: HoldfastError) -> None:
    raise error
