"""Checks the chain of a store from tier to tier: file, snapshot, logs and table.

    tiers = [read_chain(path, "its file"), read_chain(image, "its snapshot")]
    problems = compare(tiers, points.of(store))

Every tier has to give the same leaf for each message, and the same chain after it. Where they
differ, the first seq is told at which they do. Whoever can write a file can write a chain that fits
it: only values that were kept elsewhere tell that (docs/chain.md). Only reads.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from urllib.parse import quote

import apsw

from holdfast.protocol import changes, frames
from holdfast.protocol.chain.checking import ChainWalk
from holdfast.protocol.chain.hashing import ChainLink
from holdfast.protocol.errors import InvalidArgumentError, StoreDamagedError
from holdfast.protocol.messages import Ack
from holdfast.protocol.names import StoreId, StoreKind
from holdfast.shared_fs.archive.table_chain import AckOutcome, KeptAck, TableChain
from holdfast.shared_fs.disk.commit_log import LogRecord
from holdfast.shared_fs.store_file import schema
from holdfast.shared_fs.store_file.chain.chain_rows import StoredChain
from holdfast.shared_fs.store_file.pages.page_sizes import read_format
from holdfast.shared_fs.store_file.sqlite_connection import checksum_vfs
from holdfast.shared_fs.store_file.subject_rows import StoredSubjects


@dataclass(frozen=True, slots=True)
class ChainTier:
    """The chain that one tier has."""

    #: What the tier is called in reports.
    what: str
    base: ChainLink
    #: The chain that it records, after its last message.
    told: ChainLink
    #: `(seq, leaf)` of each message after the base, in order of seq; leaves are computed anew.
    leaves: Sequence[tuple[int, bytes]]
    #: Leaves of encrypted values are believed: whoever has no key cannot make them.
    believes: bool = False


def read_chain(path: Path, store: StoreId, what: str) -> ChainTier | None:
    """Return the chain in a store file that nobody writes; None if the stream keeps none.

    Reads all messages. Raises StoreDamagedError.
    """
    name = f"file:{quote(str(path))}?immutable=1"
    flags = apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI
    try:
        connection = apsw.Connection(name, flags=flags, vfs=checksum_vfs())
        try:
            connection.pragma("trusted_schema", 0)
            version = read_format(connection.execute)
            if version < schema.CHAIN_FORMAT:
                return None
            is_kv = store.kind == StoreKind.KV
            chain = StoredChain(connection.execute, is_kv=is_kv)
            chain.load()
            if chain.value is None:
                return None
            subjects = StoredSubjects(connection.execute, store)
            if not is_kv:
                subjects.load()
            last = "SELECT revision FROM meta" if is_kv else "SELECT last_seq FROM meta"
            last_seq = connection.execute(last).get
            found = list(chain.leaves(connection.execute, has_subjects=subjects.exists))
            believes = version >= schema.ENCRYPTED_CHAIN_FORMAT
            return ChainTier(what, chain.base, ChainLink(last_seq, chain.value), found, believes)
        finally:
            connection.close(True)
    except apsw.Error as error:
        raise StoreDamagedError(store=str(store), reason=f"{what}: {error}") from error


def tier_of_table(table: TableChain) -> ChainTier | None:
    """Return the last part of a chain in a table; None if it has none."""
    if not table.parts:
        return None
    base, links, told = table.parts[-1]
    return ChainTier("its table", base, told, links, believes=bool(table.believed))


class LogPoints:
    """The chains that logs tell, after each payload that appends messages."""

    def __init__(self) -> None:
        #: By store: `(epoch, previous_revision, revision, points)` of each record.
        self._records: dict[StoreId, list[tuple[int, int, int, list[ChainLink]]]] = {}

    def take(self, record: LogRecord) -> None:
        """Note what a record tells. Raises MalformedFrameError."""
        points = _points_of(record)
        found = (record.epoch, record.previous_revision, record.revision, points)
        if points or record.store in self._records:
            self._records.setdefault(record.store, []).append(found)

    def of(self, store: StoreId) -> list[ChainLink]:
        """Return the points of a store that count: an epoch ends where a later one begins."""
        records = self._records.get(store, [])
        return [
            point
            for epoch, _, revision, points in records
            if all(revision <= start for later, start, *_ in records if later > epoch)
            for point in points
        ]


def _points_of(record: LogRecord) -> list[ChainLink]:
    points = []
    for payload in record.payloads:
        batch = frames.decode_changes(payload)
        if batch.chain is None:
            continue
        seqs = [
            # A set of a kv is known by its revision.
            changes.set_key(change) if number == changes.CHANGE_SET_MESSAGE else revision
            for revision, change in enumerate(batch.changes, batch.previous_revision + 1)
            if (number := changes.number_of(change)) in changes.SETS
        ]
        if seqs:
            points.append(ChainLink(max(seqs), batch.chain))
    return points


def compare(tiers: Sequence[ChainTier], points: Sequence[ChainLink] = ()) -> list[str]:
    """Return what does not fit: within a tier, between tiers, and with the `points` of the logs."""
    problems = []
    for tier in tiers:
        problems += _alone(tier, points)
    for one, other in combinations(tiers, 2):
        seq = _first_difference(one, other)
        if seq is not None:
            problems.append(f"its chain: message {seq} of {one.what} is not that of {other.what}")
    return problems


def find_acks(tier: ChainTier, kept: Iterable[ChainLink | Ack]) -> list[KeptAck]:
    """Return what a tier tells of values that somebody kept. Raises InvalidArgumentError for one
    that has no seq or no chain."""
    walk = ChainWalk(tier.base, kept)
    for seq, leaf in tier.leaves:
        if seq <= walk.last.seq:
            # It is there twice, as `compare` tells, so what follows proves nothing.
            break
        walk.step(seq, leaf)
    report = walk.report()
    found = [KeptAck(seq, AckOutcome.BEFORE) for seq in report.trimmed]
    for seq in report.matched:
        since = tier.base.seq + 1 if seq > tier.base.seq else None
        found.append(KeptAck(seq, AckOutcome.MATCHED, since))
    for seq in report.differing:
        is_beyond = seq > tier.told.seq
        found.append(KeptAck(seq, AckOutcome.BEYOND if is_beyond else AckOutcome.DIFFERS))
    return sorted(found)


def links_of(tiers: Sequence[ChainTier], points: Sequence[ChainLink]) -> list[ChainLink]:
    """Return what tiers and logs tell of the chain: after the last message of each tier, and where
    the logs say it of messages that a tier has."""
    links = [ChainLink(tier.leaves[-1][0], tier.told.chain) for tier in tiers if tier.leaves]
    # A restore may have taken messages back that a log still has.
    seqs = {seq for tier in tiers for seq, _ in tier.leaves}
    return [*links, *(each for each in points if each.seq in seqs)]


def _alone(tier: ChainTier, points: Sequence[ChainLink]) -> list[str]:
    # A restore may have taken messages back that a log still has.
    seqs = {seq for seq, _ in tier.leaves}
    within = [each for each in points if each.seq in seqs]
    walk = ChainWalk(tier.base, within)
    try:
        for seq, leaf in tier.leaves:
            walk.step(seq, leaf)
    except InvalidArgumentError as error:
        return [f"its chain: {tier.what} has a message twice: {error}"]
    report = walk.report()
    problems = []
    if report.differing:
        seq = report.differing[0]
        sound = max((each for each in report.matched if each < seq), default=report.base_seq)
        problems.append(
            f"its chain: {tier.what} differs from the log between messages {sound + 1} and {seq}"
        )
    if report.chain != tier.told.chain:
        problems.append(
            f"its chain: the messages of {tier.what} from {report.base_seq + 1} on give"
            f" {report.chain.hex()[:16]}..., not {tier.told.chain.hex()[:16]}..."
        )
    return problems


def _first_difference(one: ChainTier, other: ChainTier) -> int | None:
    """Return the first seq that both tiers reach and at which they do not have the same."""
    start = max(one.base.seq, other.base.seq) + 1
    end = min(one.told.seq, other.told.seq)
    mine, others = (
        {seq: leaf for seq, leaf in each.leaves if start <= seq <= end} for each in (one, other)
    )
    differing = (seq for seq in mine.keys() | others.keys() if mine.get(seq) != others.get(seq))
    return min(differing, default=None)
