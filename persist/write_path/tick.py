"""One tick: everything that arrived while the last one committed, applied store by store.

Pure but for look-ups in store files. `Tick` takes the groups in the order of arrival and executes
the writes against the stores in memory. Then it gives

- the records of one commit log frame. Each store's changes are packed once: the same bytes go to
  the log and to the followers. Only those of encrypted stores are packed twice;
- the answers, keyed by their reply subject, and the broadcasts. They leave only when the frame is
  synced and the fence has been read (`pipeline.py`);
- the reads, which run after the sync, on what is durable;
- the answers, reads and broadcasts of ephemeral stores, which wait for no sync but that of the
  numbers that their store has reserved (`persist/ephemeral/anchor.py`).

If the log refuses the frame, `fail` takes every store back to the start of the tick. An
unexpected exception is answered as `internal_error`: to one operation, or to everything that the
tick did to that store.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from holdfast.persist.bucket_log.stored import StoredWrites
from holdfast.persist.operations import eviction, operations, uploads
from holdfast.persist.operations.append_runs import append_alone
from holdfast.persist.quotas.tenant_quota import TenantQuota, adds
from holdfast.persist.store.change_sizes import bytes_of
from holdfast.persist.store.open_stores import Arrival
from holdfast.persist.store.store import Store
from holdfast.persist.store.writers import Admission, WriterState
from holdfast.protocol import changes, frames
from holdfast.protocol.errors import (
    BusyError,
    HoldfastError,
    InvalidArgumentError,
    StaleWriteError,
    StorageError,
    WriterGapError,
    error_to_wire,
    internal_error,
)
from holdfast.protocol.limits import MAX_OUTCOME_BYTES, PAGE_BYTES
from holdfast.protocol.messages import Durability
from holdfast.shared_fs.disk.commit_log import LogRecord
from holdfast.shared_fs.store_file.applying import WriterOutcome

#: The elements of reply frames, by reply subject.
Answers = dict[str, list[list[Any]]]

_APPLIED: Final = int(Durability.APPLIED)
_SYNCED: Final = int(Durability.SYNCED)
_STORED: Final = int(Durability.STORED)
_MEMORY: Final = int(Durability.MEMORY)
#: A tick of one store with chunks and more changes than this has few chunks among many small ones.
_FEW_CHANGES: Final = 64
#: Where the result of an increment has the total: see `append` in `appending.py`.
_TOTAL_AT: Final = 4


class MemoryPart(NamedTuple):
    """What leaves of those ephemeral stores of a tick whose last reservation is in tick `wait_for`,
    once that is synced; 0: it was synced before."""

    wait_for: int
    answers: Answers
    reads: list[tuple[Store, Arrival]]
    broadcasts: list[tuple[Store, bytes]]


class Tick:
    """The tick being built. `number` is its number in the log, `time` is int milliseconds
    since the epoch."""

    def __init__(
        self,
        number: int,
        time: int,
        default_durability: Durability,
        *,
        stored: StoredWrites | None = None,
        log_level: Durability = Durability.SYNCED,
    ) -> None:
        """`stored` keeps the answers of that level, if the server offers it. `log_level` is the
        level that a sync of the log achieves; if it is STORED, every write is stored."""
        self.number = number
        self.time = time
        self._default = int(default_durability)
        self._stored = stored
        self._log_level = int(log_level)
        #: The stores that it changes, in the order of their first change.
        self._stores: dict[Store, None] = {}
        #: Answers that leave after the sync, and those that only promised `applied`.
        self.synced: Answers = {}
        self.applied: Answers = {}
        #: Answers that also wait for the bucket: `(store, reply, element)`.
        self.stored: list[tuple[Store, str, list[Any]]] = []
        self.reads: list[tuple[Store, Arrival]] = []
        self.broadcasts: list[tuple[Store, bytes]] = []
        #: The same of ephemeral stores.
        self._memory_answers: list[tuple[Store, str, list[Any]]] = []
        self._memory_reads: list[tuple[Store, Arrival]] = []
        self._memory_broadcasts: list[tuple[Store, bytes]] = []
        #: Stores that were configured to be ephemeral.
        self.becoming_ephemeral: list[Store] = []
        #: The tick whose sync this tick's answers must wait for.
        self.wait_for = 0
        self._writes: list[Arrival] = []
        #: That of the tenant whose groups are executed, and when, in monotonic seconds.
        self.quota: TenantQuota | None = None
        self.now = 0.0
        #: Operations that were refused alone, by error code.
        self.refused: dict[str, int] = {}
        #: Unexpected exceptions. Each is answered already, and is still to be logged.
        self.mishaps: list[Exception] = []

    def answer(self, arrival: Arrival, outcome: bytes) -> None:
        """Answer a group after the sync."""
        self.synced.setdefault(arrival.reply, []).append([arrival.position, 0, outcome])

    def refuse(self, arrival: Arrival, error: HoldfastError) -> None:
        """Refuse a whole group."""
        self.refuse_at(arrival.reply, arrival.position, error)

    def refuse_at(self, reply: str, index: int, error: HoldfastError) -> None:
        """Refuse group `index` of the frame that came with `reply`. An index of -1 refuses
        the whole frame."""
        self.synced.setdefault(reply, []).append(frames.error_result(index, error))

    def expire(self, store: Store) -> bool:
        """Remove what is due from a store with limits, so that later groups do not see it.

        Returns False if there may be more than one tick should remove. Raises StorageError.
        """
        now = store.now(self.time)
        if store.uploads_due_at <= now:
            uploads.collect(store, now)
        complete = store.retention is None or eviction.expire(store, now)
        if store.mark is not None:
            self._stores[store] = None
        return complete

    def archive(self, store: Store, end_seq: int, table: str) -> None:
        """Let the values up to `end_seq` leave the store's file. Raises StorageError."""
        store.begin()
        self._stores[store] = None
        store.time = store.now(self.time)
        store.archive(end_seq, table)

    def limited(self) -> list[Store]:
        """Return the stores of this tick that have limits."""
        return [store for store in self._stores if store.retention is not None]

    def read(self, store: Store, arrival: Arrival) -> None:
        """Execute a group of reads after the sync."""
        if store.anchor is not None:
            self._memory_reads.append((store, arrival))
            return
        self.reads.append((store, arrival))
        self.wait_for = max(self.wait_for, store.last_tick)
        if store.mark is not None:
            self.wait_for = self.number

    def write_alone(self, store: Store, arrival: Arrival) -> bool:
        """Execute a group of one plain append, as `write` does. Return False if `write` must."""
        outcome = append_alone(store, arrival, self.time, self._default, self._log_level)
        if outcome is None:
            return False
        self._stores[store] = None
        self._writes.append(arrival)
        answered = self.synced.get(arrival[0])
        if answered is None:
            answered = self.synced[arrival[0]] = []
        answered.append([arrival[1], 0, outcome])
        return True

    def write(self, store: Store, arrival: Arrival) -> None:
        """Execute a group of writes now. Its answer waits."""
        reply, position, writer_id, _, group, _, _, _ = arrival
        _, _, counter, first_unacked, durability, group_operations = group
        if store.anchor is not None:
            if durability not in (0, _MEMORY) and any(map(_sets, group_operations)):
                reason = "an ephemeral store is in memory alone: ask for no level, or for 'memory'"
                self.refuse(arrival, InvalidArgumentError(argument="durability", reason=reason))
                return
            durability = _MEMORY
        elif not durability:
            durability = self._default if store.retention is None else self._default_of(store)
        if durability != self._log_level and store.anchor is None:
            refusal = self._refusal(durability)
            if refusal is not None:
                self.refuse(arrival, refusal)
                return
            if self._log_level == _STORED:
                durability = _STORED
        writer = store.writers.known.get(writer_id) or store.writer(writer_id)
        verdict, known = writer.judge(counter, first_unacked)
        quota = self.quota
        if (
            quota is not None
            and verdict is Admission.NEW
            and self._refuse_for_quota(quota, store, arrival, writer, durability)
        ):
            return
        if verdict is Admission.NEW and (
            not writer.last or store.writers.outcome_bytes > MAX_OUTCOME_BYTES
        ):
            verdict = store.writers.admit(writer_id, writer, counter, first_unacked)
        if verdict is not Admission.NEW:
            if not writer.last and not writer.outcomes:
                # The store knows nothing of this writer, and an invented one must not
                # fill the memory.
                store.writers.known.pop(writer_id, None)
            self._answer_retry(store, arrival, verdict, known, writer.last + 1, durability)
            return
        if store.mark is None:
            store.begin()
            self._stores[store] = None
        time = self.time + store.lead
        if time < store.time:
            time = store.now(self.time)
        store.time = time
        if quota is None:
            results = operations.execute(store, group_operations, self.mishaps)
        else:
            results = self._execute_within(quota, store, arrival)
        if type(results) is list:
            self._count_refused(results)
        outcome = frames.encode_outcome(store.epoch, time, durability, results)
        before_bytes = writer.size_bytes
        writer.record(counter, first_unacked, outcome)
        store.writers.outcome_bytes += writer.size_bytes - before_bytes
        to_keep = outcome
        if store.cipher is not None and type(results) is list and _tell_totals(results):
            # The total of a counter is its value.
            to_keep = store.cipher.encrypted_outcome(writer_id, counter, outcome)
        # Faster than the class: see `_new` in `frames.py`.
        kept = tuple.__new__(WriterOutcome, (writer_id, counter, first_unacked, time, to_keep))
        store.outcomes.append(kept)
        self._writes.append(arrival)
        if durability == self._log_level:
            answers = self.synced
        elif durability == _MEMORY:
            self._memory_answers.append((store, reply, [position, 0, outcome]))
            return
        elif durability == _STORED:
            self.stored.append((store, reply, [position, 0, outcome]))
            return
        else:
            answers = self.applied if durability == _APPLIED else self.synced
        answered = answers.get(reply)
        if answered is None:
            answered = answers[reply] = []
        answered.append([position, 0, outcome])

    def _count_refused(self, results: list[operations.Result]) -> None:
        for result in results:
            # Of what writes return, only errors begin with a text.
            if result and type(result[0]) is str:
                self.refused[result[0]] = self.refused.get(result[0], 0) + 1

    def refuses_read(self, store: Store, arrival: Arrival) -> bool:
        """Refuse a group of reads if its tenant's rate is used up."""
        # A read that waited for the archive comes a second time.
        if self.quota is None or arrival.archived is not None:
            return False
        group = arrival.group
        error = self.quota.rate_refusal(group.operations, 0, self.now)
        if error is None:
            return False
        results = [error_to_wire(error)] * len(group.operations)
        self._count_refused(results)
        self.answer(arrival, frames.encode_outcome(store.epoch, store.time, 0, results))
        return True

    def _refuse_for_quota(
        self,
        quota: TenantQuota,
        store: Store,
        arrival: Arrival,
        writer: WriterState,
        durability: int,
    ) -> bool:
        """Refuse a new group if its tenant has used up its quota.

        Nothing of it goes to the log: a refusal must cost less than the write. But no copy that is
        still on its way may be executed, after its caller was told that nothing was stored.
        """
        group, size_bytes = arrival.group, arrival.size_bytes
        error: HoldfastError | None = quota.rate_refusal(group.operations, size_bytes, self.now)
        if error is None:
            refused = quota.refused(store, size_bytes)
            if refused is None or not all(map(refused.include, group.operations)):
                return False
            error = refused.error
        results = [error_to_wire(error)] * len(group.operations)
        self._count_refused(results)
        outcome = frames.encode_outcome(store.epoch, store.time, durability, results)
        counter, first_unacked = group.counter, group.first_unacked
        store.writers.refuse(writer, counter, first_unacked, outcome, store.kept_outcomes)
        self.answer(arrival, outcome)
        return True

    def _execute_within(
        self, quota: TenantQuota, store: Store, arrival: Arrival
    ) -> frames.Run | list[operations.Result]:
        """Execute a group of a tenant that has a quota."""
        before_bytes, group_operations = store.bytes, arrival.group.operations
        refused = quota.refused(store, arrival.size_bytes)
        if refused is None:
            results = operations.execute(store, group_operations, self.mishaps)
        else:
            results = operations.execute_but(store, group_operations, *refused, self.mishaps)
        chunk_bytes = arrival.size_bytes if store.has_chunks else 0
        quota.wrote(store, store.bytes - before_bytes + chunk_bytes)
        return results

    def abort(self, store: Store, error: HoldfastError) -> None:
        """Take back everything that this tick did to a store, because its file
        failed or a bug did."""
        if store.mark is not None:
            store.fail_tick()
        self._stores.pop(store, None)
        mine = {(arrival.reply, arrival.position) for arrival in self._writes_of(store)}
        for answers in (self.synced, self.applied):
            for reply, elements in answers.items():
                answers[reply] = [each for each in elements if (reply, each[0]) not in mine]
        self.stored = [each for each in self.stored if (each[1], each[2][0]) not in mine]
        self._memory_answers = [each for each in self._memory_answers if each[0] is not store]
        self._memory_broadcasts = [each for each in self._memory_broadcasts if each[0] is not store]
        for reply, index in mine:
            self.refuse_at(reply, index, error)
        self._writes = [arrival for arrival in self._writes if arrival.store != store.id]

    def give_up(self, store: Store, cause: Exception) -> None:
        """Take back everything that this tick did to a store, because of an
        unexpected exception."""
        self.mishaps.append(cause)
        self.abort(store, internal_error(f"a write of {store.id}", cause))

    def records(self) -> list[LogRecord]:
        """Return the records for the log, and pack the broadcasts. Empty if nothing was written.

        What ephemeral stores have accepted needs no record, so with this it is there."""
        found = []
        in_memory: list[Store] = []
        broadcasts = self.broadcasts
        unpackable: list[tuple[Store, Exception]] = []
        for store in self._stores:
            assert store.mark is not None
            previous_revision, revision = store.mark.revision, store.revision
            wires = store.changes
            anchor = store.anchor
            try:
                if anchor is not None:
                    reached = revision, store.last_seq
                    record = anchor.record(store.id, store.epoch, store.time, reached, store.config)
                    in_pages = _payloads(store, wires)
                    self._memory_broadcasts += [(store, payload) for payload in in_pages]
                    if record is None:
                        in_memory.append(store)
                    else:
                        found.append(record)
                    continue
                if wires and store.changes_bytes <= PAGE_BYTES and not store.has_chunks:
                    # The common case: nearly all of a thousand stores have few changes.
                    payload = frames.encode_changes(
                        store.epoch, previous_revision, store.time, wires, store.chain
                    )
                    payloads = [payload]
                    if store.cipher is not None:
                        [payload] = _payloads(store, as_sent(store))
                    broadcasts.append((store, payload))
                else:
                    payloads = told = _payloads(store, wires)
                    if store.has_chunks or store.cipher is not None:
                        told = _payloads(store, as_sent(store))
                    broadcasts.extend((store, payload) for payload in told)
            except Exception as error:  # noqa: BLE001 (refused for this store alone)
                unpackable.append((store, error))
                continue
            fields = (store.id, store.epoch, previous_revision, revision, payloads, store.outcomes)
            found.append(tuple.__new__(LogRecord, fields))
        for store, cause in unpackable:
            self.give_up(store, cause)
        for store in in_memory:
            del self._stores[store]
            store.finish_tick(store.last_tick, None)
        if not found:
            self._wait_for_earlier()
        return found

    def committed(self, segment: int) -> None:
        """Note that the frame is in the log, in `segment`."""
        for store in self._stores:
            store.finish_tick(self.number, segment)
            if store.retention is not None and store.becomes_ephemeral:
                self.becoming_ephemeral.append(store)
        self.wait_for = self.number

    def memory_parts(self, synced_tick: int) -> list[MemoryPart]:
        """Return what leaves of ephemeral stores, after `records` and `committed`, if the ticks up
        to `synced_tick` are synced. No store waits for what another one reserves."""
        parts: dict[int, MemoryPart] = {}

        def part_of(store: Store) -> MemoryPart:
            wait_for = store.last_tick if store.last_tick > synced_tick else 0
            part = parts.get(wait_for)
            if part is None:
                part = parts[wait_for] = MemoryPart(wait_for, {}, [], [])
            return part

        for store, reply, element in self._memory_answers:
            part_of(store).answers.setdefault(reply, []).append(element)
        for read in self._memory_reads:
            part_of(read[0]).reads.append(read)
        for broadcast in self._memory_broadcasts:
            part_of(broadcast[0]).broadcasts.append(broadcast)
        return list(parts.values())

    def fail(self, error: StorageError) -> None:
        """Take every store back and refuse every write: the log refused the frame."""
        self.broadcasts.clear()
        for store in list(self._stores):
            self.abort(store, error)
        self._wait_for_earlier()

    def _refusal(self, durability: int) -> HoldfastError | None:
        """Return why a level is not available now, or None if it is."""
        if durability == _STORED and self._stored is not None:
            return BusyError(what="the log in the bucket") if self._stored.is_full else None
        if durability in (_APPLIED, _SYNCED) or self._log_level == durability:
            return None
        reason = (
            "level stored needs a server with a bucket"
            if durability == _STORED
            else "only ephemeral stores have level memory"
            if durability == _MEMORY
            else f"there is no level {durability}"
        )
        return InvalidArgumentError(argument="durability", reason=reason)

    def _default_of(self, store: Store) -> int:
        if store.retention is None:
            return self._default
        return int(store.retention.config.durability) or self._default

    def _wait_for_earlier(self) -> None:
        # This tick has no frame, so no sync would ever cover it.
        self.wait_for = min(self.wait_for, self.number - 1)

    def _answer_retry(
        self,
        store: Store,
        arrival: Arrival,
        verdict: Admission,
        known: bytes | None,
        expected: int,
        durability: int,
    ) -> None:
        counter = arrival.group.counter
        self.wait_for = max(self.wait_for, store.last_tick)
        if store.mark is not None:
            self.wait_for = self.number
        if verdict is Admission.KNOWN:
            assert known is not None
            if any(
                (kept.writer, kept.counter) == (arrival.writer, counter) for kept in store.outcomes
            ):
                # Written in this very tick: if the write is taken back, so is this answer.
                self._writes.append(arrival)
            if durability == _STORED != self._log_level:
                # It may not be in the bucket yet, or its owner may have died before it was.
                self.stored.append((store, arrival.reply, [arrival.position, 0, known]))
            else:
                self.answer(arrival, known)
        elif verdict is Admission.FULL:
            self.refuse(arrival, BusyError(what=f"the memory of {store.id} for its writers"))
        elif verdict is Admission.GAP:
            self.refuse(arrival, WriterGapError(counter=counter, expected=expected))
        else:
            self.refuse(arrival, StaleWriteError(counter=counter))

    def _writes_of(self, store: Store) -> list[Arrival]:
        return [arrival for arrival in self._writes if arrival.store == store.id]


