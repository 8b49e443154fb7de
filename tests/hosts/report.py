"""What a run found, as tables for people: that of `tests.torture`, and what each fault cost."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from rich.console import Console
from rich.table import Table

from tests.hosts.cluster import HOSTS
from tests.hosts.faults import HostFault
from tests.hosts.file_systems.witness import Testimony, longest_sync_seconds
from tests.hosts.measure import Cost, costs
from tests.hosts.run import HostsResult
from tests.torture.report import RULES, print_report

_ZOMBIE: Final = "zombie"


def print_hosts_report(result: HostsResult, kinds: Sequence[HostFault], console: Console) -> None:
    """Print all numbers, then what each fault cost, and then what is wrong."""
    table = Table(box=None, pad_edge=False)
    headings = ["fault", "where", "lasted", "pause there", "elsewhere"]
    if result.testimonies:
        headings.append("plain file")
    for heading in (*headings, "fenced"):
        is_number = heading in headings[2:]
        table.add_column(
            heading, justify="right" if is_number else "left", no_wrap=heading != "fenced"
        )
    torture = result.torture
    fencings = [each for each in result.fencings if each.at < torture.well_at]
    for cost in costs(torture.history, torture.faults, fencings, HOSTS):
        _add(table, cost, result.testimonies)
    console.print(table)
    for testimony in result.testimonies:
        console.print(_sentence(testimony))
    print_report(torture, console, kinds, (*RULES, _ZOMBIE))


def _add(table: Table, cost: Cost, testimonies: Sequence[Testimony]) -> None:
    fault = cost.fault
    sync_seconds = longest_sync_seconds(testimonies, fault.at, cost.until)
    table.add_row(
        fault.kind,
        fault.target,
        f"{fault.until - fault.at:.1f} s",
        f"{cost.there_seconds:.1f} s" if cost.there_seconds else "",
        f"{cost.elsewhere_seconds:.1f} s",
        *([f"{sync_seconds:.1f} s"] if testimonies else []),
        ", ".join(f"{each.server} ({each.reason})" for each in cost.fenced) or "nobody",
    )


def _sentence(testimony: Testimony) -> str:
    """Say what the file system has kept of one host's plain files."""
    lost, unread = len(testimony.lost), ", ".join(testimony.unread)
    errors = ", ".join(f"{error} {count:,}" for error, count in testimony.errors.items())
    return (
        f"plain files of {testimony.host}: {testimony.synced_count:,} records synced, "
        + (f"[red]{lost:,} LOST BY THE FILE SYSTEM[/red]" if lost else "0 lost")
        + (f"; cannot be read: {unread}" if unread else "")
        + (f"; errors: {errors}" if errors else "")
    )
