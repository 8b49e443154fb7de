"""Encrypts the values of a store with the current key: those in clear, and those under former keys.

    look whether it was done ──no──▶ a copy with other values takes the place (`replacing.py`)
                             └─yes─▶ drop earlier snapshots, which a killed owner has left

It is an erasure that removes no value: what earlier epochs wrote is void, and `erasure.py` removes
it. Invariants:

- The file says when it was encrypted anew, and with which key. That is believed for what earlier
  epochs have: they are void. Of the file itself nothing is believed: all of it is looked through,
  since an owner that knew of no new key yet may have written with the former one.
- The key is the one that the registry has now, not the one that this server last saw.
- Archived messages stay in their table as they are, unless they are asked for. Then they come back
  into the file, and are archived anew once an export has written them.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable

from holdfast.persist.jobs.closing import StoreCloser
from holdfast.persist.jobs.job_table import Report
from holdfast.persist.jobs.replacing import StoreReplacement
from holdfast.persist.store.store import Store
from holdfast.protocol.errors import ArchiveUnreadableError, InvalidArgumentError
from holdfast.protocol.names import StoreId
from holdfast.shared_fs.encryption.data_keys import TenantKeys
from holdfast.shared_fs.encryption.rewriting import ReadsBodies, Rewritten, ValueRewriting
from holdfast.shared_fs.encryption.sessions import CipherSessions
from holdfast.shared_fs.encryption.store_cipher import StoreCipher
from holdfast.shared_fs.store_file.encrypted.encrypted_rows import RewriteMark
from holdfast.shared_fs.store_file.store_file import StoreFile

logger = logging.getLogger("holdfast.persist")


class ReencryptJobs:
    """The rewriting of stores of one incarnation."""

    def __init__(
        self,
        closer: StoreCloser,
        replacement: StoreReplacement,
        read_archive: Callable[[], ReadsBodies] | None,
        read_keys: Callable[[], Awaitable[None]] | None,
    ) -> None:
        """`read_archive` returns what reads archived messages, in a thread; it is None without a
        bucket. `read_keys` reads the registry of keys; it is None if there is none."""
        self._closer = closer
        self._replacement = replacement
        self._read_archive = read_archive
        self._read_keys = read_keys

    async def reencrypt(self, store: StoreId, *, with_archived: bool = False) -> Report:
        """Encrypt the values of a store with the current key, unless that was done. What has them
        as they were is void. Raises NotFoundError without the store, InvalidArgumentError if its
        tenant is not encrypted, KeyUnavailableError, TenantShreddedError, DecryptionFailedError,
        ArchiveMissingError, StorageError."""
        if self._read_keys is not None:
            # Otherwise a key that was replaced a second ago could still be the current one here.
            await self._read_keys()
        opened = await self._closer.opened(store)
        if opened.anchor is not None:
            # What an ephemeral store holds reaches no disk.
            return _report(Rewritten(0, 0), 0)
        keys = _keys_of(opened)
        mark = opened.file.encryption.state.rewritten if opened.file is not None else None
        if mark is not None and not (with_archived and mark.archived):
            report = await self._done_before(store, opened.epoch, mark, keys)
            if report is not None:
                return report
        bodies: ReadsBodies | None = None
        if with_archived and self._read_archive is not None:
            bodies = self._read_archive()

        def rewrite(file: StoreFile) -> tuple[Rewritten, int, tuple[str, ...]]:
            names = file.encryption.state.former_names
            # A session of its own: this is another thread.
            cipher = StoreCipher(CipherSessions(keys), store, names)
            found = file.rewrite(lambda parts: ValueRewriting(parts).run(cipher, bodies))
            left = file.archived_count()
            if with_archived and left:
                reason = "this server has no bucket, so it reads no archive"
                raise ArchiveUnreadableError(store=store.name, reason=reason)
            return found, left, names

        (found, archived, names), report = await self._replacement.replaced(
            store, rewrite, key=keys.current_id
        )
        logger.info(
            "store.reencrypted store=%s epoch=%d values=%d", store, report["epoch"], found.values
        )
        return {**_report(found, archived, names), **report}

    async def _done_before(
        self, store: StoreId, epoch: int, mark: RewriteMark, keys: TenantKeys
    ) -> Report | None:
        """Drop what may have values as they were before a store was rewritten, and return the
        report. None if there is something to rewrite."""
        # One that is ahead of its store is of another cluster.
        if mark.key != keys.current_id or mark.epoch > epoch:
            return None

        def look(file: StoreFile) -> tuple[bool, tuple[str, ...], str]:
            entry = self._replacement.entry(store)
            newest = entry.newest
            # Without a later snapshot the earlier ones could not be dropped.
            has_snapshot = newest is None or newest.epoch >= mark.epoch
            is_done = has_snapshot and not ValueRewriting(file.parts).is_needed(mark.key)
            table = entry.archive.table if entry.archive is not None else ""
            return is_done, file.encryption.state.former_names, table

        is_done, names, table = await self._replacement.looked_at(store, look)
        if not is_done:
            return None
        report = _report(Rewritten(0, 0), mark.archived, names)
        dropped = await self._replacement.drop(store, mark.epoch - 1)
        removed = {"epoch": mark.epoch - 1, "snapshots": dropped, "files": 0, "table": table}
        return {**report, **removed, "was_done": True}


def _keys_of(opened: Store) -> TenantKeys:
    """Return the keys of an open store's tenant. Raises InvalidArgumentError, and what the keys'
    problem is."""
    if opened.cipher is None:
        reason = f"the values of tenant {opened.id.tenant!r} are not encrypted"
        raise InvalidArgumentError(argument="tenant", reason=reason)
    if opened.cipher.problem is not None:
        raise opened.cipher.problem.with_traceback(None)
    keys: TenantKeys = opened.cipher.sessions.keys
    return keys


def _report(found: Rewritten, archived: int, former_names: tuple[str, ...] = ()) -> Report:
    return {
        "epoch": 0,
        "table": "",
        "was_done": False,
        **found._asdict(),
        "archived": archived,
        "former_names": list(former_names),
    }
