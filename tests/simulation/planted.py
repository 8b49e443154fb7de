"""Bugs planted on purpose, to show that the simulation finds them.

Each is a context manager that breaks one safeguard of the shipped code while it is entered, and is
named after what is left out. Nothing here is reachable from the shipped code.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any, Final
from unittest.mock import patch

import apsw

from holdfast.client.following.merge import Broadcast, Cursor, Merge
from holdfast.client.following.pattern_feed import PatternFeed, StoreFeed
from holdfast.client.wire.coalescer import Coalescer
from holdfast.client.wire.frame import Frame
from holdfast.client.wire.store_queue import QueuedGroup, StoreQueue
from holdfast.coordinator.answering import assigning
from holdfast.coordinator.decisions.claims import Division, Holder, WorkClaim
from holdfast.coordinator.decisions.events import Probe, ProbeFailed
from holdfast.coordinator.decisions.standby_heartbeats import Proof
from holdfast.coordinator.decisions.storage_proof import StorageProof
from holdfast.coordinator.peers.orders import Orders
from holdfast.persist.access.frame_access import FrameAccess
from holdfast.persist.consumers.consumers import ConsumerState
from holdfast.persist.jobs.closing import RetiredStore
from holdfast.persist.jobs.reopening.larger_pages import LargerPages
from holdfast.persist.lifecycle.openings import Openings
from holdfast.persist.lifecycle.steady_clock import SteadyClock
from holdfast.persist.operations import appending, cursors, operations, purging
from holdfast.persist.operations.configuring import configure
from holdfast.persist.peers.early_grants import EarlyGrants
from holdfast.persist.recovery.takeover import TakeoverPlan, plan
from holdfast.persist.shared_disk import evidence, freshness
from holdfast.persist.shared_disk.fresh_files import FreshFiles
from holdfast.persist.shared_disk.opening import StoreOpener
from holdfast.persist.store.leases import Leases
from holdfast.persist.store.open_stores import WantedStore
from holdfast.persist.store.states import Standing
from holdfast.persist.store.store import Store
from holdfast.persist.tier.behind import BehindStores
from holdfast.persist.tier.cooling import ColdCandidate, Cooler
from holdfast.persist.write_path.checkpointing import Checkpointer
from holdfast.persist.write_path.pipeline import Pipeline
from holdfast.persist.write_path.releasing import Releaser
from holdfast.persist.write_path.setting_aside import SettingAside
from holdfast.persist.write_path.tick import Answers, Tick
from holdfast.protocol import changes
from holdfast.protocol.access import grants
from holdfast.protocol.access.grants import no_token
from holdfast.protocol.access.tokens import Token, read_token
from holdfast.protocol.control import Grant
from holdfast.protocol.errors import HoldfastError, NotAllowedError
from holdfast.protocol.frames import EXPECT, WireChange, decode_changes
from holdfast.protocol.limits import REVOCATIONS_FRESH_SECONDS
from holdfast.protocol.names import StoreId
from holdfast.protocol.serving.grant_book import GrantBook, Settled, ToRead
from holdfast.protocol.subjects import Subjects
from holdfast.shared_fs.access import token_source
from holdfast.shared_fs.access.registry import AccessRegistry
from holdfast.shared_fs.authority.progress import ProgressFile
from holdfast.shared_fs.authority.term import TermFile
from holdfast.shared_fs.bucket.bucket import Bucket
from holdfast.shared_fs.disk import commit_log
from holdfast.shared_fs.disk.commit_log import LogRecord
from holdfast.shared_fs.disk.disk import Disk
from holdfast.shared_fs.disk.fence import FenceGate
from holdfast.shared_fs.disk.proof import Sight
from holdfast.shared_fs.snapshots import manifest, repacking, snapshot
from holdfast.shared_fs.snapshots.manifest import Manifests
from holdfast.shared_fs.snapshots.snapshot import Fetched, Near
from holdfast.shared_fs.snapshots.store_entry import Published, SnapshotVersion, StoreEntry
from holdfast.shared_fs.store_file.applying import AppliedBatch, WriterOutcome
from holdfast.shared_fs.store_file.pages.page_sizes import LARGE_PAGE_BYTES
from holdfast.shared_fs.store_file.store_file import StoreFile
from tests.simulation.outgrowing import outgrowing_files


@contextlib.contextmanager
def skip_the_fence_check() -> Iterator[None]:
    """A fenced incarnation goes on as if nothing had happened."""
    with patch.object(FenceGate, "check", lambda gate: None):
        yield


@contextlib.contextmanager
def believe_the_mount() -> Iterator[None]:
    """A server takes what it reads for fresh, whatever the coordinator says it wrote."""
    with patch.object(freshness, "judge", lambda before, told, found: Sight.FRESH):
        yield


@contextlib.contextmanager
def believe_old_logs() -> Iterator[None]:
    """A takeover takes whatever its mount shows of a log for all of it."""
    with (
        patch.object(commit_log, "require_seal", lambda directory, names: None),
        patch.object(commit_log, "read_sealed", lambda disk, path: disk.read(path)),
    ):
        yield


@contextlib.contextmanager
def believe_old_files() -> Iterator[None]:
    """A new owner takes the file of a store that its mount shows for what the last one left."""
    with patch.object(FreshFiles, "show", lambda files, path: None):
        yield


@contextlib.contextmanager
def ack_before_the_sync() -> Iterator[None]:
    """Answers and broadcasts leave as soon as the frame is written to the log."""
    queue = Pipeline._queue

    def queue_at_once(pipeline: Pipeline, tick: Tick) -> None:
        tick.wait_for = 0
        queue(pipeline, tick)

    with patch.object(Pipeline, "_queue", queue_at_once):
        yield


@contextlib.contextmanager
def replay_old_epochs() -> Iterator[None]:
    """A takeover applies whatever continues the file, of whatever epoch."""

    def plan_without_bounds(
        store: StoreId, records: Sequence[LogRecord], *, file_epoch: int, file_revision: int
    ) -> TakeoverPlan:
        found = TakeoverPlan([], [])
        revision = file_revision
        for record in sorted(records, key=lambda each: each.epoch):
            if record.previous_revision == revision:
                batches = [decode_changes(payload) for payload in record.payloads]
                found.batches.extend(
                    AppliedBatch(each.previous_revision, each.time, each.changes)
                    for each in batches
                )
                found.outcomes.extend(WriterOutcome(*outcome) for outcome in record.outcomes)
                revision = record.revision
        return found

    with patch.object(evidence, "plan", plan_without_bounds):
        yield


@contextlib.contextmanager
def forget_outcomes_in_a_takeover() -> Iterator[None]:
    """What writers were answered by the dead owner is not taken over, only what they wrote."""

    def plan_without_outcomes(*arguments: Any, **options: Any) -> TakeoverPlan:
        return plan(*arguments, **options)._replace(outcomes=[])

    with patch.object(evidence, "plan", plan_without_outcomes):
        yield


@contextlib.contextmanager
def forget_rows_of_cursors_in_a_takeover() -> Iterator[None]:
    """Of what gateways recorded, the rows that are in the log alone are not taken over."""

    def without_rows(change: WireChange) -> WireChange:
        is_cursor = changes.number_of(change) == changes.CHANGE_SET_CURSOR
        return [*change[:4], [], change[5]] if is_cursor else change

    def plan_without_rows(*arguments: Any, **options: Any) -> TakeoverPlan:
        found = plan(*arguments, **options)
        return found._replace(
            batches=[
                batch._replace(changes=list(map(without_rows, batch.changes)))
                for batch in found.batches
            ]
        )

    with patch.object(evidence, "plan", plan_without_rows):
        yield


@contextlib.contextmanager
def let_replaced_gateways_write() -> Iterator[None]:
    """A gateway goes on to write to a stream that another one serves."""
    with contextlib.ExitStack() as stack:
        for module in (appending, cursors, configure, purging):
            stack.enter_context(patch.object(module, "check_serving_epoch", lambda *_: None))
        yield


@contextlib.contextmanager
def retire_the_log_without_a_sync() -> Iterator[None]:
    """A checkpoint moves the WAL into the file and syncs neither."""

    def checkpoint(file: StoreFile) -> None:
        file._connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)

    with patch.object(StoreFile, "checkpoint", checkpoint):
        yield


@contextlib.contextmanager
def follow_over_gaps() -> Iterator[None]:
    """A follower takes the next broadcast for the next change."""
    broadcast = Merge.broadcast

    def broadcast_anyway(merge: Merge, batch: Broadcast) -> None:
        cursor = merge.cursor
        if cursor is not None and batch.previous_revision > cursor.revision and not merge.behind:
            merge.cursor = cursor._replace(revision=batch.previous_revision)
        broadcast(merge, batch)

    with patch.object(Merge, "broadcast", broadcast_anyway):
        yield


@contextlib.contextmanager
def evict_what_was_not_published() -> Iterator[None]:
    """A file leaves the file system though its snapshot does not have its last changes."""

    def open_any(cooler: Cooler, candidate: ColdCandidate) -> StoreFile | None:
        return cooler._snapshotter.imager.open_closed(candidate.store)

    with patch.object(Cooler, "_open_exact", open_any):
        yield


@contextlib.contextmanager
def forget_how_old_changes_are() -> Iterator[None]:
    """Open stores are snapshotted when they have changed much, and when they are closed."""

    def never(stores: BehindStores, now: int) -> list[StoreId]:
        return []

    with patch.object(BehindStores, "due", never):
        yield


@contextlib.contextmanager
def publish_the_older_over_the_newer() -> Iterator[None]:
    """The last to publish has the newest version, whatever it is of; and some publish late, as
    after a call without an answer."""
    publish = Manifests.publish
    earlier: dict[Manifests, list[tuple[StoreId, SnapshotVersion]]] = {}

    def publish_the_last_again(
        manifests: Manifests, versions: list[tuple[StoreId, SnapshotVersion]], *arguments: Any
    ) -> dict[StoreId, Published]:
        outcomes = publish(manifests, versions, *arguments)
        publish(manifests, earlier.get(manifests, []), *arguments)
        earlier[manifests] = versions
        return outcomes

    def with_any_version(
        entry: StoreEntry | None, version: SnapshotVersion, collected_before: int = 0
    ) -> tuple[StoreEntry, Published]:
        entry = entry or StoreEntry()
        return replace(entry, versions=(version, *entry.versions)), Published.NEWEST

    with (
        patch.object(manifest, "with_version", with_any_version),
        patch.object(Manifests, "publish", publish_the_last_again),
    ):
        yield


@contextlib.contextmanager
def restore_without_telling() -> Iterator[None]:
    """A store that was brought back is written to, and the coordinator has it as cold still. Nor is
    its file compared with what the coordinator knows of it."""
    opened = StoreOpener.open

    async def open_as_hot(opener: StoreOpener, *arguments: Any, **options: Any) -> Store:
        store = await opened(opener, *arguments, **options)
        if store.standing is Standing.COLD:
            store.standing = Standing.DURABLE
        return store

    with (
        patch.object(StoreOpener, "open", open_as_hot),
        patch.object(evidence.Evidence, "refuse_older", lambda *_: None),
    ):
        yield


@contextlib.contextmanager
def commit_without_conditions() -> Iterator[None]:
    """A transaction is stored, whatever happened since it read."""
    with contextlib.ExitStack() as stack:
        for table in operations._HANDLERS.values():
            stack.enter_context(patch.dict(table, {EXPECT: lambda store, operation: []}))
        yield


@contextlib.contextmanager
def deliver_again_at_once() -> Iterator[None]:
    """A fetch gives whatever nobody has acknowledged, however long ago it was delivered."""
    with patch.object(ConsumerState, "due", lambda consumer, now: iter(sorted(consumer.pending))):
        yield


@contextlib.contextmanager
def keep_uploads_that_were_given_up() -> Iterator[None]:
    """What was uploaded and became no value stays."""
    with patch.object(Store, "given_up", lambda store, now: []):
        yield


@contextlib.contextmanager
def begin_births_at_the_head() -> Iterator[None]:
    """A follower of a pattern begins with a store that is born where that stands when it hears of
    it."""
    activate = PatternFeed._activate

    def activate_at_the_head(
        feed: PatternFeed, name: str, start_revision: Cursor | None
    ) -> StoreFeed:
        return activate(feed, name, start_revision if start_revision != Cursor(0, 0) else None)

    with patch.object(PatternFeed, "_activate", activate_at_the_head):
        yield


@contextlib.contextmanager
def believe_an_older_state() -> Iterator[None]:
    """A coordinator goes on from whatever state it finds."""
    with patch.object(ProgressFile, "read", lambda progress: None):
        yield


@contextlib.contextmanager
def judge_without_hearing() -> Iterator[None]:
    """A coordinator that hears nothing takes the servers for silent."""
    now = property(lambda proof: asyncio.get_running_loop().time(), lambda proof, until: None)
    with patch.object(Proof, "until", now, create=True):
        yield


@contextlib.contextmanager
def believe_that_nobody_listens() -> Iterator[None]:
    """A server that lost its connection is taken for dead, though its process runs."""

    async def nobody_listens(orders: Orders, order: Probe) -> ProbeFailed:
        return ProbeFailed(order.server, order.incarnation, no_responders=True)

    with patch.object(Orders, "_nobody_listens", nobody_listens):
        yield


@contextlib.contextmanager
def judge_while_the_storage_hangs() -> Iterator[None]:
    """A coordinator takes it for proven that its own storage does not hang."""
    with patch.object(StorageProof, "holds_since", lambda proof, at: True):
        yield


@contextlib.contextmanager
def answer_where_anybody_says() -> Iterator[None]:
    """A reply goes to whatever subject its request names."""

    def may_answer(subjects: Subjects, subject: str, reply: str) -> bool:
        return bool(reply) and not reply.startswith(f"{subjects.prefix}.")

    with patch.object(Subjects, "may_answer", may_answer):
        yield


@contextlib.contextmanager
def forget_the_term() -> Iterator[None]:
    """A coordinator does not look whether a later one has taken over."""
    with patch.object(TermFile, "check", lambda terms: None):
        yield


@contextlib.contextmanager
def wait_for_a_clock_that_was_ahead() -> Iterator[None]:
    """The time of a store stands still until the clock of its owner has caught up."""
    with patch.object(Store, "now", lambda store, time: max(time, store.time)):
        yield


@contextlib.contextmanager
def follow_a_leap_of_the_clock() -> Iterator[None]:
    """A server goes by the wall clock, whatever that says."""
    with patch.object(SteadyClock, "__call__", lambda clock: int(clock._wall() * 1000)):
        yield


@contextlib.contextmanager
def believe_the_clock_at_the_start() -> Iterator[None]:
    """A server begins with its own clock, whatever the coordinator's shows."""
    with patch.object(SteadyClock, "compare", lambda clock, time_ms: None):
        yield


