"""Print the changes of a store, or of all stores of a pattern, for `stream tail` and `kv watch`.

Each change is printed when it arrives, as a line, or as an object with --json. With a pattern, each
line or object names its store.
"""

from __future__ import annotations

import sys
from typing import Final

import click

from holdfast.cli.render import change_json, change_line, print_bytes, print_json
from holdfast.cli.settings import Settings
from holdfast.client import Change, PatternSubscription, StoreChange, Subscription

#: A revision to continue after; 0 is the beginning.
REVISION: Final = click.IntRange(0, (1 << 63) - 1)


def is_pattern(name: str) -> bool:
    """Return whether `name` is a pattern."""
    return any(token in ("*", ">") for token in name.split("."))


async def follow(
    settings: Settings,
    changes: Subscription | PatternSubscription,
    limit: int | None,
    *,
    what: str,
    raw: bool = False,
) -> None:
    """Print changes of `what` until Ctrl-C, or `limit` of them. With `raw`, print only the new
    values of messages; a line on stderr names each large value, which a change does not contain."""
    shown = 0
    if sys.stderr.isatty():
        click.echo(f"following {what}, until Ctrl-C", err=True)
    async with changes:
        async for found in changes:
            if isinstance(found, StoreChange):
                _show(settings, found.change, raw, found.store)
            else:
                _show(settings, found, raw)
            shown += 1
            if shown == limit:
                break


def show_change(settings: Settings, change: Change) -> None:
    """Print one change."""
    _show(settings, change, raw=False)


def _show(settings: Settings, change: Change, raw: bool, store: str | None = None) -> None:
    if settings.json:
        named = {} if store is None else {"store": store}
        print_json(named | change_json(change))
    elif not raw:
        click.echo(change_line(change) if store is None else f"{store}  {change_line(change)}")
    elif change.message is not None and change.message.large is None:
        print_bytes(change.message.value)
    elif change.message is not None:
        click.echo(f"left out: {change_line(change)}", err=True)
