"""What the streams of a gateway share: its connections, its limits, its tasks and its clock."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

from holdfast.client import Client
from holdfast.gateway.jetstream.api.advisories import Advisories, Advisory
from holdfast.gateway.jetstream.api.limits import NO_LIMITS, AccountLimits
from holdfast.gateway.jetstream.origins.directory import OriginDirectory
from holdfast.gateway.jetstream.publishing.publish_load import PublishLoad
from holdfast.gateway.jetstream.streams.delivery_fence import Presence
from holdfast.gateway.jetstream.streams.new_stream import NewStream
from holdfast.gateway.jetstream.streams.outflow import Outflow
from holdfast.gateway.jetstream.wire.ports import ClientPort, LeafPort

#: The start of all requests of JetStream's API.
API_START = "$JS.API."


@dataclass(frozen=True, slots=True)
class GatewayContext:
    """One gateway, as its streams see it."""

    client: ClientPort
    leaf: LeafPort
    #: The tenant's stores.
    holdfast: Client
    presence: Presence
    #: The streams that its streams copy.
    origins: OriginDirectory
    #: Milliseconds since the epoch.
    now_ms: Callable[[], int]
    #: Runs work in a task that ends with the gateway.
    spawn: Callable[[Coroutine[Any, Any, None]], None]
    #: The JetStream domain, or "".
    domain: str = ""
    limits: AccountLimits = NO_LIMITS
    #: Subjects that no stream may have, and nothing is republished to: holdfast's own.
    reserved: tuple[str, ...] = ()
    #: The persist server in whose process it works, or "".
    beside: str = ""
    #: What all publishers of the gateway have received and not answered.
    load: PublishLoad = field(default_factory=PublishLoad)
    #: The served streams that are followed for their consumers.
    followed: set[Any] = field(default_factory=set)
    #: The streams that are being created, by their names.
    new_streams: dict[str, NewStream] = field(default_factory=dict)
    outflow: Outflow = field(init=False)
    #: Who waits for the leaf.
    deliveries: Outflow = field(init=False)
    advisories: Advisories = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "outflow", Outflow(self.client))
        object.__setattr__(self, "deliveries", Outflow(self.leaf))
        object.__setattr__(self, "advisories", Advisories(self.domain))

    @property
    def api_starts(self) -> tuple[str, ...]:
        """Where requests come from: clients with a domain have another start."""
        if not self.domain:
            return (API_START,)
        return (API_START, f"$JS.{self.domain}.API.")

    def new_event(self) -> tuple[str, int]:
        """Return the id and the time of a new advisory."""
        return secrets.token_hex(11), self.now_ms()

    def advise(self, advisory: Advisory) -> None:
        """Publish an advisory."""
        self.client.publish(advisory.subject, advisory.body)