@contextlib.contextmanager
def keep_damaged_stores_in_service() -> Iterator[None]:
    """A store whose changes cannot be applied goes on holding them, and the log."""

    async def set_none_aside(setting_aside: SettingAside) -> None: ...

    with patch.object(SettingAside, "run_pass", set_none_aside):
        yield


@contextlib.contextmanager
def believe_revoked_tokens() -> Iterator[None]:
    """A server that knows a token does not look again whether it was revoked."""
    read = GrantBook.revocations_read

    def read_and_keep(book: GrantBook[Any], *arguments: Any) -> list[Settled[Any]]:
        known = dict(book._known)
        settled = read(book, *arguments)
        book._known.update(known)
        return settled

    with patch.object(GrantBook, "revocations_read", read_and_keep):
        yield


@contextlib.contextmanager
def go_on_without_the_registry() -> Iterator[None]:
    """A server that cannot read what was revoked goes by what it read last."""
    work = GrantBook.work

    def work_and_go_on(book: GrantBook[Any], now: float) -> ToRead:
        if book._read_at > -math.inf:
            book._fresh_until = now + REVOCATIONS_FRESH_SECONDS
        return work(book, now)

    with patch.object(GrantBook, "work", work_and_go_on):
        yield


@contextlib.contextmanager
def key_writers_by_token() -> Iterator[None]:
    """What a client numbers counts for its token and not for its holder."""
    with patch.object(grants, "_holder_key", lambda token: token.id.encode()):
        yield


