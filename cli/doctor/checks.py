"""The checks of `holdfast doctor`: the code, subject, advice and findings of each.

A code is stable: no other check ever gets it. docs/cli.md has the catalogue as a table, and
docs/runbook.md the actions; tests compare both. Memory is bounded: a check keeps the number of its
findings, and the first few of each severity as examples.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, Final, NamedTuple

#: How many findings of each severity a check keeps.
MAX_EXAMPLES: Final = 5


class Severity(IntEnum):
    """How bad a finding is. The numbers order them, and two are exit codes."""

    #: Worth knowing, nothing to do: the check is still ok.
    NOTE = 0
    WARNING = 1
    CRITICAL = 2

    @property
    def word(self) -> str:
        return self.name.lower()


@dataclass(slots=True)
class Totals:
    """Counts of what was checked. `in_use` counts files that a process has open;
    they are skipped."""

    stores: int = 0
    bytes: int = 0
    in_use: int = 0
    waiting_logs: int = 0
    waiting_log_bytes: int = 0
    running_servers: int = 0


class Check(NamedTuple):
    """One check. `advice` says what to do about a warning or worse."""

    code: str
    name: str
    about: str
    advice: str


FORMAT = Check(
    "HF-001",
    "format",
    "the FORMAT file shows that holdfast made this folder, in a format that this version knows",
    "name the right folder with --data; upgrade holdfast if the format is newer; restore a missing "
    "FORMAT file from a backup",
)
ACCESS = Check(
    "HF-030",
    "access",
    "no other user of the machine can enter the folder",
    "run chmod go= FOLDER as its owner; run all parts as that user; give others access with an ACL "
    "(setfacl) if you want that",
)
FILE_SYSTEM = Check(
    "HF-002",
    "file system",
    "the kind of file system, and whether other hosts share it",
    "if several hosts share it, make sure that POSIX locks work between them and that it has "
    "close-to-open consistency, as NFSv4 does; otherwise run all parts on one host",
)
ROOM = Check(
    "HF-003", "room", "free space and free inodes", "free some space, or servers will refuse writes"
)
SYNC = Check(
    "HF-004",
    "sync",
    "a new file can be made durable",
    "check the disk and the kernel's log; run the doctor as the user of the servers",
)
LOCKS = Check(
    "HF-005",
    "locks",
    "a POSIX lock excludes another process on this host",
    "do not run holdfast here: mount the file system with locks",
)
OPEN_FENCES = Check(
    "HF-006",
    "open fences",
    "every incarnation with an open fence has a running process",
    "start the coordinator and a persist server: they fence the incarnation and apply its log",
)
MISSING_FENCES = Check(
    "HF-007",
    "missing fences",
    "every incarnation with a log has a fence file",
    "nothing is lost: the incarnation counts as fenced; find out who removed the file",
)
LOG_DAMAGE = Check(
    "HF-008",
    "log damage",
    "the logs of ended incarnations can be read from end to end",
    "check the disk; restore the stores under HF-021 and HF-029 from a backup; or accept the loss "
    "with an empty file named loss-accepted beside the log's folder",
)
DEAD_LOGS = Check(
    "HF-009",
    "waiting logs",
    "logs of ended incarnations that some store may still need",
    "a running server removes them once every store in them is taken over",
)
EMPTY_FILES = Check(
    "HF-010",
    "empty files",
    "no store file is empty",
    "restore the file from a backup; a server rebuilds a file that was never durable from the logs",
)
FOREIGN_FILES = Check(
    "HF-011",
    "foreign files",
    "every store file was made by holdfast",
    "find out what replaced the file, and restore it from a backup",
)
NEWER_FILES = Check("HF-012", "newer files", "no store file has a newer format", "upgrade holdfast")
MISPLACED_FILES = Check(
    "HF-013",
    "misplaced files",
    "every store file is in the folder of its name's hash, where servers look for it",
    "stop the cluster and move the file (and its -wal) to where it belongs",
)
MISNAMED_FILES = Check(
    "HF-014",
    "misnamed files",
    "every store file belongs to the store in its name",
    "stop the cluster and give the file its right name, or restore it from a backup",
)
DAMAGED_FILES = Check(
    "HF-015",
    "damaged files",
    "the pages of every store file are sound, including their checksums",
    "check the disk; restore the file from a backup; a server rebuilds a file that was never "
    "durable from the logs",
)
MISCOUNTED_FILES = Check(
    "HF-016",
    "miscounted files",
    "the rows of every store file add up to its own counts (--deep only)",
    "report it: this is a bug in holdfast, or somebody wrote to the file",
)
UNREADABLE_FILES = Check(
    "HF-017",
    "unreadable files",
    "every file can be read",
    "run the doctor as the user of the servers; check the disk",
)
UNCHECKED_FILES = Check(
    "HF-018",
    "unchecked files",
    "files that are in use or, without --deep, too large to check",
    "stop the cluster and use --deep to check everything",
)
LONE_WALS = Check(
    "HF-019",
    "lone WALs",
    "every WAL has its store file",
    "find the store file, or restore both from a backup; never start the servers without it",
)
GENERATIONS = Check(
    "HF-020",
    "generations",
    "earlier generations of store files, unfinished copies and other leftovers",
    "you may remove unfinished copies of ended incarnations",
)
SEQUENCE = Check(
    "HF-021",
    "sequence",
    "each store's file and the logs form one sequence without gaps",
    "keep the file and all logs; restore the store from a backup that holds the missing changes",
)
STRANGERS = Check(
    "HF-022",
    "strangers",
    "the stores folder contains only files of holdfast",
    "move the foreign file elsewhere",
)
QUARANTINE = Check(
    "HF-023",
    "quarantine",
    "the quarantine folder is empty",
    "read report.json beside the file; restore the store if it was not rebuilt; then move the "
    "folder away",
)
STATE = Check(
    "HF-024",
    "coordinator state",
    "state.db of the coordinator is sound",
    "if it is damaged, start the coordinator with --replace-damaged-state, otherwise as usual: it "
    "fences all servers, which restart, and finds the stores by their files",
)
MISSING_FILES = Check(
    "HF-025",
    "missing files",
    "every store that had a durable file still has one",
    "restore the file from a backup; until then no server opens the store as a new one",
)
UNRECORDED_FILES = Check(
    "HF-026",
    "unrecorded files",
    "the coordinator knows every store that has a file",
    "nothing is lost: the next use records the store; state.db may be an older copy",
)
EPOCHS = Check(
    "HF-027",
    "epochs",
    "no store file has a higher epoch than the coordinator has recorded",
    "state.db is an older copy: stop the coordinator, remove coordinator/state*.db* and start it "
    "again; it finds the stores, and servers ask for higher epochs by themselves",
)

MISSING_LOGS = Check(
    "HF-028",
    "missing logs",
    "every fenced incarnation has its log until no store needs it",
    "put the log back; or restore the stores under HF-029 from a backup; or accept the loss with "
    "an empty file named loss-accepted beside the fence",
)
DOUBTFUL_STORES = Check(
    "HF-029",
    "doubtful stores",
    "no damaged or missing log can have held the last changes of a store",
    "servers refuse such a store: restore it from a backup, or accept the loss as HF-008 and "
    "HF-028 describe",
)

TIMES = Check(
    "HF-031",
    "times",
    "no store's time is ahead of this machine's clock",
    "correct the clock, here or on the host that was ahead when it wrote the store; the store's "
    "time continues from where it is: new ttls end on time, but times in the store stay ahead",
)

OLDER_FILES = Check(
    "HF-032",
    "older files",
    "every store file, with the logs, reaches the revision that the coordinator has recorded",
    "somebody replaced the file with an older one, which servers refuse: put the newer one back; "
    "or restore the store (holdfast backups, holdfast restore); or accept the older file with an "
    "empty file beside it, named NAME.KIND.older-accepted",
)

ARCHIVE = Check(
    "HF-033",
    "archive",
    "the tables that have archived messages are there with all their files; with --deep every "
    "archived message is read back",
    "put the table's files back, from a backup or from older versions of the objects; holdfast "
    "verify --all-tenants --bucket URL names what is lost; the rest of each stream stays readable",
)
KEYS = Check(
    "HF-034",
    "keys",
    "the registry has keys of every tenant that it names, and of every tenant with encrypted files",
    "restore the folder encryption from a backup of the same time as the data: without it nobody "
    "can read the encrypted values",
)

CHECKS: Final = (
    FORMAT,
    FILE_SYSTEM,
    ROOM,
    SYNC,
    LOCKS,
    OPEN_FENCES,
    MISSING_FENCES,
    LOG_DAMAGE,
    DEAD_LOGS,
    EMPTY_FILES,
    FOREIGN_FILES,
    NEWER_FILES,
    MISPLACED_FILES,
    MISNAMED_FILES,
    DAMAGED_FILES,
    MISCOUNTED_FILES,
    UNREADABLE_FILES,
    UNCHECKED_FILES,
    LONE_WALS,
    GENERATIONS,
    SEQUENCE,
    STRANGERS,
    QUARANTINE,
    STATE,
    MISSING_FILES,
    UNRECORDED_FILES,
    EPOCHS,
    MISSING_LOGS,
    DOUBTFUL_STORES,
    ACCESS,
    TIMES,
    OLDER_FILES,
    ARCHIVE,
    KEYS,
)


class Finding(NamedTuple):
    """One finding of a check. `where` is a path below the data directory, or empty."""

    severity: Severity
    where: str
    what: str


@dataclass(slots=True)
class CheckResult:
    """The result of one check. `skipped` says why it was not made, or is empty."""

    check: Check
    skipped: str = ""
    counts: dict[Severity, int] = field(default_factory=lambda: dict.fromkeys(Severity, 0))
    kept: dict[Severity, list[Finding]] = field(
        default_factory=lambda: {one: [] for one in Severity}
    )

    @property
    def severity(self) -> Severity:
        return max((one for one in Severity if self.counts[one]), default=Severity.NOTE)

    @property
    def outcome(self) -> str:
        """`ok`, `warning`, `critical` or `skipped`."""
        if self.severity is not Severity.NOTE:
            return self.severity.word
        return "skipped" if self.skipped else "ok"

    @property
    def examples(self) -> list[Finding]:
        """The first findings, the worst first."""
        worst_first = sorted(Severity, reverse=True)
        return [one for severity in worst_first for one in self.kept[severity]][:MAX_EXAMPLES]

    def to_json(self) -> dict[str, Any]:
        return {
            "code": self.check.code,
            "name": self.check.name,
            "outcome": self.outcome,
            "criticals": self.counts[Severity.CRITICAL],
            "warnings": self.counts[Severity.WARNING],
            "notes": self.counts[Severity.NOTE],
            "skipped": self.skipped or None,
            "examples": [
                {"severity": one.severity.word, "where": one.where, "what": one.what}
                for one in self.examples
            ],
            "advice": self.check.advice if self.severity is not Severity.NOTE else None,
        }


class Findings:
    """The results of all checks."""

    def __init__(self) -> None:
        self.results = {check.code: CheckResult(check) for check in CHECKS}

    @property
    def severity(self) -> Severity:
        return max(result.severity for result in self.results.values())

    def note(self, check: Check, where: object, what: str) -> None:
        self.add(check, Severity.NOTE, where, what)

    def warn(self, check: Check, where: object, what: str) -> None:
        self.add(check, Severity.WARNING, where, what)

    def alarm(self, check: Check, where: object, what: str) -> None:
        self.add(check, Severity.CRITICAL, where, what)

    def add(self, check: Check, severity: Severity, where: object, what: str) -> None:
        result = self.results[check.code]
        result.counts[severity] += 1
        if len(result.kept[severity]) < MAX_EXAMPLES:
            result.kept[severity].append(Finding(severity, str(where), what))

    def skip(self, check: Check, reason: str) -> None:
        """Note that a check was not made, or not completely."""
        self.results[check.code].skipped = reason

    def void(self, check: Check, reason: str) -> None:
        """Discard the findings of a check, for this reason."""
        self.results[check.code] = CheckResult(check, skipped=reason)
