"""What a probe's measurements mean for holdfast: a finding per need, and what would mend it.

Pure: `judge` takes what `probe.py` measured. The options that mend were measured on two mounts of
GlusterFS 10.3, ceph-fuse 16.2 and MooseFS 3.0; of other file systems only what the needs say is
known.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from holdfast.protocol.limits import NETWORK_CACHE_SECONDS, SEAL_SECONDS
from holdfast.shared_fs.bucket.bucket_capabilities import Capability
from holdfast.shared_fs.disk.file_system import cache_mend
from holdfast.shared_fs.inspection.probe_peer import LONGEST_NAME_BYTES, Way

#: A lock of a dead process that is held for longer delays its successor.
PROMPT_RELEASE_MS: Final = 1000
#: Ten times a good network file system, and twice a disk that spins: a lone write takes one sync.
SLOW_SYNC_MS: Final = 20
#: A write of a file is a sync of it, a rename and a sync of its folder.
SLOW_WRITE_MS: Final = 100
#: Less than half of the silence after which a server counts as dead.
SLOW_AT_WORST_MS: Final = 1000

_ANY_LOCK: Final = (
    "mount with POSIX locks between hosts (NFSv4; no nolock, no local_lock), or use another file "
    "system"
)
_ANY_FAILURE: Final = "find out why the mount refuses or hangs: its log, the network, the storage"
_LOCKLESS: Final = f"{_ANY_LOCK}; or {_ANY_FAILURE}"
_CEPH_SLOW: Final = "ceph config set mds mds_tick_interval 0.2; look at the network and the disks"
_ANY_SLOW: Final = "look at the load, the network and the disks of the storage"
_MOOSEFS: Final = frozenset(("fuse.mfs", "fuse.moosefs"))
_IN_MEMORY: Final = frozenset(("tmpfs", "ramfs"))


class Verdict(StrEnum):
    """The verdict on one need."""

    OK = "ok"
    #: The need is met, but late.
    SLOW = "slow"
    #: To know; holdfast copes with it, or nothing here can measure it.
    WARNING = "warning"
    FAILED = "failed"
    SKIPPED = "skipped"


class Need(StrEnum):
    """What holdfast needs of a file system, as the report names it."""

    TWO_MOUNTS = "two mounts"
    EXCLUSIVE_LOCK = "lock excludes others"
    SEEN_LOCK = "held lock is seen"
    FREED_LOCK = "lock is free after kill -9"
    FENCE = "fence is read fresh"
    OTHER_FENCE = "fence, read the other way"
    LOG = "end of a log is whole"
    CREATED = "new files are seen"
    REPLACED = "rename over is seen"
    REMOVED = "removal is seen"
    EXCLUSIVE_CREATION = "O_EXCL excludes others"
    LONG_NAMES = "names of 255 bytes"
    LINKS = "hard links"
    TRUNCATION = "ftruncate is seen"
    SYNC = "fdatasync"
    WRITE = "durable write"
    CONTESTED_WRITE = "write while it is read"
    DISK = "sync reaches a disk"


@dataclass(frozen=True, slots=True)
class ProbedMount:
    """One of the folders. `direct` tells if holdfast reads past the cache there."""

    folder: str
    type: str
    mount: str
    local: bool
    device: int
    takes_direct: bool
    direct: bool


@dataclass(frozen=True, slots=True)
class Sights:
    """Changes of one kind by one side, and when the other side saw them, which never stopped
    looking."""

    way: Way
    #: How the reader read, and whether holdfast reads so there.
    direct: bool
    used: bool
    count: int
    #: How late each stale sight was.
    late_ms: tuple[float, ...] = ()
    #: Changes that were never seen, as long as somebody looked.
    never_count: int = 0
    #: Looks that failed with ESTALE.
    stale_handles: int = 0
    #: What each change took.
    write_ms: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class LockTrial:
    """A lock held by one side, and what the other saw."""

    excluded: bool
    seen: bool
    seen_free: bool
    taken_when_free: bool
    races: int
    double_wins: int


@dataclass(slots=True)
class Measured:
    """All that a probe found. What could not be measured is in `broken`, with the reason."""

    mounts: tuple[ProbedMount, ...] = ()
    locks: list[LockTrial] = field(default_factory=list)
    #: Until a lock was free after its holder was killed; None: it was not as long as one waited.
    freed_ms: list[float | None] = field(default_factory=list)
    sights: list[Sights] = field(default_factory=list)
    exclusive_creation: list[bool] = field(default_factory=list)
    #: The reason why not, or an empty one.
    long_names: list[str] = field(default_factory=list)
    links: list[str] = field(default_factory=list)
    truncation: list[bool] = field(default_factory=list)
    sync_ms: list[float] = field(default_factory=list)
    write_ms: list[float] = field(default_factory=list)
    broken: dict[Need, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Judged:
    """A need, whether it is met, and what would mend it if not."""

    need: Need | Capability
    outcome: Verdict
    found: str
    mend: str = ""


def judge(measured: Measured) -> list[Judged]:
    """Return a finding for each need, in a fixed order."""
    return list(_findings(measured))


def _findings(measured: Measured) -> Iterator[Judged]:
    types = {mount.type for mount in measured.mounts}
    broken = measured.broken
    yield _two_mounts(measured)
    for need in (Need.EXCLUSIVE_LOCK, Need.SEEN_LOCK):
        yield _broken(need, broken, _LOCKLESS) or _lock(need, measured.locks)
    yield _broken(Need.FREED_LOCK, broken, _LOCKLESS) or _freed(measured.freed_ms)
    mend = cache_mend(types)
    fences = [one for one in measured.sights if one.way is Way.OVERWRITE]
    used = [one for one in fences if one.used]
    yield _broken(Need.FENCE, broken) or _sight(Need.FENCE, used, mend)
    if Need.FENCE in broken:
        yield Judged(Need.OTHER_FENCE, Verdict.SKIPPED, "see the fence")
    else:
        yield _other_fence(fences, mend)
    for need, way, copes_seconds in (
        # A takeover waits until it sees them.
        (Need.LOG, Way.APPEND, SEAL_SECONDS),
        (Need.CREATED, Way.CREATE, SEAL_SECONDS),
        # What is looked up in vain is looked up again.
        (Need.REPLACED, Way.REPLACE, NETWORK_CACHE_SECONDS),
        (Need.REMOVED, Way.REMOVE, NETWORK_CACHE_SECONDS),
    ):
        seen = [one for one in measured.sights if one.way is way]
        yield _broken(need, broken) or _sight(need, seen, mend, copes_seconds=copes_seconds)
    yield from _abilities(measured, mend)
    mend = _CEPH_SLOW if "fuse.ceph-fuse" in types else _ANY_SLOW
    contested = [took for one in used for took in one.write_ms]
    for need, times, slow_ms in (
        (Need.SYNC, measured.sync_ms, SLOW_SYNC_MS),
        (Need.WRITE, measured.write_ms, SLOW_WRITE_MS),
        (Need.CONTESTED_WRITE, contested, SLOW_WRITE_MS),
    ):
        yield _broken(need, broken) or _times(need, times, slow_ms, mend)
    yield _disk(types)


def needs_are_met(findings: Sequence[Judged]) -> bool:
    return not any(one.outcome is Verdict.FAILED for one in findings)


def worst(findings: Sequence[Judged]) -> Verdict:
    """Return the outcome of the whole probe."""
    order = (Verdict.FAILED, Verdict.SLOW, Verdict.WARNING)
    found = {one.outcome for one in findings}
    return next((one for one in order if one in found), Verdict.OK)


def percentile(times: Sequence[float], ratio: float) -> float:
    """Return the nearest-rank percentile: a value that was measured."""
    return sorted(times)[max(0, math.ceil(len(times) * ratio) - 1)]


def _broken(need: Need, broken: Mapping[Need, str], mend: str = _ANY_FAILURE) -> Judged | None:
    reason = broken.get(need)
    return None if reason is None else Judged(need, Verdict.FAILED, reason, mend)


def _two_mounts(measured: Measured) -> Judged:
    mounts = measured.mounts
    kinds = ", ".join(sorted({mount.type or "unknown" for mount in mounts}))
    if len({mount.device for mount in mounts}) > 1:
        return Judged(Need.TWO_MOUNTS, Verdict.OK, kinds)
    if all(mount.local for mount in mounts):
        return Judged(Need.TWO_MOUNTS, Verdict.OK, f"{kinds}: one host, one cache")
    return Judged(
        Need.TWO_MOUNTS,
        Verdict.WARNING,
        f"{kinds}: one mount shows no cache",
        "mount the file system a second time on this host, with the options that all hosts use, "
        "and name that folder: --with DIRECTORY",
    )


def _lock(need: Need, trials: Sequence[LockTrial]) -> Judged:
    if need is Need.SEEN_LOCK:
        if all(one.seen and one.seen_free for one in trials):
            return Judged(need, Verdict.OK, "by F_GETLK, held and free")
        what = "free" if all(one.seen for one in trials) else "held"
        return Judged(need, Verdict.FAILED, f"F_GETLK does not see it {what}", _ANY_LOCK)
    races = sum(one.races for one in trials)
    wins = sum(one.double_wins for one in trials)
    if not all(one.excluded for one in trials):
        found = "two processes hold it at once"
    elif wins:
        found = f"two won in {wins:,} of {races:,} races"
    elif not all(one.taken_when_free for one in trials):
        found = "a free one is refused"
    else:
        return Judged(need, Verdict.OK, f"nobody else got it; {races:,} races")
    return Judged(need, Verdict.FAILED, found, _ANY_LOCK)


def _freed(freed_ms: Sequence[float | None]) -> Judged:
    need = Need.FREED_LOCK
    times = [one for one in freed_ms if one is not None]
    if len(times) < len(freed_ms):
        return Judged(need, Verdict.FAILED, "still held when the probe gave up", _ANY_LOCK)
    if max(times) > PROMPT_RELEASE_MS:
        found = f"after {_ms(max(times))}"
        return Judged(
            need,
            Verdict.SLOW,
            found,
            "a process of the same name, and a standby, start that late",
        )
    return Judged(need, Verdict.OK, f"after {_ms(max(times))}")


def _sight(
    need: Need, sights: Sequence[Sights], mend: str, *, copes_seconds: float = 0.0
) -> Judged:
    """Judge what was seen. What is late by less than `copes_seconds` only takes longer."""
    count = sum(one.count for one in sights)
    never = sum(one.never_count for one in sights)
    late = [took for one in sights for took in one.late_ms]
    handles = sum(one.stale_handles for one in sights)
    told = f"; {handles:,} ESTALE" if handles else ""
    if never:
        return Judged(need, Verdict.FAILED, f"{never:,} of {count:,} never seen{told}", mend)
    if late:
        found = f"{len(late):,} of {count:,} stale, by {_ms(max(late))}{told}"
        copes = max(late) < copes_seconds * 1000
        return Judged(need, Verdict.SLOW if copes else Verdict.FAILED, found, mend)
    how = "direct" if all(one.direct for one in sights) else "plain"
    if need is Need.FENCE:
        return Judged(need, Verdict.OK, f"{count:,} of {count:,} at once, {how} reads")
    return Judged(need, Verdict.OK, f"{count:,} of {count:,} at once")


def _other_fence(fences: Sequence[Sights], mend: str) -> Judged:
    """Judge the way of reading that holdfast does not choose here: it costs nothing unless an
    operator sets it."""
    need = Need.OTHER_FENCE
    others = [one for one in fences if not one.used]
    if not others:
        return Judged(need, Verdict.SKIPPED, "direct reads are not supported")
    how = "direct" if all(one.direct for one in others) else "plain"
    found = _sight(need, others, mend)
    if found.outcome is Verdict.OK:
        return Judged(need, Verdict.OK, f"{found.found}, {how} reads")
    return Judged(
        need,
        Verdict.WARNING,
        f"{how}: {found.found}",
        f"do not set --fence-read {how} here, unless the mount is mended: {mend}",
    )


def _abilities(measured: Measured, mend: str) -> Iterator[Judged]:
    broken = measured.broken
    creation = Need.EXCLUSIVE_CREATION
    yield _broken(creation, broken) or (
        Judged(creation, Verdict.OK, "an existing file is refused")
        if all(measured.exclusive_creation)
        else Judged(creation, Verdict.FAILED, "two created one file", "use another file system")
    )
    refused = next(filter(None, measured.long_names), "")
    yield _broken(Need.LONG_NAMES, broken) or (
        Judged(Need.LONG_NAMES, Verdict.FAILED, refused, "use another file system")
        if refused
        else Judged(Need.LONG_NAMES, Verdict.OK, f"{LONGEST_NAME_BYTES} bytes")
    )
    refused = next(filter(None, measured.links), "")
    yield _broken(Need.LINKS, broken) or (
        Judged(
            Need.LINKS,
            Verdict.WARNING,
            refused,
            "nothing: without links holdfast renames, which is not atomic for a new file",
        )
        if refused
        else Judged(Need.LINKS, Verdict.OK, "link() works")
    )
    yield _broken(Need.TRUNCATION, broken) or (
        Judged(Need.TRUNCATION, Verdict.OK, "the new end is read elsewhere")
        if all(measured.truncation)
        else Judged(Need.TRUNCATION, Verdict.FAILED, "the old end is read elsewhere", mend)
    )


def _times(need: Need, times: Sequence[float], slow_ms: float, mend: str) -> Judged:
    median, p99 = percentile(times, 0.5), percentile(times, 0.99)
    found = f"median {_ms(median)}, p99 {_ms(p99)}"
    if median > slow_ms or p99 > SLOW_AT_WORST_MS:
        return Judged(need, Verdict.SLOW, found, mend)
    return Judged(need, Verdict.OK, found)


def _disk(types: set[str]) -> Judged:
    if types & _MOOSEFS:
        return Judged(
            Need.DISK,
            Verdict.WARNING,
            "MooseFS: fsync reaches no disk",
            "keep two copies of each chunk, on chunk servers that do not lose power together",
        )
    if types & _IN_MEMORY:
        return Judged(
            Need.DISK, Verdict.WARNING, "in memory alone", "use a folder on a disk for data"
        )
    return Judged(Need.DISK, Verdict.SKIPPED, "only a power cut can tell")


def _ms(milliseconds: float) -> str:
    if milliseconds >= 1000:
        return f"{milliseconds / 1000:,.1f} s"
    return f"{milliseconds:.2g} ms" if milliseconds < 10 else f"{milliseconds:.0f} ms"
