"""Takeover: what the logs of fenced incarnations add to a store's file.

`plan` is pure. Its rules together keep one order of changes through any number of owners:

- Records are taken epoch by epoch, oldest first. Within an epoch they are taken in revision order,
  which is also the order of the log.
- Records of epochs before the file's own are void: the owner of that epoch has applied the
  ones that counted.
- An epoch ends where the next one begins: a record of a higher epoch that starts at revision r
  voids everything of lower epochs beyond r. So records that a zombie appended after it was fenced
  (none of which was acknowledged) cannot appear once a later owner has written.
- Each record follows the one before it without a gap. Otherwise the store is damaged, and the error
  names the missing revisions.

`doubts` is pure too. It tells which stores may have had their last changes in a damaged or missing
log, which no gap would show. Only the log of a store's last owner can matter: every later owner
started from all there was.

`DeadLogs` reads and keeps the logs: it reads each dead incarnation once, for all stores.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple, Self

from holdfast.protocol import changes, frames
from holdfast.protocol.errors import StoreDamagedError
from holdfast.protocol.names import StoreId
from holdfast.shared_fs.disk import fence
from holdfast.shared_fs.disk.commit_log import LogContents, LogRecord, read_log, segments
from holdfast.shared_fs.disk.dead_incarnation import is_let_go, log_is_missing, loss_is_accepted
from holdfast.shared_fs.disk.disk import Disk
from holdfast.shared_fs.disk.layout import Layout
from holdfast.shared_fs.disk.quarantine import kept_records
from holdfast.shared_fs.disk.seal import UnsealedError
from holdfast.shared_fs.store_file.applying import AppliedBatch, WriterOutcome

logger = logging.getLogger("holdfast.persist")

_MISSING: Final = "is missing"
#: So many incarnations `is_current` looks at, at some 50 µs each.
_FEW_LIVES: Final = 8
#: Takes the place of a server's name for records that were kept with files in quarantine.
_QUARANTINE: Final = "quarantine"


class TakeoverPlan(NamedTuple):
    """What to apply to a file, in order."""

    batches: list[AppliedBatch]
    outcomes: list[WriterOutcome]

    def reaches(self, revision: int) -> int:
        """Return the revision that a file at `revision` reaches with this plan."""
        for last in self.batches[-1:]:
            return changes.end_of(last.previous_revision, last.changes)
        return revision


def plan(
    store: StoreId, records: Sequence[LogRecord], *, file_epoch: int, file_revision: int
) -> TakeoverPlan:
    """Return what `records`, of any dead incarnations, add to a file at `file_revision`.

    Raises StoreDamagedError when revisions in between are missing.
    """
    found = TakeoverPlan([], [])
    for record in following(
        store, records, file_epoch=file_epoch, file_revision=file_revision
    ):
        found.batches.extend(batches_of(record))
        found.outcomes.extend(WriterOutcome(*outcome) for outcome in record.outcomes)
    return found


def following(
    store: StoreId, records: Sequence[LogRecord], *, file_epoch: int, file_revision: int
) -> Iterator[LogRecord]:
    """Yield the `records` that count, from a file's revision on, without a gap.

    Raises StoreDamagedError at the first gap.
    """
    by_epoch: dict[int, list[LogRecord]] = {}
    for record in records:
        if record.epoch >= file_epoch:
            by_epoch.setdefault(record.epoch, []).append(record)
    epochs = sorted(by_epoch)
    starts = [min(record.previous_revision for record in by_epoch[epoch]) for epoch in epochs]
    revision = file_revision
    for index, epoch in enumerate(epochs):
        end = min(starts[index + 1 :], default=None)
        # All are of one owner. The log and quarantine may both have some of them, and each
        # may lack others.
        for record in sorted(by_epoch[epoch], key=_order):
            if record.revision < revision or (end is not None and record.revision > end):
                continue
            if record.revision == revision and record.previous_revision < revision:
                continue
            if record.previous_revision != revision:
                raise StoreDamagedError(
                    store=str(store),
                    reason=f"revisions {revision + 1} to {record.previous_revision} are neither in "
                    "its file nor in any log",
                )
            yield record
            revision = record.revision


def _order(record: LogRecord) -> tuple[int, int]:
    return record.previous_revision, record.revision


def batches_of(record: LogRecord) -> list[AppliedBatch]:
    """Return the changes of a record in the form that a file takes."""
    decoded = [frames.decode_changes(payload) for payload in record.payloads]
    # But for its epoch, a broadcast has the fields of a batch. What a log tells is never believed.
    return [AppliedBatch(*each[1:], is_own=False) for each in decoded]


@dataclass(frozen=True, slots=True)
class DeadLog:
    """The log of a fenced incarnation."""

    server: str
    incarnation: str
    records: Mapping[StoreId, Sequence[LogRecord]] = field(default_factory=dict)
    #: Why records may be missing; empty if the log is whole.
    problem: str = ""
    #: An operator accepts the loss.
    accepted: bool = False
    #: Its seals have shown that it was read to its end.
    is_sealed: bool = False
    #: For each store with records after the last damage: the epoch of its last one.
    sound_epochs: Mapping[StoreId, int] = field(default_factory=dict)

    @property
    def is_short(self) -> bool:
        """True if acknowledged changes may be missing and nobody has accepted that."""
        return bool(self.problem) and not self.accepted

    def __str__(self) -> str:
        if self.server == _QUARANTINE:
            return f"the log kept in {_QUARANTINE}/{self.incarnation} {self.problem}"
        return f"the log of incarnation {self.incarnation} of server {self.server} {self.problem}"

    def after(self, store: StoreId, epoch: int) -> Self:
        """Return the log without a store's records up to an epoch."""
        later = [record for record in self.records.get(store, ()) if record.epoch > epoch]
        sound_epochs = self.sound_epochs
        if sound_epochs.get(store, epoch + 1) <= epoch:
            sound_epochs = {each: sound for each, sound in sound_epochs.items() if each != store}
        return replace(self, records={store: later} if later else {}, sound_epochs=sound_epochs)

    def speaks_of(self, store: StoreId, file: FoundFile | None) -> bool:
        """Tell if the log's records or the store's file show this incarnation as an
        owner of the store."""
        return store in self.records or (file is not None and file.incarnation == self.incarnation)

    @classmethod
    def missing(cls, server: str, incarnation: str) -> Self:
        """Return a placeholder for a log that somebody removed."""
        return cls(server, incarnation, problem=_MISSING)

    @classmethod
    def of(cls, server: str, incarnation: str, contents: LogContents) -> Self:
        """Return the log that `contents` were read from."""
        records: dict[StoreId, list[LogRecord]] = {}
        for record in contents.records:
            records.setdefault(record.store, []).append(record)
        places = [
            f"{damage.segment} at byte {damage.offset}: {damage.reason}"
            for damage in contents.damage
            if not damage.torn_end
        ]
        return cls(
            server,
            incarnation,
            records,
            problem=f"is damaged ({'; '.join(places[:3])})" if places else "",
            sound_epochs={
                record.store: record.epoch for record in contents.records[contents.sound_from :]
            },
        )