@contextlib.contextmanager
def drop_admitted_of_revoked() -> Iterator[None]:
    """What was admitted is stored, and refused nevertheless if its token was revoked meanwhile."""
    revoke, send = AccessRegistry.revoke, Releaser._send_answers
    revoked: set[str] = set()

    def revoke_and_tell(registry: AccessRegistry, token: Token, now_seconds: float) -> None:
        revoked.add(token.id)
        revoke(registry, token, now_seconds)

    async def send_to_others(releaser: Releaser, answers: Answers) -> None:
        refusal = no_token("a store", "the token was revoked")
        refused = [[-1, 1, refusal.code, refusal.fields]]
        of_revoked = {reply for reply in answers if not revoked.isdisjoint(reply.split("."))}
        await send(
            releaser,
            {reply: refused if reply in of_revoked else answers[reply] for reply in answers},
        )

    with (
        patch.object(AccessRegistry, "revoke", revoke_and_tell),
        patch.object(Releaser, "_send_answers", send_to_others),
    ):
        yield


@contextlib.contextmanager
def believe_every_refusal() -> Iterator[None]:
    """A client takes a refusal for the answer to a write of which an earlier copy may be stored."""
    refused = Coalescer._refused

    def refused_for_good(
        coalescer: Coalescer, frame: Frame, group: QueuedGroup, error: HoldfastError, now: float
    ) -> None:
        if isinstance(error, NotAllowedError):
            group.refused_count = group.sent_count
        refused(coalescer, frame, group, error, now)

    def fail_queue(
        coalescer: Coalescer, queue: StoreQueue, error: HoldfastError, *_: float, **__: bool
    ) -> None:
        coalescer._fail_queue(queue, error)

    with (
        patch.object(Coalescer, "_refused", refused_for_good),
        patch.object(Coalescer, "_refuse_queue", fail_queue),
    ):
        yield


