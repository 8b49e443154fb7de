"""The columns of tables over all servers: what each shows, sorts by, and adds up to. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from holdfast.cli.render import size
from holdfast.protocol.control import ServerState
from holdfast.protocol.monitoring.cluster_rows import ClusterTotals, Latency, Overview, ServerRow
from holdfast.protocol.work.roles import roles_shown

_UNKNOWN: Final = "-"
_Number = float | None


@dataclass(frozen=True, slots=True)
class Column:
    """One column. Numbers are sorted with the largest first, texts by the alphabet."""

    #: The word for `--sort`.
    name: str
    value: Callable[[ServerRow], float | str | None]
    #: Of the row of totals; None if a total means nothing.
    total: Callable[[Overview], _Number] | None
    shown: Callable[[float], str]

    @property
    def head(self) -> str:
        """The words above the column."""
        return self.name.replace("-", " ")

    def cell(self, row: ServerRow) -> str:
        """Return the text for a server."""
        value = self.value(row)
        return value if isinstance(value, str) else self._text(value)

    def total_cell(self, found: Overview) -> str:
        """Return the text for all servers."""
        return "" if self.total is None else self._text(self.total(found))

    def _text(self, value: _Number) -> str:
        return _UNKNOWN if value is None else self.shown(value)


def count(value: float) -> str:
    return f"{value:,.0f}"


def rate(value: float) -> str:
    """Return a rate a second: small ones with a digit, since 0.3 is not nothing."""
    return f"{value:,.1f}" if 0 < value < 10 else f"{value:,.0f}"


def milliseconds(seconds: float) -> str:
    """Return a time in ms, with three digits that count."""
    ms = seconds * 1000
    return f"{ms:.2f}" if ms < 10 else f"{ms:.1f}" if ms < 100 else f"{ms:,.0f}"


def duration(seconds: float) -> str:
    """Return a time for people: `0.3 s`, `4 min`, `3 h`, `12 d`."""
    for unit, length, most in (("s", 1, 100), ("min", 60, 100), ("h", 3600, 48)):
        if seconds < length * most:
            amount = seconds / length
            return f"{amount:.1f} {unit}" if unit == "s" and amount < 10 else f"{amount:.0f} {unit}"
    return f"{seconds / 86_400:.0f} d"


def percent(share: float) -> str:
    return f"{share * 100:.0f} %"


def _bytes(value: float) -> str:
    return size(int(value))


def _p50(latency: Latency | None) -> float | None:
    return None if latency is None else latency.p50


def _p99(latency: Latency | None) -> float | None:
    return None if latency is None else latency.p99


def _summed(value: Callable[[ServerRow], _Number]) -> Callable[[Overview], _Number]:
    def total(found: Overview) -> _Number:
        known = [each for row in found.servers if (each := value(row)) is not None]
        return sum(known) if known else None

    return total


def _alive(found: Overview) -> Iterator[ServerRow]:
    return (row for row in found.servers if row.info.state != ServerState.DEAD)


def _told(value: Callable[[ClusterTotals], _Number]) -> Callable[[Overview], _Number]:
    return lambda found: value(found.totals)


#: In the order in which they are shown.
COLUMNS: Final[dict[str, Column]] = {
    column.name: column
    for column in (
        Column("server", lambda row: row.info.server, None, count),
        Column("state", lambda row: row.info.state, None, count),
        Column("zone", lambda row: row.info.zone or _UNKNOWN, None, count),
        Column("roles", lambda row: roles_shown(row.info.roles), None, count),
        Column(
            "work", lambda row: row.info.claims, _summed(lambda row: row.info.claims), count
        ),
        Column("host", lambda row: row.host or _UNKNOWN, None, count),
        Column(
            "heartbeat",
            lambda row: row.info.heartbeat_age_seconds,
            lambda found: max(
                (each.info.heartbeat_age_seconds for each in _alive(found)), default=None
            ),
            duration,
        ),
        Column(
            "stores",
            lambda row: row.info.assigned_stores,
            _told(lambda totals: totals.assigned_stores),
            count,
        ),
        Column(
            "open",
            lambda row: row.info.open_stores,
            _told(lambda totals: totals.open_stores),
            count,
        ),
        Column(
            "ops/s",
            lambda row: row.operations_per_second,
            _told(lambda totals: totals.operations_per_second),
            rate,
        ),
        Column(
            "append-ms",
            lambda row: row.append_seconds,
            _told(lambda totals: totals.append_seconds),
            milliseconds,
        ),
        Column(
            "sync-p50",
            lambda row: _p50(row.sync),
            _told(lambda totals: _p50(totals.sync)),
            milliseconds,
        ),
        Column(
            "sync-p99",
            lambda row: _p99(row.sync),
            _told(lambda totals: _p99(totals.sync)),
            milliseconds,
        ),
        Column(
            "written/s",
            lambda row: row.written_bytes_per_second,
            _summed(lambda row: row.written_bytes_per_second),
            _bytes,
        ),
        Column(
            "log", lambda row: row.info.log_bytes, _told(lambda totals: totals.log_bytes), _bytes
        ),
        Column(
            "refused/s",
            lambda row: row.refused_per_second,
            _summed(lambda row: row.refused_per_second),
            rate,
        ),
        Column(
            "to-snapshot",
            lambda row: row.info.snapshot_backlog,
            _told(lambda totals: totals.snapshot_backlog),
            count,
        ),
        Column(
            "lag",
            lambda row: row.snapshot_lag_seconds,
            _told(lambda totals: totals.snapshot_lag_seconds),
            duration,
        ),
        Column(
            "bucket/h",
            lambda row: row.info.bucket_requests,
            _told(lambda totals: totals.bucket_requests_per_hour),
            count,
        ),
        Column(
            "takeovers", lambda row: row.takeovers, _told(lambda totals: totals.takeovers), count
        ),
        Column("cpu", lambda row: row.cpu_share, _summed(lambda row: row.cpu_share), percent),
        Column(
            "memory", lambda row: row.memory_bytes, _summed(lambda row: row.memory_bytes), _bytes
        ),
    )
}
HEADS: Final = [column.head for column in COLUMNS.values()]
#: Columns of numbers, which are aligned to the right.
_TEXTS: Final = ("server", "state", "zone", "roles", "host")
NUMBERS: Final = [head for head in HEADS if head not in _TEXTS]
#: What a narrow terminal leaves out, the first one first.
OPTIONAL: Final = (
    *("host", "work", "zone", "roles", "bucket/h", "sync p50", "to snapshot", "takeovers"),
    *("written/s", "memory", "lag", "log", "refused/s", "heartbeat", "open", "cpu"),
    *("sync p99", "append ms"),
)


def sorted_rows(
    rows: Iterable[ServerRow], name: str, *, upside_down: bool = False
) -> list[ServerRow]:
    """Return rows by a column: numbers from the largest, texts from A. Rows of which it is not
    known come last, either way."""
    column = COLUMNS[name]
    known = [row for row in rows if column.value(row) is not None]
    unknown = [row for row in rows if column.value(row) is None]
    is_text = any(isinstance(column.value(row), str) for row in known)
    known.sort(key=lambda row: row.info.server)
    known.sort(key=column.value, reverse=is_text == upside_down)  # type: ignore[arg-type]
    return known + unknown


def table_rows(found: Overview, rows: Sequence[ServerRow]) -> list[list[str]]:
    """Return the cells of servers, and of a last row of totals."""
    cells = [[column.cell(row) for column in COLUMNS.values()] for row in rows]
    totals = [column.total_cell(found) for column in COLUMNS.values()]
    totals[0] = f"total of {len(rows):,}"
    return [*cells, totals]
