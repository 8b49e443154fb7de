"""The shell of a server process: options, logging, the event loop, signals, exit codes.

Exit codes: 0 stopped as asked, 1 cannot run (one line on stderr says why), 2 wrong usage.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from holdfast.protocol.bus.bus import Bus
from holdfast.protocol.bus.bus_nats import connect_nats
from holdfast.protocol.bus.login import LOGIN_OPTIONS, NatsLogin, variable
from holdfast.protocol.bus.nats_url import url_of_arguments
from holdfast.protocol.errors import HoldfastError, InvalidArgumentError
from holdfast.protocol.names import check_store
from holdfast.protocol.serving.garbage import CircleCollector
from holdfast.protocol.serving.log_format import LogFormat, formatter
from holdfast.protocol.serving.monitor import Monitor, MonitorAddress
from holdfast.protocol.serving.supervision import Supervision
from holdfast.protocol.subjects import DEFAULT_INBOXES, DEFAULT_NATS, DEFAULT_PREFIX, Inboxes
from holdfast.protocol.work.zones import NOWHERE, ZONE_VARIABLE

try:
    import uvloop
except ImportError:
    _new_event_loop: Callable[[], asyncio.AbstractEventLoop] = asyncio.new_event_loop
else:
    _new_event_loop = uvloop.new_event_loop

#: Takes a function that a signal is to call.
OnSignals = Callable[[Callable[[], object]], None]


@dataclass(frozen=True, slots=True)
class ServerProcess:
    """What a server is given by the process around it."""

    #: Sets the function that a signal calls.
    on_signals: OnSignals
    #: To be set once the server serves.
    ready: asyncio.Event
    #: Is to be told what to watch.
    monitor: Monitor


#: Takes the options, the bus and the process.
Serve = Callable[[argparse.Namespace, Bus, ServerProcess], Awaitable[None]]
#: The same without the bus, for a process that connects by itself.
Work = Callable[[argparse.Namespace, ServerProcess], Awaitable[None]]
#: Other work in the process of a server. What it gets hears no signals, and nobody asks its
#: monitor.
WorkBeside = Callable[[ServerProcess], Awaitable[None]]


def server_parser(program: str, description: str) -> argparse.ArgumentParser:
    """Return a parser with the options that every server has."""
    parser = process_parser(program, description, LOGIN_OPTIONS)
    add_inbox_prefix(parser)
    parser.add_argument(
        "--data", type=Path, required=True, help="the root of the shared file system"
    )
    parser.add_argument(
        "--fence-read",
        choices=("auto", "direct", "plain"),
        default="auto",
        help="how to read fences, terms and dead logs: past this host's cache (direct), through it "
        "(plain), or past it unless the file system is local; default: %(default)s",
    )
    return parser


def process_parser(
    program: str, description: str, login_options: Iterable[str]
) -> argparse.ArgumentParser:
    """Return a parser with the options that every process has that serves until it is stopped, and
    with those `login_options` of LOGIN_OPTIONS."""
    parser = argparse.ArgumentParser(prog=program, description=description)
    _add_nats_options(parser, login_options)
    parser.add_argument(
        "--prefix",
        type=_prefix,
        default=DEFAULT_PREFIX,
        help="the first token of all subjects; default: hf",
    )
    parser.add_argument(
        "--log-level",
        choices=("debug", "info", "warning", "error"),
        default="info",
        help="default: %(default)s",
    )
    parser.add_argument(
        "--log-format",
        choices=tuple(map(str, LogFormat)),
        default=str(LogFormat.TEXT),
        help="json: one object for each line; default: %(default)s",
    )
    parser.add_argument(
        "--monitor",
        type=MonitorAddress.parse,
        metavar="HOST:PORT",
        help="answer /healthz, /readyz and /metrics there; port 0 picks a free one; default: off",
    )
    parser.add_argument(
        "--alive-file",
        type=Path,
        help="touch this file every few seconds while the event loop runs, for a supervisor",
    )
    return parser


def add_inbox_prefix(parser: argparse.ArgumentParser) -> None:
    """Add the option that `inboxes_of` reads."""
    parser.add_argument(
        "--inbox-prefix",
        default=os.environ.get(variable("inbox-prefix"), DEFAULT_INBOXES),
        metavar="TOKEN",
        help=f"the first token of all inboxes; default: {DEFAULT_INBOXES}",
    )


def add_zone(parser: argparse.ArgumentParser, help_text: str) -> None:
    """Add the option for where a process runs, which `check_zone` checks."""
    parser.add_argument(
        "--zone",
        default=os.environ.get(ZONE_VARIABLE, NOWHERE),
        metavar="NAME",
        help=f"where it runs, such as a cloud's availability zone: {help_text}",
    )


def add_direct(parser: argparse.ArgumentParser, what: str) -> None:
    """Add the option that names the folder of direct connections, for `protocol/direct`."""
    parser.add_argument(
        "--direct",
        type=Path,
        metavar="DIR",
        help=f"{what}, by sockets in this folder, which is this user's alone; default: off",
    )


def add_prices(parser: argparse.ArgumentParser) -> None:
    """Add the option that `price_file.read_prices` reads."""
    parser.add_argument(
        "--prices",
        type=Path,
        metavar="FILE",
        help="what requests to the bucket cost, as JSON; default: the prices of Amazon S3",
    )


def _add_nats_options(parser: argparse.ArgumentParser, login_options: Iterable[str]) -> None:
    """Add what says where NATS is and who this is: the environment sets the defaults."""
    nats = parser.add_argument_group("NATS")
    nats.add_argument(
        "--nats",
        type=_nats,
        help=f"a URL, or several; with a password only as {variable('nats')}; "
        f"default: {DEFAULT_NATS}",
    )
    for name in login_options:
        default = os.environ.get(variable(name)) or None
        help_text = LOGIN_OPTIONS[name]
        nats.add_argument(f"--{name}", type=Path, default=default, metavar="FILE", help=help_text)


def login_of(options: argparse.Namespace) -> NatsLogin:
    """Return how a server logs in to NATS. Raises InvalidArgumentError."""
    return NatsLogin.from_options(vars(options))


def inboxes_of(options: argparse.Namespace) -> Inboxes:
    """Return the inboxes of a server, which name the root of all. Raises InvalidArgumentError."""
    return Inboxes.of_cluster(options.inbox_prefix, options.prefix)


def run_server(
    parser: argparse.ArgumentParser, arguments: Sequence[str] | None, serve: Serve
) -> int:
    """Parse, connect, serve until SIGTERM or SIGINT, and return the exit code.

    Raises SystemExit(2) for wrong usage.
    """

    async def work(options: argparse.Namespace, process: ServerProcess) -> None:
        bus = await connect_nats(
            options.nats,
            name=parser.prog.replace(" ", "-"),
            login=login_of(options),
            inboxes=inboxes_of(options),
            patient=True,
            strict=True,
        )
        try:
            await serve(options, bus, process)
        finally:
            await bus.close()

    return run_process(parser, arguments, work)


def run_process(
    parser: argparse.ArgumentParser, arguments: Sequence[str] | None, work: Work
) -> int:
    """Parse, work until SIGTERM or SIGINT, and return the exit code.

    Raises SystemExit(2) for wrong usage.
    """
    options = parsed(parser, arguments)
    # Files of a server are for its user alone (`shared_fs/disk/privacy.py`).
    os.umask(0o077)
    to_stderr = logging.StreamHandler(sys.stderr)
    to_stderr.setFormatter(formatter(LogFormat(options.log_format)))
    logging.basicConfig(level=options.log_level.upper(), handlers=[to_stderr])
    garbage = CircleCollector()
    garbage.begin()
    try:
        with asyncio.Runner(loop_factory=_new_event_loop) as runner:
            runner.run(_run(options, work, garbage))
    except InvalidArgumentError as error:
        # A combination of options that the parser cannot check.
        print(f"{parser.prog}: {error}", file=sys.stderr)
        return 2
    except HoldfastError as error:
        print(f"{parser.prog}: {error}", file=sys.stderr)
        return 1
    except (asyncio.CancelledError, KeyboardInterrupt):
        # A signal that came before there was anything to finish.
        return 0
    finally:
        garbage.end()
    return 0


def parsed(
    parser: argparse.ArgumentParser, arguments: Sequence[str] | None
) -> argparse.Namespace:
    """Return the options of a process. Raises SystemExit(2) for wrong usage."""
    options = parser.parse_args(arguments)
    if options.nats is None:
        # Not a default of the parser, which would refuse its password as it does that of `--nats`.
        options.nats = os.environ.get(variable("nats"), DEFAULT_NATS)
    return options


async def _run(options: argparse.Namespace, work: Work, garbage: CircleCollector) -> None:
    loop = asyncio.get_running_loop()
    task = asyncio.current_task()
    assert task is not None

    supervision = Supervision.of_this_process(options.alive_file)

    def on_signals(stop: Callable[[], object]) -> None:
        def stop_and_say() -> None:
            supervision.stopping()
            stop()

        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stop_and_say)

    on_signals(task.cancel)
    ready = asyncio.Event()
    telling = [
        asyncio.create_task(supervision.keep_telling()),
        asyncio.create_task(supervision.tell_when(ready)),
        asyncio.create_task(garbage.keep_collecting()),
    ]
    monitor = Monitor(options.monitor)
    try:
        async with monitor.listening():
            await work(options, ServerProcess(on_signals, ready, monitor))
    finally:
        for each in telling:
            each.cancel()


def _nats(text: str) -> str:
    try:
        return url_of_arguments(text)
    except HoldfastError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _prefix(text: str) -> str:
    try:
        return check_store(text)
    except HoldfastError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is not a subject prefix") from error