@contextlib.contextmanager
def believe_any_signature() -> Iterator[None]:
    """A token counts, whoever signed it, for whatever tenant."""
    with patch.object(token_source, "verified", lambda text, issuers: read_token(text)):
        yield


@contextlib.contextmanager
def write_without_the_right() -> Iterator[None]:
    """Whoever may use a store may write to it."""
    with patch.object(FrameAccess, "refusal", lambda *_: None):
        yield


@contextlib.contextmanager
def move_what_is_being_opened() -> Iterator[None]:
    """A store that is not open here is given to the next owner while it is being opened."""

    @contextlib.contextmanager
    def of_closed(leases: Leases, store: StoreId) -> Iterator[bool]:
        yield True

    open_store = Openings._open_store

    async def open_slowly(openings: Openings, wanted: WantedStore, grant: Grant) -> None:
        await asyncio.sleep(0.2)
        await open_store(openings, wanted, grant)

    with (
        patch.object(Leases, "of_closed", of_closed),
        # Moves seldom meet an opening that is as fast as usual.
        patch.object(Openings, "_open_store", open_slowly),
    ):
        yield


@contextlib.contextmanager
def move_before_all_is_in_the_file() -> Iterator[None]:
    """A store is given to the next owner although its last changes are in the log alone."""

    async def close_held(checkpointer: Checkpointer, stores: list[Store]) -> list[Store]:
        for store in stores:
            if store.file is not None:
                store.file.abandon()
            store.file = None
            store.end()
        return stores

    with patch.object(Checkpointer, "close_held", close_held):
        yield