def _sets(operation: list[Any]) -> bool:
    """Tell if an operation sets messages or entries. A chunk is refused for what it is."""
    return operation[0] != frames.PUT_CHUNK and adds(operation)


def _tell_totals(results: list[Any]) -> bool:
    """Tell if one of these results, or of the results of a batch among them, has the total of a
    counter."""
    return any(
        (len(each) > _TOTAL_AT and each[_TOTAL_AT] is not None) or _tell_totals(each)
        for each in results
        if type(each) is list
    )


def as_sent(store: Store) -> list[frames.WireChange]:
    """Return the tick's changes of a store as followers get them: decrypted, and without chunks,
    which they do not need."""
    assert store.mark is not None
    cipher = store.cipher
    sent = []
    for revision, change in enumerate(store.changes, store.mark.revision + 1):
        if changes.number_of(change) == changes.CHANGE_PUT_CHUNK:
            change = changes.without_data(change)
        elif cipher is not None:
            change = cipher.decrypted(change, revision)
        sent.append(change)
    return sent


def _payloads(store: Store, wires: list[frames.WireChange]) -> list[bytes]:
    """Return the tick's changes of a store, packed into broadcasts that each fit in one frame."""
    assert store.mark is not None
    if not wires:
        return []
    previous_revision = store.mark.revision
    encode = frames.encode_changes
    if store.has_chunks and len(wires) <= _FEW_CHANGES:
        encode = frames.encode_large_changes
    if store.changes_bytes <= PAGE_BYTES:
        return [encode(store.epoch, previous_revision, store.time, wires, store.chain)]
    payloads = []
    start = size_bytes = 0
    for index, change in enumerate(wires):
        change_bytes = bytes_of((change,))
        if index > start and size_bytes + change_bytes > PAGE_BYTES:
            payloads.append(
                encode(store.epoch, previous_revision + start, store.time, wires[start:index])
            )
            start, size_bytes = index, 0
        size_bytes += change_bytes
    payloads.append(
        encode(*(store.epoch, previous_revision + start, store.time, wires[start:], store.chain))
    )
    return payloads


def answer_count(answers: Answers) -> int:
    """Return how many groups of writes are answered."""
    return sum(map(len, answers.values()))
