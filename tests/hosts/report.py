"""What a run found, as tables for people: that of `tests.torture`, and what each fault cost."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from rich.console import Console
from rich.table import Table

from tests.hosts.cluster import HOSTS
from tests.hosts.faults import HostFault
from tests.hosts.measure import Cost, costs
from tests.hosts.run import HostsResult
from tests.torture.report import RULES, print_report

_ZOMBIE: Final = "zombie"


def print_hosts_report(result: HostsResult, kinds: Sequence[HostFault], console: Console) -> None:
    """Print all numbers, then what each fault cost, and then what is wrong."""
    table = Table(box=None, pad_edge=False)
    for heading in ("fault", "where", "lasted", "pause there", "elsewhere", "fenced"):
        is_number = heading in ("lasted", "pause there", "elsewhere")
        table.add_column(
            heading, justify="right" if is_number else "left", no_wrap=heading != "fenced"
        )
    torture = result.torture
    fencings = [each for each in result.fencings if each.at < torture.well_at]
    for cost in costs(torture.history, torture.faults, fencings, HOSTS):
        _add(table, cost)
    console.print(table)
    print_report(torture, console, kinds, (*RULES, _ZOMBIE))


def _add(table: Table, cost: Cost) -> None:
    fault = cost.fault
    table.add_row(
        fault.kind,
        fault.target,
        f"{fault.until - fault.at:.1f} s",
        f"{cost.there_seconds:.1f} s" if cost.there_seconds else "",
        f"{cost.elsewhere_seconds:.1f} s",
        ", ".join(f"{each.server} ({each.reason})" for each in cost.fenced) or "nobody",
    )