@contextlib.contextmanager
def believe_stale_grants() -> Iterator[None]:
    """A grant that was told before it was asked for counts whatever was given up since."""
    with patch.object(EarlyGrants, "_knew_all", lambda grants, given_up: True):
        yield


@contextlib.contextmanager
def give_work_to_whoever_asks() -> Iterator[None]:
    """Cold work is given to the next one that asks, whoever has it."""
    divide = assigning.divide

    def divided(
        asker: Holder,
        offers: frozenset[str],
        claims: dict[str, WorkClaim],
        rivals: dict[Holder, frozenset[str]],
    ) -> Division:
        free = {work: claim._replace(holder=None) for work, claim in claims.items()}
        return divide(asker, offers, free, rivals)

    with patch.object(assigning, "divide", divided):
        yield


@contextlib.contextmanager
def believe_the_cache() -> Iterator[None]:
    """Caches keep snapshots by the name of their store, and what they have counts as the snapshot
    that was asked for: nobody looks at its checksum."""
    fetch = snapshot.fetch
    kept: dict[tuple[Bucket, StoreId], SnapshotVersion] = {}

    def fetch_what_is_kept(
        bucket: Bucket,
        store: StoreId,
        version: SnapshotVersion,
        draft: Path,
        *,
        near: Near | None = None,
    ) -> Fetched:
        found = fetch(bucket, store, version, draft)
        if near is None:
            return found
        older = kept.setdefault((bucket, store), version)
        if older == version:
            return found
        found.drop(Disk())
        return replace(fetch(bucket, store, older, draft), version=version)

    with patch.object(repacking, "fetch", fetch_what_is_kept):
        yield