class FoundFile(NamedTuple):
    """What a store's file says. `closed` if its last owner closed it, so that there is no WAL."""

    epoch: int
    revision: int
    incarnation: str
    closed: bool


def doubts(
    store: StoreId, logs: Iterable[DeadLog], file: FoundFile | None, *, had_owner: bool
) -> str:
    """Return why changes of `store` may be missing although no gap shows it, or an empty text.

    `had_owner` says that an earlier owner was allowed to create the store, so changes may be
    missing that neither a file nor a log mentions.
    """
    logs = list(logs)
    last_epoch = max(
        [record.epoch for log in logs for record in log.records.get(store, ())],
        default=0,
    )
    if file is not None:
        last_epoch = max(last_epoch, file.epoch)
    for log in logs:
        if log.is_short and _may_lack(store, log, file, last_epoch, had_owner=had_owner):
            revisions = [record.revision for record in log.records.get(store, ())]
            known = max([*revisions, file.revision if file is not None else 0])
            return f"changes after revision {known} may be missing: {log}. Try: holdfast doctor"
    return ""


def _may_lack(
    store: StoreId, log: DeadLog, file: FoundFile | None, last_epoch: int, *, had_owner: bool
) -> bool:
    """Tell if a short log may have held the store's last changes."""
    if last_epoch == 0:
        return had_owner
    records = log.records.get(store, ())
    epoch = max([record.epoch for record in records], default=0)
    if file is not None and file.incarnation == log.incarnation:
        epoch = max(epoch, file.epoch)
    if epoch < last_epoch:
        # Either it never owned the store, or a later owner started from all there was.
        return False
    if log.sound_epochs.get(store) == epoch:
        # A record follows the damage and no gap precedes it, so the damaged part had
        # nothing of the store.
        return False
    if file is None or not file.closed or file.incarnation != log.incarnation:
        return True
    # The file was complete when its owner closed it, if no record in the log is later.
    return any(record.revision > file.revision for record in records)


