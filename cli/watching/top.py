"""`holdfast top`: a cluster, live, in a terminal."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import time
from typing import Final

import click

from holdfast.cli.quantities import NumberRange
from holdfast.cli.render import print_json, stdout_console
from holdfast.cli.settings import Settings, client_command
from holdfast.cli.watching.columns import COLUMNS
from holdfast.cli.watching.keyboard import keys
from holdfast.cli.watching.looking import look
from holdfast.cli.watching.top_screen import screen
from holdfast.cli.watching.top_state import TopState
from holdfast.client import Client
from holdfast.protocol.errors import HoldfastError
from holdfast.protocol.monitoring.cluster_rows import to_json

#: Between the two looks of `--once`: parts tell the coordinator once a second.
_ONCE_SECONDS: Final = 2.0


@click.command()
@click.option(
    "--interval",
    type=NumberRange(min=0.2, max=3600),
    default=2.0,
    show_default=True,
    metavar="SECONDS",
    help="Look this often.",
)
@click.option(
    "--sort",
    type=click.Choice(list(COLUMNS)),
    default="server",
    show_default=True,
    metavar="COLUMN",
    help="Sort servers by this column of `report` at first.",
)
@click.option("--once", is_flag=True, help="Print one screen and end, as without a terminal.")
@client_command
def top(settings: Settings, interval: float, sort: str, once: bool) -> None:
    """Watch a cluster live: rates, latencies, takeovers, refusals, cost.

    Keys: s sorts by the next column, r reverses, + and - change the interval, q quits.
    """
    state = TopState(sort, interval)
    if once or settings.json or not sys.stdout.isatty():
        asyncio.run(_once(settings, state))
        assert state.overview is not None
        if settings.json:
            print_json(to_json(state.overview))
        else:
            console = stdout_console()
            console.print(screen(state, console.width, None, live=False))
        return
    asyncio.run(_live(settings, state))


async def _once(settings: Settings, state: TopState) -> None:
    """Look twice, since rates need two looks."""
    async with settings.connect() as client:
        state.looked(await look(client, settings.asking_seconds))
        await asyncio.sleep(_ONCE_SECONDS)
        state.looked(await look(client, settings.asking_seconds))


async def _live(settings: Settings, state: TopState) -> None:
    # Imported here, because no other command needs it.
    from rich.live import Live

    console = stdout_console()
    news, pressed = asyncio.Event(), asyncio.Event()

    def press(key: str) -> None:
        state.pressed(key)
        pressed.set()
        news.set()

    async with settings.connect() as client:
        # A first look that fails ends the command: there is nothing to show.
        state.looked(await look(client, settings.asking_seconds))
        with keys(press), Live(console=console, screen=True, auto_refresh=False) as live:
            async with asyncio.TaskGroup() as tasks:
                watching = tasks.create_task(_watch(client, settings, state, news, pressed))
                while not state.quits:
                    live.update(screen(state, *console.size), refresh=True)
                    news.clear()
                    # Also without news, so that a terminal of another size is filled.
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(1.0):
                            await news.wait()
                watching.cancel()


async def _watch(
    client: Client, settings: Settings, state: TopState, news: asyncio.Event, key: asyncio.Event
) -> None:
    """Look again and again. A coordinator that is away is waited for."""
    # The second look follows soon, because rates need two.
    await asyncio.sleep(min(state.interval_seconds, _ONCE_SECONDS))
    while True:
        began_at = time.monotonic()
        try:
            state.looked(await look(client, settings.asking_seconds))
        except HoldfastError as error:
            state.failed(str(error), time.monotonic())
        news.set()
        # A key may have chosen another interval.
        while (left := began_at + state.interval_seconds - time.monotonic()) > 0:
            key.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(left):
                    await key.wait()