@contextlib.contextmanager
def copy_a_file_that_is_still_written() -> Iterator[None]:
    """A file is made anew with larger pages from what it had while its store was still open."""
    begin = LargerPages.begin

    def early(jobs: LargerPages, store: StoreId) -> Path:
        path = jobs._life.layout.store(store)
        return path.with_name(f"{path.name}.early.{jobs._life.id}")

    def begin_early(jobs: LargerPages, store: Store) -> None:
        file = store.file
        assert file is not None
        jobs._life.disk.remove(early(jobs, store.id))
        file.remake_to(early(jobs, store.id), LARGE_PAGE_BYTES, jobs._life.disk)
        begin(jobs, store)

    def draft(jobs: LargerPages, store: StoreId, closed: RetiredStore, draft: Path) -> None:
        jobs._life.disk.place(early(jobs, store), draft)

    with (
        outgrowing_files(),
        patch.object(LargerPages, "begin", begin_early),
        patch.object(LargerPages, "_draft", draft),
    ):
        yield


PLANTED: Final[dict[str, Callable[[], AbstractContextManager[None]]]] = {
    bug.__name__: bug
    for bug in (
        skip_the_fence_check,
        believe_the_mount,
        believe_old_logs,
        believe_old_files,
        ack_before_the_sync,
        replay_old_epochs,
        forget_outcomes_in_a_takeover,
        forget_rows_of_cursors_in_a_takeover,
        let_replaced_gateways_write,
        retire_the_log_without_a_sync,
        follow_over_gaps,
        evict_what_was_not_published,
        publish_the_older_over_the_newer,
        forget_how_old_changes_are,
        restore_without_telling,
        commit_without_conditions,
        deliver_again_at_once,
        keep_uploads_that_were_given_up,
        begin_births_at_the_head,
        believe_an_older_state,
        judge_without_hearing,
        believe_that_nobody_listens,
        judge_while_the_storage_hangs,
        answer_where_anybody_says,
        forget_the_term,
        wait_for_a_clock_that_was_ahead,
        follow_a_leap_of_the_clock,
        believe_the_clock_at_the_start,
        keep_damaged_stores_in_service,
        believe_revoked_tokens,
        go_on_without_the_registry,
        key_writers_by_token,
        drop_admitted_of_revoked,
        believe_every_refusal,
        believe_any_signature,
        write_without_the_right,
        move_what_is_being_opened,
        move_before_all_is_in_the_file,
        believe_stale_grants,
        give_work_to_whoever_asks,
        believe_the_cache,
        copy_a_file_that_is_still_written,
    )
}