class DeadLogs:
    """The logs of fenced incarnations on the shared file system, by store."""

    def __init__(self, disk: Disk, layout: Layout, incarnation: str) -> None:
        """`incarnation` is the caller's own, whose log is never read."""
        self._disk = disk
        self._layout = layout
        self._own = incarnation
        self._loaded: dict[tuple[str, str], DeadLog] = {}
        #: The records that were kept with files in quarantine, by tenant and folder.
        self._kept: dict[tuple[str, str], DeadLog] = {}

    def refresh(self, sealed: Collection[tuple[str, str]] | None = None) -> None:
        """Read the logs of incarnations that were fenced since the last call. Blocking.

        With `sealed`, this host is not believed: exactly these incarnations have ended with a log,
        and what is read of each must show its seal. What does not is left out, and the first such
        place is raised as UnsealedError in the end.

        May run in a thread: readers see either the old collection or the new one.
        Raises StorageFailedError.
        """
        unsealed: UnsealedError | None = None
        loaded = {}
        for life in dict.fromkeys((*self._lives(), *(sealed or ()))):
            if life[1] == self._own:
                continue
            try:
                log = self._find(*life, self._loaded.get(life), sealed)
            except UnsealedError as error:
                unsealed = unsealed or error
                continue
            if log is not None:
                loaded[life] = log
        # Read quarantine after the logs, and set it before them: what a log drops was
        # put there first.
        kept = {}
        for place in kept_records(self._disk, self._layout):
            kept[place] = self._kept.get(place) or self._read_kept(*place)
        self._kept = kept
        self._loaded = loaded
        if unsealed is not None:
            raise unsealed

    def is_current(self) -> bool:
        """Tell whether `refresh` without seals would find nothing new. Reads no log, and says no
        where there are many places to look at, so the loop may ask. Raises StorageFailedError."""
        lives = [life for life in self._lives() if life[1] != self._own]
        if len(lives) > _FEW_LIVES or not self._loaded.keys() <= set(lives):
            return False
        for life in lives:
            known = self._loaded.get(life)
            if known is not None:
                # A short one may have been accepted, and a missing one may be there again.
                if known.problem or not self._has_log(*life):
                    return False
            elif self._has_log(*life):
                if not fence.is_open(self._disk, self._layout.fence(*life)):
                    return False
            elif log_is_missing(self._disk, self._layout, *life):
                return False
        return list(self._kept) == list(kept_records(self._disk, self._layout))

    def logs(self) -> list[DeadLog]:
        """Return every log read so far."""
        return list(self._loaded.values())

    def records(self, store: StoreId) -> list[LogRecord]:
        """Return every record of `store` in the logs read so far, log by log, and then those kept
        with its files in quarantine."""
        found: list[LogRecord] = []
        for log in (*self._loaded.values(), *self._kept.values()):
            found.extend(log.records.get(store, ()))
        return found

    def kept(self, store: StoreId) -> list[DeadLog]:
        """Return the records kept with files of `store` in quarantine, each set as a log."""
        return [log for log in self._kept.values() if store in log.records]

    def incarnations(self) -> list[tuple[str, str]]:
        """Return the `(server, incarnation)` of every log read so far."""
        return list(self._loaded)

    def stores(self, server: str, incarnation: str) -> list[StoreId]:
        """Return the stores that a dead incarnation's log mentions."""
        log = self._loaded.get((server, incarnation))
        return list(log.records) if log is not None else []

    def _lives(self) -> list[tuple[str, str]]:
        return [
            (server, incarnation)
            for server in self._disk.folders(self._layout.servers)
            for incarnation in self._disk.folders(self._layout.server(server))
        ]

    def _has_log(self, server: str, incarnation: str) -> bool:
        folder = self._layout.log(server, incarnation)
        return self._disk.exists(folder) and bool(segments(self._disk, folder))

    def _find(
        self,
        server: str,
        incarnation: str,
        known: DeadLog | None,
        sealed: Collection[tuple[str, str]] | None,
    ) -> DeadLog | None:
        """Return the log of an incarnation, or None if it is alive or nothing of it is left. Raises
        UnsealedError."""
        is_sealed = sealed is not None and (server, incarnation) in sealed
        if is_sealed:
            if known is None or not known.is_sealed:
                known = self._read(server, incarnation, is_sealed=True)
        elif self._has_log(server, incarnation):
            if known is None or known.problem == _MISSING:
                path = self._layout.fence(server, incarnation)
                if fence.is_open(self._disk, path):
                    return None
                # One without a fence that the coordinator does not know never owned anything, or
                # is being removed, or somebody has removed its fence and the state: nobody seals
                # it.
                if sealed is not None and self._disk.exists(path):
                    raise UnsealedError(path.parent, "the coordinator has not sealed its log")
                known = self._read(server, incarnation, is_sealed=False)
        elif not log_is_missing(self._disk, self._layout, server, incarnation):
            return None
        if known is None:
            known = self._missing(server, incarnation)
        if known.is_short and loss_is_accepted(self._disk, self._layout, server, incarnation):
            known = replace(known, accepted=True)
            logger.warning("log.loss_accepted server=%s incarnation=%s", server, incarnation)
        return known

    def _read(self, server: str, incarnation: str, *, is_sealed: bool) -> DeadLog:
        if is_let_go(self._disk, self._layout, server, incarnation):
            return DeadLog(server, incarnation, is_sealed=is_sealed)
        contents = read_log(
            self._disk, self._layout.log(server, incarnation), sealed=is_sealed
        )
        for damage in contents.damage:
            logger.log(
                logging.INFO if damage.torn_end else logging.ERROR,
                "log.damage server=%s incarnation=%s segment=%s offset=%d reason=%s",
                server,
                incarnation,
                damage.segment,
                damage.offset,
                damage.reason,
            )
        log = replace(DeadLog.of(server, incarnation, contents), is_sealed=is_sealed)
        logger.info(
            "log.read server=%s incarnation=%s stores=%d records=%d size_bytes=%d",
            server,
            incarnation,
            len(log.records),
            len(contents.records),
            contents.size_bytes,
        )
        return log

    def _read_kept(self, tenant: str, folder: str) -> DeadLog:
        contents = read_log(self._disk, self._layout.quarantine / tenant / folder)
        log = DeadLog.of(_QUARANTINE, f"{tenant}/{folder}", contents)
        if log.problem:
            logger.error("log.damage place=%s/%s/%s", _QUARANTINE, log.incarnation, log.problem)
        return log

    def _missing(self, server: str, incarnation: str) -> DeadLog:
        logger.error("log.missing server=%s incarnation=%s", server, incarnation)
        return DeadLog.missing(server, incarnation)
