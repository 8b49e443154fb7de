"""The deliver subject of a push consumer: who listens, flow control, heartbeats, the rate.

A push consumer delivers while somebody listens on its deliver subject. It waits for the first
listener, since clients create a consumer before they subscribe. Pure: times are int milliseconds.
"""

from __future__ import annotations

from collections.abc import Callable

from holdfast.gateway.jetstream.consumers import statuses
from holdfast.gateway.jetstream.consumers.effects import Effect, Status
from holdfast.gateway.jetstream.consumers.ledger import NEVER
from holdfast.gateway.jetstream.consumers.pace import FlowWindow, RateLimit
from holdfast.gateway.jetstream.consumers.settings import BURST_BYTES, DeliverySettings


class Push:
    """One deliver subject. `flow_prefix` is what the subjects of flow control begin with."""

    def __init__(
        self, settings: DeliverySettings, flow_prefix: str, new_id: Callable[[], str]
    ) -> None:
        self.inbox = settings.config.deliver_subject
        self.active = False
        self.window = FlowWindow() if settings.config.flow_control else None
        self.rate: RateLimit | None = None
        #: When the next heartbeat is due.
        self.heartbeat_at = NEVER
        self._heartbeat_ms = settings.heartbeat_ms
        self._rate_bits = 0
        self._flow_prefix = flow_prefix
        self._new_id = new_id
        self.reconfigured(settings)

    @property
    def ready(self) -> bool:
        """Whether its client takes messages now."""
        return self.active and not (self.window is not None and self.window.closed)

    def reconfigured(self, settings: DeliverySettings) -> None:
        """Take another configuration: another deliver subject begins without listeners."""
        if settings.config.deliver_subject != self.inbox:
            self.inbox = settings.config.deliver_subject
            self.active, self.heartbeat_at = False, NEVER
        if settings.config.rate_limit_bps != self._rate_bits:
            self._rate_bits = settings.config.rate_limit_bps
            self.rate = RateLimit(self._rate_bits, BURST_BYTES) if self._rate_bits else None

    def listened(self, active: bool, now: int) -> None:
        """Note whether somebody listens."""
        if active and not self.active and self._heartbeat_ms:
            self.heartbeat_at = now + self._heartbeat_ms
        elif not active:
            self.heartbeat_at = NEVER
        self.active = active

    def delivered(self, size_bytes: int, now: int, out: list[Effect]) -> None:
        """Note a delivery, and ask the client for flow control when it is time."""
        if self._heartbeat_ms:
            self.heartbeat_at = now + self._heartbeat_ms
        if self.rate is not None:
            self.rate.sent(size_bytes)
        if self.window is not None and self.window.sent(size_bytes):
            self.ask(out)

    def ask(self, out: list[Effect]) -> None:
        """Ask the client for flow control, unless it is asked."""
        if self.window is not None and not self.window.asked:
            subject = f"{self._flow_prefix}{self._new_id()[-4:]}"
            self.window.ask(subject)
            out.append(Status(self.inbox, statuses.FLOW_CONTROL_REQUEST, subject))

    def beat(self, now: int, consumer_seq: int, stream_seq: int, out: list[Effect]) -> None:
        """Send a heartbeat: the numbers of the last delivery, and the open flow control request."""
        self.heartbeat_at = now + self._heartbeat_ms
        stalled = self.window.asked if self.window is not None else ""
        block = statuses.idle_heartbeat(consumer_seq, stream_seq, stalled)
        out.append(Status(self.inbox, block))
