"""The screen of `holdfast top`: an overview as lines and tables of a given width and height."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from holdfast.cli.render import fitted_table, printable
from holdfast.cli.watching.columns import (
    HEADS,
    NUMBERS,
    OPTIONAL,
    count,
    duration,
    milliseconds,
    percent,
    rate,
    sorted_rows,
    table_rows,
)
from holdfast.cli.watching.top_state import TopState
from holdfast.protocol.monitoring.cluster_rows import Latency, Overview, PartRow
from holdfast.protocol.monitoring.happenings import Gravity

if TYPE_CHECKING:
    from rich.console import RenderableType

_KEYS: Final = "s sort   r reverse   + - interval   q quit"
_STYLES: Final = {
    Gravity.NOTE: "dim",
    Gravity.WARNING: "yellow",
    Gravity.CRITICAL: "bold red",
}
#: What is left for happenings, at least, however many servers there are.
_LEAST_HAPPENINGS: Final = 3
#: Between two facts of a line.
_GAP: Final = "   "
_PART_HEADS: Final = ("part", "name", "host", "heartbeat", "requests/s", "connections", "cpu")


def screen(state: TopState, width: int, height: int | None, *, live: bool = True) -> RenderableType:
    """Return what to show. With a `height`, it fits in."""
    from rich.console import Group
    from rich.text import Text

    found = state.overview
    if found is None:
        return Text(state.trouble or "asking the coordinator ...", "yellow")
    lines: list[RenderableType] = [
        Text(_fit(line, width), "bold" if number == 0 else "")
        for number, line in enumerate(_wrapped(_head_lines(state, found), width))
    ]
    if state.trouble:
        silent = f"nothing new for {duration(state.silent_seconds)}: {state.trouble}"
        lines.append(Text(_fit(silent, width), "bold red"))
    lines.append(Text(""))
    rows = sorted_rows(found.servers, state.order, upside_down=state.upside_down)
    parts = list(found.parts)
    if height is not None:
        room = height - len(lines) - len(parts) - _LEAST_HAPPENINGS - 6
        rows = rows[: max(1, room)]
    table, _ = fitted_table(
        HEADS, table_rows(found, rows), width, right=NUMBERS, states=("state",), optional=OPTIONAL
    )
    lines.append(table)
    hidden = len(found.servers) - len(rows)
    if hidden > 0:
        lines.append(Text(f"and {hidden:,} servers more: holdfast report", "dim"))
    if parts:
        lines += [Text(""), _part_table(parts, width)]
    used = len(lines) + len(rows) + len(parts) + 2
    room = 12 if height is None else max(0, height - used - 2)
    if state.happened and room:
        lines.append(Text(""))
        for each in list(state.happened)[-room:]:
            text = f"{_clock(each.time_ms)}  {printable(each.subject)} {printable(each.text)}"
            lines.append(Text(_fit(text, width), _STYLES[each.severity]))
    if live:
        lines += [Text(""), Text(_fit(_KEYS, width), "dim")]
    return Group(*lines)


def _head_lines(state: TopState, found: Overview) -> Iterator[str]:
    totals = found.totals
    servers = ", ".join(f"{number:,} {word}" for word, number in totals.servers_by_state.items())
    order = f"{state.order}{', reversed' if state.upside_down else ''}"
    yield (
        f"holdfast top   {_clock(found.time_ms)}   every {state.interval_seconds:g} s   by {order}"
    )
    yield "   ".join(
        [
            f"servers {servers or 'none'}",
            f"stores {totals.assigned_stores:,}, {totals.open_stores:,} open",
            f"{rate(totals.operations_per_second)} ops/s",
            *_optional("refused {}/s", totals.refused_per_second, rate),
        ]
    )
    stages = [f"{stage} {_quantiles(each)}" for stage, each in totals.append_stages.items()]
    if totals.sync is not None:
        stages.append(f"log sync {_quantiles(totals.sync)}")
    if stages:
        yield "ms p50/p99   " + "   ".join(stages)
    facts = [
        *_optional("takeovers {}", totals.takeovers, count),
        *_optional("fences {}", totals.fences, count),
        *_optional("followers {}", totals.followers, count),
        *_optional("consumers {}", totals.consumers, count),
        *_optional("their lag {}", totals.consumers_lag, count),
        *_optional("snapshot lag {}", totals.snapshot_lag_seconds, duration),
    ]
    if found.cost is not None:
        facts.append(f"bucket ${found.cost.dollars_per_day:,.2f} a day")
    if facts:
        yield "   ".join(facts)
    for word, numbers in (("busy", totals.busy_by_cause), ("errors", totals.refused_by_code)):
        if numbers:
            yield f"{word} a second   {_by_size(numbers)}"


def _wrapped(lines: Iterator[str], width: int) -> Iterator[str]:
    """Yield lines that fit, broken between facts."""
    for line in lines:
        here = ""
        for fact in line.split(_GAP):
            longer = f"{here}{_GAP}{fact}" if here else fact
            if here and len(longer) > width:
                yield here
                longer = f"  {fact}"
            here = longer
        yield here


def _optional(text: str, value: float | None, shown: Callable[[float], str]) -> list[str]:
    return [] if value is None else [text.format(shown(value))]


def _by_size(numbers: Mapping[str, float]) -> str:
    ordered = sorted(numbers.items(), key=lambda pair: -pair[1])
    return "   ".join(f"{printable(word)} {rate(number)}" for word, number in ordered)


def _quantiles(latency: Latency) -> str:
    return f"{milliseconds(latency.p50)}/{milliseconds(latency.p99)}"


def _part_table(parts: list[PartRow], width: int) -> RenderableType:
    table, _ = fitted_table(
        _PART_HEADS,
        [
            (
                part.kind.replace("_", " "),
                printable(part.name),
                printable(part.host),
                duration(part.heartbeat_age_seconds),
                "-" if part.requests_per_second is None else rate(part.requests_per_second),
                "-" if part.connections is None else count(part.connections),
                "-" if part.cpu_share is None else percent(part.cpu_share),
            )
            for part in parts
        ],
        width,
        right=("heartbeat", "requests/s", "connections", "cpu"),
        optional=("host", "connections", "heartbeat", "cpu", "requests/s"),
    )
    return table


def _fit(text: str, width: int) -> str:
    return text if len(text) <= width else f"{text[: max(0, width - 3)]}..."


def _clock(time_ms: int) -> str:
    return datetime.fromtimestamp(time_ms / 1000, UTC).astimezone().strftime("%H:%M:%S")
