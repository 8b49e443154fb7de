"""The checks of `holdfast doctor`: their codes, what each is about, what to do, and what was found.

A code is stable: it is never given to another check. The catalogue is also a table in docs/cli.md,
which a test compares. Memory is bounded: of each check the number of findings is kept, and the first
few of each severity as examples.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, Final, NamedTuple

#: Findings of one severity that are kept of one check.
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


class Check(NamedTuple):
    """One thing that is checked. `advice` is what to do about a warning or worse."""

    code: str
    name: str
    about: str
    advice: str


FORMAT = Check(
    "HF-001",
    "format",
    "the FORMAT file says that holdfast made this folder, in a format that this holdfast knows",
    "name the right folder with --data; upgrade holdfast for a later format; restore a missing "
    "FORMAT file from a backup",
)
ACCESS = Check(
    "HF-030",
    "access",
    "no other user of the machine may enter the folder",
    "as its owner, chmod go= the folder; run all parts as one user, who owns it; let others in by an "
    "ACL (setfacl) where that is wanted",
)
FILE_SYSTEM = Check(
    "HF-002",
    "file system",
    "what kind of file system it is, and if other hosts share it",
    "on a file system that several hosts share, find out that it carries POSIX locks between them "
    "and has close-to-open consistency, as NFSv4 does; otherwise run all parts on one host",
)
ROOM = Check("HF-003", "room", "free space and free inodes", "make room before writes are refused")
SYNC = Check(
    "HF-004",
    "sync",
    "a new file can be made durable",
    "look at the disk and the kernel's log; run the doctor as the user that the servers run as",
)
LOCKS = Check(
    "HF-005",
    "locks",
    "a POSIX lock keeps another process of this host out",
    "do not run holdfast here: mount the file system with locks",
)
OPEN_FENCES = Check(
    "HF-006",
    "open fences",
    "every incarnation that may acknowledge has a process",
    "start the coordinator and a persist server: they fence it and apply its log",
)
MISSING_FENCES = Check(
    "HF-007",
    "missing fences",
    "every incarnation with a log has a fence file",
    "nothing is lost, it counts as fenced; find out who removed the file",
)
LOG_DAMAGE = Check(
    "HF-008",
    "log damage",
    "the logs of incarnations that ended can be read from end to end",
    "look at the disk; restore the stores under HF-021 and HF-029 from a backup, or accept what is "
    "lost: make an empty file named loss-accepted beside the log's folder",
)
DEAD_LOGS = Check(
    "HF-009",
    "waiting logs",
    "logs of incarnations that ended, which some store may still need",
    "a running server lets go of them once every store in them was taken over",
)
EMPTY_FILES = Check(
    "HF-010",
    "empty files",
    "no store file has a length of zero",
    "restore the file from a backup; one that was never durable a server makes anew from the logs",
)
FOREIGN_FILES = Check(
    "HF-011",
    "foreign files",
    "every store file was made by holdfast",
    "find out what replaced it and restore the file from a backup",
)
NEWER_FILES = Check(
    "HF-012", "newer files", "no store file is of a later format", "upgrade holdfast"
)
MISPLACED_FILES = Check(
    "HF-013",
    "misplaced files",
    "every store file lies in the folder of its name's hash, the only place where it is looked for",
    "with the cluster stopped, move the file (and its -wal) to where it belongs",
)
MISNAMED_FILES = Check(
    "HF-014",
    "misnamed files",
    "every store file is of the store that its name says",
    "with the cluster stopped, give the file its right name, or restore it from a backup",
)
DAMAGED_FILES = Check(
    "HF-015",
    "damaged files",
    "the pages of every store file are sound, checksums included",
    "look at the disk; restore the file from a backup; one that was never durable a server makes "
    "anew from the logs",
)
MISCOUNTED_FILES = Check(
    "HF-016",
    "miscounted files",
    "the rows of every store file add up to what it says (--deep only)",
    "report it: this is a bug of holdfast, or somebody wrote to the file",
)
UNREADABLE_FILES = Check(
    "HF-017",
    "unreadable files",
    "every file can be read",
    "run the doctor as the user that the servers run as; look at the disk",
)
UNCHECKED_FILES = Check(
    "HF-018",
    "unchecked files",
    "files that are in use or, without --deep, too large for a look",
    "stop the cluster and use --deep to check all of everything",
)
LONE_WALS = Check(
    "HF-019",
    "lone WALs",
    "no WAL is without its store file",
    "find the file that belongs to it, or restore both from a backup; never start without it",
)
GENERATIONS = Check(
    "HF-020",
    "generations",
    "earlier generations of store files, unfinished copies and other leftovers",
    "unfinished copies of incarnations that ended may be removed",
)
SEQUENCE = Check(
    "HF-021",
    "sequence",
    "each store's file and the logs form one sequence without a gap",
    "keep the file and all logs; restore the store from a backup that has what is missing",
)
STRANGERS = Check(
    "HF-022",
    "strangers",
    "nothing lies among the stores that holdfast did not put there",
    "move it elsewhere",
)
QUARANTINE = Check(
    "HF-023",
    "quarantine",
    "no damaged file was moved to quarantine",
    "report.json beside the file says why; restore the store if it was not rebuilt, then move the "
    "folder away",
)
STATE = Check(
    "HF-024",
    "coordinator state",
    "state.db of the coordinator is sound",
    "start the coordinator with --replace-damaged-state: all servers start again, and it finds the "
    "stores by their files",
)
MISSING_FILES = Check(
    "HF-025",
    "missing files",
    "every store that has had a durable file still has one",
    "restore the file from a backup; nothing opens the store as a new one meanwhile",
)
UNRECORDED_FILES = Check(
    "HF-026",
    "unrecorded files",
    "the coordinator knows every store that has a file",
    "nothing is lost: a store is recorded when it is next used; state.db may be an old one",
)
EPOCHS = Check(
    "HF-027",
    "epochs",
    "no store file has a higher epoch than the coordinator knows of",
    "state.db is an older one: end the coordinator and remove coordinator/state.db and its WAL, and the "
    "next one finds the stores; servers ask for higher epochs by themselves",
)

MISSING_LOGS = Check(
    "HF-028",
    "missing logs",
    "every incarnation that was fenced has its log until no store needs it",
    "put the log back; or restore the stores under HF-029 from a backup, or accept what is lost: make "
    "an empty file named loss-accepted beside the fence",
)
DOUBTFUL_STORES = Check(
    "HF-029",
    "doubtful stores",
    "no damaged or missing log may have held the last changes of a store",
    "servers refuse such a store: restore it from a backup, or accept what is lost as HF-008 and "
    "HF-028 say",
)

TIMES = Check(
    "HF-031",
    "times",
    "no store's time is ahead of the clock of this machine",
    "set the clock right, here or where it was ahead when the store was written; the store's time goes on "
    "from where it is, so what is set expires in time, but times in it stay ahead",
)

OLDER_FILES = Check(
    "HF-032",
    "older files",
    "every store file has reached, with the logs, what the coordinator knows that it had reached",
    "somebody put an older file in its place, and servers refuse it: put the newer one back, or restore "
    "the store (holdfast backups, holdfast restore); or go on with what the file has: make an empty file "
    "beside it, named NAME.KIND.older-accepted",
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
)


class Finding(NamedTuple):
    """One thing that was found. `where` is a path below the data directory, or empty."""

    severity: Severity
    where: str
    what: str


@dataclass(slots=True)
class CheckResult:
    """What one check found. `skipped` says why it was not made, or is empty."""

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
    """What all checks found."""

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
        """Say that a check was not made, or not to its end."""
        self.results[check.code].skipped = reason

    def void(self, check: Check, reason: str) -> None:
        """Forget what a check found and say why it does not count."""
        self.results[check.code] = CheckResult(check, skipped=reason)
