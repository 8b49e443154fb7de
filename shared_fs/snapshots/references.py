"""References: which objects of a store its forks hold, in the store's own entry.

    1. the parent's entry     refers to the fork, if it still names the object: `refer`
    2. the fork's entry       names the object as its first version
       ...                    the fork has snapshots of its own, or is deleted
    3. the fork's entry       names it no more
    4. the parent's entry     the reference holds nothing any more: `release`

Each step is one compare-and-set, so a crash leaves at most a reference that holds for nothing.
Invariants, none of which depends on a clock:

- An object that no entry names is never named again. So a reference comes to hold an object only
  while the entry of the object's store names it, and whoever removes objects need look at that
  entry alone.
- A reference ceases to hold only after the fork's shard has promised that the version it was made
  for will never be published (`Manifests.collect_before`) and did not name the object at that time.
- A reference is put before the fork is published. So whoever looks at a store's forks after it has
  dropped something from the store knows all forks that may have it.

Blocking. All raise BucketError.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

from holdfast.protocol.errors import LimitExceededError
from holdfast.protocol.names import StoreId
from holdfast.shared_fs.bucket.bucket_errors import ObjectMissingError
from holdfast.shared_fs.forks.fork import MAX_FORKS, ForkReference
from holdfast.shared_fs.snapshots.manifest import Manifests
from holdfast.shared_fs.snapshots.shard import shard_of
from holdfast.shared_fs.snapshots.store_entry import StoreEntry


def refer(manifests: Manifests, parent: StoreId, fork: ForkReference) -> bool:
    """Record a fork in the entry of a store; return False if the entry does not name what the fork
    is to hold any more. Raises LimitExceededError if the store has the most forks."""
    entry = manifests.find(parent)
    if entry is not None and len(entry.forks) >= MAX_FORKS:
        release(manifests, parent, forget=True)
    is_held = False

    def add(entry: StoreEntry | None) -> StoreEntry | None:
        nonlocal is_held
        entry = entry or StoreEntry()
        is_held = not fork.holds or entry.names(fork.key)
        if not is_held or fork in entry.forks:
            return entry
        if len(entry.forks) >= MAX_FORKS:
            raise LimitExceededError(what="forks of a store", limit=MAX_FORKS, value=MAX_FORKS + 1)
        return replace(entry, forks=(*entry.forks, fork))

    manifests.update_entry(parent, add)
    return is_held


def release(
    manifests: Manifests, parent: StoreId, *, before: int | None = None, forget: bool = False
) -> list[str]:
    """Let go of the objects that forks of a store hold no more, and return their keys.

    With `before`, only references that were put before that time are looked at. With `forget`,
    forks that do not exist any more are removed, and the keys of objects that are gone.
    """
    entry = manifests.find(parent) or StoreEntry()
    changed: dict[ForkReference, ForkReference | None] = {}
    for fork in entry.forks:
        if before is not None and fork.taken >= before:
            continue
        now = _as_it_is(manifests, parent, fork) if fork.holds or forget else fork
        if forget and now is not None and now.key and not now.holds:
            now = _without_gone_object(manifests, now)
        if now != fork:
            changed[fork] = now
    if not changed:
        return []

    def drop(entry: StoreEntry | None) -> StoreEntry | None:
        if entry is None:
            return None
        kept = (changed.get(fork, fork) for fork in entry.forks)
        return replace(entry, forks=tuple(fork for fork in kept if fork is not None))

    manifests.update_entry(parent, drop)
    return [fork.key for fork in changed if fork.holds]


def forks_of(manifests: Manifests, store: StoreId) -> list[StoreId]:
    """Return the forks of a store, and theirs, that may exist, in the order of names."""
    found: set[StoreId] = set()
    waiting = [store]
    while waiting:
        parent = waiting.pop()
        entry = manifests.find(parent) or StoreEntry()
        for fork in entry.forks:
            child = fork.store(parent)
            # What was forked from a fork that is deleted has its data, too.
            if child not in found and child != store:
                found.add(child)
                waiting.append(child)
    return sorted(each for each in found if not _is_deleted(manifests, each))


def _is_deleted(manifests: Manifests, store: StoreId) -> bool:
    entry = manifests.find(store)
    return entry is not None and entry.deleted is not None


def _as_it_is(manifests: Manifests, parent: StoreId, fork: ForkReference) -> ForkReference | None:
    """Return what a reference should be by now; None if the fork does not exist."""
    child = fork.store(parent)
    if fork.holds and _has_version(manifests.find(child), fork.key):
        return fork
    closed = manifests.collect_before(shard_of(child), fork.taken + 1)
    entry = closed.get(child)
    if fork.holds and _has_version(entry, fork.key):
        return fork
    lives = entry is not None and any(each.epoch >= fork.epoch for each in entry.versions)
    # What a fork that is gone has held is still to be erased.
    has_more = bool(fork.key) or (entry is not None and bool(entry.forks))
    return fork._replace(holds=False) if lives or has_more else None


def _without_gone_object(manifests: Manifests, fork: ForkReference) -> ForkReference | None:
    with suppress(ObjectMissingError):
        manifests.bucket.head(fork.key)
        return fork
    return fork._replace(key="")


def _has_version(entry: StoreEntry | None, key: str) -> bool:
    return entry is not None and any(version.key == key for version in entry.versions)
