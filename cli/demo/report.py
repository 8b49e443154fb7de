"""The report of the demo: a table for people, JSON for programs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any, NamedTuple

from rich.table import Table

from holdfast.cli.demo.export import TableVerdict
from holdfast.cli.demo.plan import DemoPlan, Skipped
from holdfast.cli.demo.verify import DemoVerdict
from holdfast.cli.render import print_json, size, stdout_console


class AckTimes(NamedTuple):
    """One append: the file, and when it was sent and acknowledged, in monotonic seconds."""

    file: int
    sent_at: float
    acked_at: float


@dataclass(frozen=True, slots=True)
class Kill:
    """The SIGKILL in the middle: the server, the monotonic time, how many messages were acked, and
    the files whose streams it owned at that time."""

    server: str
    at: float
    acked_messages: int
    files: frozenset[int]


@dataclass(frozen=True, slots=True)
class DemoReport:
    """All numbers of one run."""

    plan: DemoPlan
    server_count: int
    writer_count: int
    acks: Sequence[AckTimes]
    kill: Kill | None
    verdict: DemoVerdict
    changes_followed: int
    follower_problems: Sequence[str]
    total_seconds: float
    #: None if nothing was exported, because of `not_exported`.
    table: TableVerdict | None = None
    not_exported: str | None = None

    @property
    def problems(self) -> list[str]:
        """Everything that is wrong."""
        found = [*self.verdict.problems]
        found += [f"follower: {problem}" for problem in self.follower_problems]
        if self.verdict.files_identical != len(self.plan.files) and not found:
            found.append("not all files are identical")
        if self.table is not None:
            found += self.table.problems
        return found

    def print(self, *, as_json: bool) -> None:
        """Print the report to stdout."""
        if as_json:
            print_json(self.to_json())
            return
        table = Table(box=None, show_header=False, pad_edge=False)
        for name, value in self._rows():
            table.add_row(name, value)
        console = stdout_console()
        console.print(table)
        for problem in self.problems:
            console.print(f"WRONG: {problem}")

    def to_json(self) -> dict[str, Any]:
        write_seconds = self._write_seconds()
        return {
            "ok": not self.problems,
            "repository": self.plan.repository,
            "servers": self.server_count,
            "writers": self.writer_count,
            "commits": self.plan.commit_count,
            "files": len(self.plan.files),
            "messages": self.plan.message_count,
            "bytes": self.plan.content_bytes,
            "skipped": {reason.value: self.plan.skipped[reason] for reason in Skipped},
            "write_seconds": round(write_seconds, 3),
            "messages_per_second": round(_rate(len(self.acks), write_seconds), 1),
            "ack_p50_ms": _ms(self._ack_seconds(0.5)),
            "ack_p99_ms": _ms(self._ack_seconds(0.99)),
            "ack_max_ms": _ms(self._ack_seconds(1.0)),
            "killed_server": self.kill.server if self.kill else None,
            "killed_after_messages": self.kill.acked_messages if self.kill else None,
            "pause_ms": _ms(self.pause_seconds()),
            "lost": self.verdict.lost,
            "duplicated": self.verdict.duplicated,
            "files_identical": self.verdict.files_identical,
            "kv_identical": self.verdict.kv_identical,
            "changes_followed": self.changes_followed,
            "followed_exactly_once": not self.follower_problems,
            "exported": None if self.table is None else asdict(self.table),
            "not_exported": self.not_exported,
            "problems": self.problems,
            "total_seconds": round(self.total_seconds, 3),
        }

    def pause_seconds(self) -> float | None:
        """The longest time after the kill without an ack for any stream of the killed server, or
        None if nothing was written to them afterwards."""
        if self.kill is None:
            return None
        kill = self.kill
        later = sorted(
            one.acked_at for one in self.acks if one.file in kill.files and one.acked_at > kill.at
        )
        gaps = [after - before for before, after in pairwise([kill.at, *later])]
        return max(gaps, default=None)

    def _rows(self) -> list[tuple[str, str]]:
        plan, verdict = self.plan, self.verdict
        write_seconds = self._write_seconds()
        skipped = ", ".join(
            f"{count} {reason.value.replace('_', ' ')}" for reason, count in plan.skipped.items()
        )
        files = len(plan.files)
        followed = "exactly once, in order" if not self.follower_problems else "WRONG"
        return [
            ("repository", plan.repository),
            ("history", f"{plan.commit_count:,} commits, {files:,} files"),
            (
                "stored",
                (
                    f"{plan.message_count:,} messages, {size(plan.content_bytes)}, "
                    f"in {files:,} streams; {len(plan.latest()):,} keys in a kv"
                ),
            ),
            ("skipped", skipped or "nothing"),
            (
                "written",
                (
                    f"in {write_seconds:.2f} s by {self.writer_count} writers to "
                    f"{self.server_count} servers: {_rate(len(self.acks), write_seconds):,.0f} "
                    "messages/s, "
                    "each with its kv entry"
                ),
            ),
            ("ack", f"p50 {self._show(0.5)}, p99 {self._show(0.99)}, longest {self._show(1.0)}"),
            ("kill", self._kill_row()),
            (
                "read back",
                (
                    f"{verdict.lost} lost, {verdict.duplicated} duplicated, "
                    f"{verdict.files_identical:,} of {files:,} files identical, "
                    f"kv {'identical' if verdict.kv_identical else 'DIFFERENT'}"
                ),
            ),
            (
                "followed",
                f"{self.changes_followed:,} of {plan.message_count:,} changes, {followed}",
            ),
            *self._table_rows(),
            ("total", f"{self.total_seconds:.1f} s"),
        ]

    def _table_rows(self) -> list[tuple[str, str]]:
        table = self.table
        if table is None:
            return [("table", f"none: {self.not_exported}")]
        files = len(self.plan.files)
        busiest = ", ".join(
            f"{path} {versions:,} times ({size(size_bytes)})"
            for path, versions, size_bytes in table.busiest
        )
        return [
            (
                "table",
                (
                    f"{table.rows:,} changes exported in {table.seconds:.1f} s: "
                    f"{table.files:,} files, {size(table.bytes)}"
                ),
            ),
            (
                "rebuilt",
                (
                    f"by Spark, from the table: {table.documents_identical:,} of {files:,} files "
                    f"identical, kv {'identical' if table.kv_identical else 'DIFFERENT'}"
                ),
            ),
            ("queried", f"most often changed: {busiest}"),
        ]

    def _kill_row(self) -> str:
        if self.kill is None:
            return "none"
        pause = self.pause_seconds()
        shown = (
            "nothing was written to its streams afterwards"
            if pause is None
            else f"its {len(self.kill.files):,} streams paused for {pause * 1000:,.0f} ms"
        )
        return f"SIGKILL to {self.kill.server} after {self.kill.acked_messages:,} messages: {shown}"

    def _write_seconds(self) -> float:
        if not self.acks:
            return 0.0
        return max(one.acked_at for one in self.acks) - min(one.sent_at for one in self.acks)

    def _ack_seconds(self, share: float) -> float | None:
        """Return the ack latency that `share` of all appends did not exceed."""
        ordered = sorted(one.acked_at - one.sent_at for one in self.acks)
        return ordered[min(int(share * len(ordered)), len(ordered) - 1)] if ordered else None

    def _show(self, share: float) -> str:
        seconds = self._ack_seconds(share)
        return "-" if seconds is None else f"{seconds * 1000:,.1f} ms"


def _rate(count: int, seconds: float) -> float:
    return count / seconds if seconds > 0 else 0.0


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1000, 2)
