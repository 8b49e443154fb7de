"""Gateways tell the coordinator what they count, as clients of their tenant.

The auth service, and a gateway that has no rights but those of its users' tokens, belong to no
tenant: they tell it over a connection of their own, as a user of NATS that may do nothing else.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import platform
import re
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Protocol

from holdfast.client.wire.router import Router
from holdfast.protocol.access.nats_permissions import REPORTS_INBOX
from holdfast.protocol.bus.bus_nats import connect_nats
from holdfast.protocol.bus.login import NatsLogin
from holdfast.protocol.errors import HoldfastError, UnknownOperationError
from holdfast.protocol.limits import REPORT_SECONDS
from holdfast.protocol.monitoring.counting import Statistics
from holdfast.protocol.monitoring.telling import encode_report
from holdfast.protocol.serving.trouble import START_SECONDS, Trouble
from holdfast.protocol.subjects import CLUSTER_TENANT, Inboxes, Subjects

logger = logging.getLogger("holdfast.gateway")

#: How often to try again to log in.
_LOGIN_SECONDS: Final = 60.0


def gateway_name() -> str:
    """Return a name for this process: gateways have none of their own."""
    host = re.sub(r"[^A-Za-z0-9-]+", "-", platform.node()).strip("-")[:48] or "gateway"
    return f"{host}-{os.getpid()}"


class Reporter(Protocol):
    """Whoever may tell the coordinator something."""

    async def tell_statistics(self, kind: str, name: str, report: bytes) -> None:
        """Tell what a part counts."""


@dataclass(frozen=True, slots=True)
class ReportingUser:
    """The user of NATS that may tell the coordinator what a part counts, and nothing else."""

    nats: str
    #: How the part reaches NATS: its TLS, not its identity.
    login: NatsLogin
    nkey: Path
    prefix: str
    #: The first token of the cluster's inboxes.
    inboxes: str

    async def keep_reporting(self, statistics: Statistics) -> None:
        """Tell until cancelled, or until a coordinator of an earlier version refuses. A NATS that
        does not let this user in, because its configuration is of an earlier version, is asked
        again now and then."""
        unheard = Trouble(logger, "gateway.not_told", patience_seconds=START_SECONDS)
        while True:
            try:
                async with self._connected() as reporter:
                    unheard.over()
                    await keep_reporting(reporter, statistics)
                return
            except HoldfastError as error:
                unheard.note("reason=%s", error)
            await asyncio.sleep(_LOGIN_SECONDS)

    @contextlib.asynccontextmanager
    async def _connected(self) -> AsyncIterator[Reporter]:
        login = replace(self.login, nkey=self.nkey, credentials=None)
        inboxes = Inboxes(self.inboxes, own=REPORTS_INBOX)
        bus = await connect_nats(
            self.nats, name="holdfast-reports", login=login, inboxes=inboxes, patient=True
        )
        try:
            subjects = Subjects(self.prefix, inboxes=self.inboxes)
            yield _ClusterReporter(Router(bus, subjects, CLUSTER_TENANT))
        finally:
            await bus.close()


class _ClusterReporter:
    """Tells the coordinator something in the name of no tenant."""

    def __init__(self, router: Router) -> None:
        self._router = router

    async def tell_statistics(self, kind: str, name: str, report: bytes) -> None:
        await self._router.report(kind, name, report)


async def keep_reporting(reporter: Reporter, statistics: Statistics) -> None:
    """Tell until cancelled, or until a coordinator of an earlier version refuses."""
    untold = Trouble(logger, "gateway.not_told", patience_seconds=START_SECONDS)
    while True:
        try:
            report = encode_report(statistics)
            await reporter.tell_statistics(statistics.kind, statistics.name, report)
        except UnknownOperationError:
            return
        except HoldfastError as error:
            untold.note("reason=%s", error)
        else:
            untold.over()
        await asyncio.sleep(REPORT_SECONDS)
