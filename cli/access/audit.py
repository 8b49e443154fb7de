"""`holdfast audit`: show what operators and tokens did."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Final, NamedTuple

import click

from holdfast.cli.quantities import parse_seconds
from holdfast.cli.render import moment, print_json, print_table, printable
from holdfast.cli.settings import CLIENT_OPTIONS, Settings, pass_settings, shared_options
from holdfast.protocol.access.audit_event import (
    AUDIT_STORE,
    AuditAction,
    AuditEvent,
    AuditOutcome,
)
from holdfast.protocol.errors import MalformedFrameError, NotAllowedError
from holdfast.protocol.names import SYSTEM_TENANT

#: Events of machines whose clocks differ by less are found.
_SKEW_MS: Final = 600_000
_COLUMNS: Final = ("time", "action", "outcome", "who", "tenant", "object", "count", "from", "about")


class _Wanted(NamedTuple):
    """Which events to show."""

    since_ms: int
    tenant: str | None
    token: str | None
    actions: frozenset[str]

    def has(self, event: AuditEvent) -> bool:
        return (
            max(event.time, event.last_time) >= self.since_ms
            and self.tenant in (None, event.tenant)
            and (self.token is None or self.token in (event.token, *_ids(event)))
            and (not self.actions or event.action in self.actions)
        )


@click.command()
@click.option("--follow", is_flag=True, help="Go on with what happens from now, until Ctrl-C.")
@click.option(
    "--since",
    type=parse_seconds,
    default="7d",
    show_default=True,
    metavar="SPAN",
    help="How far back: 90s, 1h, 30d.",
)
@click.option("--tenant", "of_tenant", metavar="NAME", help="Only what concerns this tenant.")
@click.option("--token", "of_token", metavar="ID", help="Only what concerns this token.")
@click.option(
    "--action",
    "actions",
    multiple=True,
    type=click.Choice([each.value for each in AuditAction]),
    help="Only this; repeatable.",
)
@shared_options(*(name for name in CLIENT_OPTIONS if name != "tenant"))
@pass_settings
def audit(
    settings: Settings,
    follow: bool,
    since: int,
    of_tenant: str | None,
    of_token: str | None,
    actions: tuple[str, ...],
) -> None:
    """Show the audit log: what operators and tokens did, when, from where, and how it ended.

    Needs an operator's token, unless the cluster is open.
    """
    token = settings.token
    if token is not None and not token.token.is_operator:
        reason = "only an operator's token may"
        raise NotAllowedError(action="read", subject="the audit log", reason=reason)
    since_ms = int((time.time() - since) * 1000)
    wanted = _Wanted(since_ms, of_tenant, of_token, frozenset(actions))
    asyncio.run(_show(replace(settings, tenant=SYSTEM_TENANT), wanted, follow))


async def _show(settings: Settings, wanted: _Wanted, follow: bool) -> None:
    async with settings.connect() as client:
        log = client.stream(AUDIT_STORE.name)
        found = []
        next_seq = None
        async for message in log.get_all(start_time=max(0, wanted.since_ms - _SKEW_MS)):
            next_seq = message.seq + 1
            event = _read(message.value)
            if wanted.has(event):
                found.append(event)
        if not follow:
            _print_all(settings, found)
            return
        for event in found:
            _print_one(settings, event)
        if next_seq is None:
            next_seq = (await log.head()).last_seq + 1
        async with log.subscribe(start_seq=next_seq) as changes:
            async for change in changes:
                if change.message is not None and wanted.has(event := _read(change.message.value)):
                    _print_one(settings, event)


def _read(value: bytes) -> AuditEvent:
    """Return the event of a message. What a later version adds is left out. An open cluster lets
    anybody append anything, so what is no event is shown as such."""
    try:
        return AuditEvent.from_wire(json.loads(value))
    except (ValueError, RecursionError, MalformedFrameError):
        reason = "the message is no event"
        return AuditEvent("?", 0, "?", AuditOutcome.FAILED, "?", "?", reason=reason)


def _print_all(settings: Settings, events: list[AuditEvent]) -> None:
    if settings.json:
        print_json({"events": [event_row(event) for event in events]})
        return
    print_table(
        _COLUMNS,
        [tuple(_cells(event)) for event in events],
        right=("count",),
        states=("outcome",),
        optional=("from", "count", "about"),
    )


def _print_one(settings: Settings, event: AuditEvent) -> None:
    if settings.json:
        print_json(event_row(event))
    else:
        click.echo("  ".join(_cells(event)))


def event_row(event: AuditEvent) -> dict[str, Any]:
    """Return an event as JSON, with all fields."""
    return {name: getattr(event, name) for name in event.__dataclass_fields__}


def _cells(event: AuditEvent) -> Iterator[str]:
    yield moment(event.time)[:19]
    yield printable(event.action)
    yield printable(event.outcome)
    yield printable(_who(event))
    yield printable(event.tenant) or "-"
    details = dict(event.details)
    object_ = event.store or details.pop("server", "") or details.pop("token", "")
    yield printable(str(object_)) or "-"
    yield f"{event.count:,}"
    yield printable(event.address or f"{event.process} on {event.host}")
    about = [event.reason, *(f"{name}={value}" for name, value in details.items())]
    yield printable(" ".join(each for each in about if each)) or "-"


def _who(event: AuditEvent) -> str:
    if event.token:
        return f"{event.subject} ({event.token[:8]})" if event.subject else event.token
    is_anybody = event.mode == "open" and event.action.startswith("store.")
    return event.user or ("anybody" if is_anybody else "-")


def _ids(event: AuditEvent) -> tuple[str, ...]:
    """Return the ids of tokens that an event is about, beside that of who did it."""
    told = event.details.get("token")
    return (*event.reason.split(), *([told] if isinstance(told, str) else []))
