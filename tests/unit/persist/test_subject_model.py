"""Streams with subjects against a plain model: appends with expectations, roll-ups and counters,
purges, limits per subject, expiry with markers; with ticks that fail, files that lag behind, and
owners that follow each other at any point."""

from __future__ import annotations

import math
import shutil
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from holdfast.protocol import frames
from holdfast.protocol.header_block import HeaderBlock
from holdfast.protocol.names import StoreKind
from holdfast.protocol.subject_filters import matches
from holdfast.shared_fs.encryption.data_keys import TenantKeys
from holdfast.shared_fs.store_file.applying import AppliedBatch
from holdfast.shared_fs.store_file.store_file import StoreFile
from tests.support.effort import examples
from tests.support.tenant_keys import KEYS
from tests.support.ticked_store import Bench, configure

SUBJECTS = ["a", "b", "a.1", "a.2", "b.1.x"]
FILTERS = [*SUBJECTS, ">", "a.*", "*", "*.1.>", "none"]
BLOCK = HeaderBlock.of({"KV-Operation": "PURGE"}).block

_subjects = st.sampled_from(SUBJECTS)
_filters = st.sampled_from(FILTERS)
_expected = st.sampled_from(["right", "right", "wrong", None])


class Row(NamedTuple):
    """A message of the model."""

    subject: str | None
    value: bytes
    time: int
    expires: float
    is_marker: bool = False


class SubjectsAgainstAModel(RuleBasedStateMachine):
    """What is stored, counted, refused and removed is what the model says."""

    keys: TenantKeys | None = None

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        self.bench = Bench(self.folder, StoreKind.STREAM, keys=self.keys)
        self.rows: dict[int, Row] = {}
        self.last_seq = 0
        self.limits: dict[str, Any] = {}

    def teardown(self) -> None:
        self.bench.close()
        shutil.rmtree(self.folder)

    # Rules
    @rule(
        per_subject=st.none() | st.integers(1, 3),
        is_new=st.booleans(),
        count=st.none() | st.integers(2, 8),
        age_seconds=st.none() | st.integers(1, 10),
        marker_seconds=st.none() | st.integers(1, 5),
    )
    def configure(
        self,
        per_subject: int | None,
        is_new: bool,
        count: int | None,
        age_seconds: int | None,
        marker_seconds: int | None,
    ) -> None:
        self._expire()
        self.limits = {
            "max_messages_per_subject": per_subject,
            "discard_new_per_subject": is_new,
            "max_messages": count,
            "max_age_seconds": age_seconds,
            "subject_marker_seconds": marker_seconds,
            "serving_epoch": self.limits.get("serving_epoch", 0) + 1,
        }
        revision, _ = configure(self.bench, **self.limits)
        assert type(revision) is int, "it is no refusal"
        self._evict()

    @rule(
        subject=_subjects | st.none(),
        expected=_expected,
        of=_filters | st.none(),
        rollup=st.sampled_from([None, None, None, "sub", "all"]),
        ttl_seconds=st.sampled_from([None, None, 1, 4, "never"]),
        is_purge=st.booleans(),
    )
    def append(
        self,
        subject: str | None,
        expected: str | None,
        of: str | None,
        rollup: str | None,
        ttl_seconds: Any,
        is_purge: bool,
    ) -> None:
        self._expire()
        options: dict[str, Any] = {}
        if expected is not None and (subject or of):
            last_seq = self._last(of or subject or "")
            options["expected_last_subject_seq"] = last_seq + (expected == "wrong")
            options["expected_subject"] = of
        if rollup is not None and (subject or rollup == "all"):
            options["rollup"] = rollup
        if ttl_seconds == "never":
            options["never_expires"] = True
        ttl = None if ttl_seconds == "never" else ttl_seconds
        operation = [1, b"v", BLOCK if is_purge else None, None, None, ttl, subject, None, options]
        result = self.bench.do(*operation)
        limit = self.limits.get("max_messages_per_subject")
        if options.get("expected_last_subject_seq") is not None and expected == "wrong":
            assert result[0] == "wrong_last_seq", result
            assert result[1]["actual"] == self._last(of or subject or "")
        elif (
            subject is not None
            and not options.get("rollup")
            and limit is not None
            and self.limits["discard_new_per_subject"]
            and self._count(subject) >= limit
        ):
            assert result[0] == "limit_exceeded", result
            assert result[1]["what"] == "max_messages_per_subject"
        else:
            now = self.bench.store.time
            expires = (
                -math.inf if ttl_seconds == "never" else now + 1000 * ttl if ttl else math.inf
            )
            self._appended(result, Row(subject, b"v", now, expires, is_purge))
            self._roll_up(subject, options.get("rollup"))
        self._evict()

    @rule(members=st.lists(st.tuples(_subjects, st.booleans()), min_size=1, max_size=8))
    def append_as_a_gateway(self, members: list[tuple[str, bool]]) -> None:
        """Together in one group, which is a run if nothing is refused."""
        self._expire()
        epoch = self.limits.get("serving_epoch")
        results = self.bench.tick(
            *(
                [1, b"v", BLOCK if is_purge else None, None, None, None, subject, epoch]
                for subject, is_purge in members
            )
        )
        limit = self.limits.get("max_messages_per_subject")
        is_full = limit is not None and self.limits["discard_new_per_subject"]
        for (subject, is_purge), result in zip(members, results, strict=True):
            if is_full and self._count(subject) >= (limit or 0):
                assert result[0] == "limit_exceeded", result
            else:
                row = Row(subject, b"v", self.bench.store.time, math.inf, is_purge)
                self._appended(result, row)
        self._evict()

    @rule(subject=_subjects, literal=st.sampled_from(["a.*", "*", ">"]))
    def roll_up_what_a_wildcard_matches(self, subject: str, literal: str) -> None:
        self._expire()
        result = self.bench.do(1, b"v", None, None, None, None, literal, None, {"rollup": "sub"})
        self._appended(result, Row(literal, b"v", self.bench.store.time, math.inf))
        for seq in [seq for seq in self._matching(literal) if seq < self.last_seq]:
            del self.rows[seq]
        self._evict()

    @rule(
        members=st.lists(st.tuples(_subjects, _expected, st.booleans()), min_size=1, max_size=5)
    )
    def append_a_batch(self, members: list[tuple[str, str | None, bool]]) -> None:
        """Expectations are those of the state before it; it is stored whole or not at all."""
        self._expire()
        operations: list[Any] = []
        wrong = any(expected == "wrong" for _, expected, _ in members)
        for subject, expected, rolls_up in members:
            options: dict[str, Any] = {}
            if expected is not None:
                options["expected_last_subject_seq"] = self._last(subject) + (expected == "wrong")
            if rolls_up:
                options["rollup"] = "sub"
            operations.append([1, b"v", None, None, None, None, subject, None, options])
        before, last_seq = dict(self.rows), self.last_seq
        result = self.bench.do(frames.BATCH, operations)
        limit = self.limits.get("max_messages_per_subject")
        for index, (subject, _, rolls_up) in enumerate(members):
            if wrong:
                assert result[0] == "wrong_last_seq", result
                break
            is_full = limit is not None and self.limits["discard_new_per_subject"]
            if is_full and not rolls_up and self._count(subject) >= (limit or 0):
                assert result[0] == "limit_exceeded", result
                wrong = True
                break
            row = Row(subject, b"v", self.bench.store.time, math.inf)
            self.last_seq += 1
            self.rows[self.last_seq] = row
            self._roll_up(subject, "sub" if rolls_up else None)
            if type(result[0]) is list:
                assert result[index][0] == self.last_seq
        if not wrong and type(result[0]) is str:
            # All of it can never be kept.
            assert result[0] == "limit_exceeded", result
            assert result[1]["what"] == "max_messages"
            wrong = True
        if wrong:
            self.rows, self.last_seq = before, last_seq
        self._evict()

    @rule(subject=st.sampled_from(["n", "n.1"]), by=st.integers(-(10**20), 10**20))
    def count(self, subject: str, by: int) -> None:
        self._expire()
        mine = self._matching(subject)
        has_total = not mine or self.rows[mine[-1]].value.startswith(b"{")
        result = self.bench.do(
            1, b"", None, None, None, None, subject, None, {"incr": f"{by:+d}"}
        )
        limit = self.limits.get("max_messages_per_subject")
        if limit is not None and self.limits["discard_new_per_subject"] and len(mine) >= limit:
            assert result[0] == "limit_exceeded", result
        elif not has_total:
            assert result[0] == "invalid_argument", result
        else:
            total = by
            if mine:
                total += int(self.rows[mine[-1]].value[8:-2])
            assert result[2:] == [None, False, str(total)]
            value = b'{"val":"%d"}' % total
            self._appended(result, Row(subject, value, self.bench.store.time, math.inf))
        self._evict()

    @rule(
        wanted=_filters | st.none(),
        end_seq=st.none() | st.integers(1, 40),
        keep=st.none() | st.integers(0, 4),
    )
    def purge(self, wanted: str | None, end_seq: int | None, keep: int | None) -> None:
        self._expire()
        if keep is not None:
            end_seq = None
        found = self._matching(wanted)
        if keep:
            found = found[: max(0, len(found) - keep)]
        found = [seq for seq in found if end_seq is None or seq < end_seq]
        result = self.bench.do(frames.PURGE, wanted, end_seq, keep)
        assert [result[0], result[2]] == [len(found), False], result
        for seq in found:
            del self.rows[seq]
        self._evict()

    @rule(seqs=st.lists(st.integers(1, 40), min_size=1, max_size=6))
    def delete(self, seqs: list[int]) -> None:
        self._expire()
        present = self.rows.keys() & set(seqs)
        assert self.bench.do(frames.DELETE_MESSAGES, seqs)[0] == len(present)
        for seq in present:
            del self.rows[seq]
        self._evict()

    @rule(seq=st.integers(1, 40))
    def replace(self, seq: int) -> None:
        self._expire()
        seq = min(seq, self.last_seq + 1)
        self.bench.do(frames.SET_MESSAGE, seq, b"v")
        self.last_seq = max(seq, self.last_seq)
        subject = self.rows[seq].subject if seq in self.rows else None
        self.rows[seq] = Row(subject, b"v", self.bench.store.time, math.inf)
        self._evict()

    @rule(end_seq=st.integers(0, 40))
    def trim(self, end_seq: int) -> None:
        self._expire()
        self.bench.do(frames.TRIM, end_seq)
        self.rows = {seq: row for seq, row in self.rows.items() if seq > end_seq}
        self._evict()

    @rule(milliseconds=st.integers(1, 4000))
    def wait(self, milliseconds: int) -> None:
        self.bench.time += milliseconds

    @rule()
    def materialise(self) -> None:
        self.bench.materialise()

    @rule()
    def checkpoint(self) -> None:
        store = self.bench.store
        store.materialise(self.bench.number)
        if store.file is not None:
            store.file.checkpoint()
        store.checkpointed()

    @rule()
    def reopen(self) -> None:
        self.bench.reopen()

    @rule(crash=st.booleans())
    def fail_over(self, crash: bool) -> None:
        self.bench.fail_over(crash=crash or not self.bench.records)

    @rule(subject=_subjects, wanted=_filters)
    def fail_a_tick(self, subject: str, wanted: str) -> None:
        append = [1, b"v", None, None, None, None, subject, None, {"rollup": "sub"}]
        self.bench.tick(append, [frames.PURGE, wanted], append, commit=False)

    @rule(subject=_subjects)
    def fail_a_batch(self, subject: str) -> None:
        append = [1, b"v", None, None, None, None, subject, None, {"rollup": "sub"}]
        members = [append, append, [frames.EXPECT, None, -1]]
        self._expire()
        assert self.bench.do(frames.BATCH, members)[0] == "wrong_last_seq"
        self._evict()

    @rule()
    def read(self) -> None:
        self._expire()
        found = self.bench.read(frames.GET_MESSAGES)[0]
        assert [(row[0], row[3], row[5] if len(row) > 5 else None) for row in found] == [
            (seq, row.value, row.subject) for seq, row in sorted(self.rows.items())
        ]

    # Invariants
    @invariant()
    def subjects_are_counted_and_found(self) -> None:
        store = self.bench.store
        index = store.contents.subjects
        assert (store.count, store.last_seq) == (len(self.rows), self.last_seq)
        for subject in {*SUBJECTS, *(row.subject for row in self.rows.values())} - {None}:
            seqs = [seq for seq in sorted(self.rows) if self.rows[seq].subject == subject]
            assert list(index.seqs(subject)) == seqs
            assert index.count(subject) == len(seqs)
            assert index.last_seq(subject) == max(seqs, default=0)
        for seq in range(1, self.last_seq + 1):
            row = self.rows.get(seq)
            assert index.subject_of(seq) == (None if row is None else row.subject)

    @invariant()
    def filters_are_matched(self) -> None:
        index = self.bench.store.contents.subjects.in_tick(object())
        for wanted in FILTERS:
            found = self._matching(wanted)
            assert index.last_matching(wanted) == max(found, default=0)
            assert index.count_matching(wanted) == len(found)
            assert index.seqs_matching(wanted, 1 << 40, 1 << 40) == (found, False)

    @rule()
    def replay_the_log(self) -> None:
        bench = self.bench
        path = self.folder / "again.db"
        file = StoreFile.create(path, bench.id, time=0)
        for record in bench.records:
            for payload in record.payloads:
                batch = frames.decode_changes(payload)
                file.apply([AppliedBatch(batch.previous_revision, batch.time, batch.changes)])
        assert (file.meta.count, file.meta.bytes) == (bench.store.count, bench.store.bytes)
        assert file.meta.last_seq == bench.store.last_seq
        assert file.subjects.damage() == ""
        file.abandon()
        for each in self.folder.glob("again.db*"):
            each.unlink()

    # The model
    def _matching(self, wanted: str | None) -> list[int]:
        return [
            seq
            for seq, row in sorted(self.rows.items())
            if wanted is None or (row.subject is not None and matches(wanted, row.subject))
        ]

    def _last(self, wanted: str) -> int:
        return max(self._matching(wanted), default=0)

    def _count(self, subject: str) -> int:
        return sum(row.subject == subject for row in self.rows.values())

    def _appended(self, result: Any, row: Row) -> None:
        self.last_seq += 1
        assert result[0] == self.last_seq, result
        self.rows[self.last_seq] = row

    def _roll_up(self, subject: str | None, rollup: str | None) -> None:
        for seq, row in list(self.rows.items()):
            mine = rollup == "all" or (rollup == "sub" and row.subject == subject)
            if mine and seq < self.last_seq:
                del self.rows[seq]

    def _expire(self) -> None:
        """What is due goes, and markers come."""
        store = self.bench.store
        now = store.now(self.bench.time)
        age_ms = 1000 * (self.limits.get("max_age_seconds") or 1 << 40)
        gone = {
            seq: row
            for seq, row in self.rows.items()
            if row.expires > 0 and (row.expires <= now or row.time + age_ms <= now)
        }
        self.bench.tick()
        for seq in gone:
            del self.rows[seq]
        marker_seconds = self.limits.get("subject_marker_seconds")
        bereft = {
            row.subject
            for seq, row in gone.items()
            if row.subject is not None
            and not self._count(row.subject)
            and seq == max(each for each in gone if gone[each].subject == row.subject)
            and not row.is_marker
        }
        if marker_seconds and bereft:
            # They may come in any order.
            for _ in range(len(bereft)):
                self.last_seq += 1
                subject = store.contents.subjects.subject_of(self.last_seq)
                row = Row(subject, b"", now, now + 1000 * marker_seconds, is_marker=True)
                self.rows[self.last_seq] = row
            assert {self.rows[seq].subject for seq in sorted(self.rows)[-len(bereft) :]} == bereft
        self._evict()

    def _evict(self) -> None:
        limit = self.limits.get("max_messages_per_subject")
        for subject in {row.subject for row in self.rows.values()} - {None}:
            seqs = [seq for seq in sorted(self.rows) if self.rows[seq].subject == subject]
            for seq in seqs[: -limit if limit else 0]:
                del self.rows[seq]
        most = self.limits.get("max_messages")
        for seq in sorted(self.rows)[: -most if most else 0]:
            del self.rows[seq]


class EncryptedAgainstAModel(SubjectsAgainstAModel):
    """The same if the values are encrypted."""

    keys = KEYS


def test_random_encrypted_writes_leave_what_a_plain_model_says() -> None:
    run_state_machine_as_test(
        EncryptedAgainstAModel,
        settings=settings(max_examples=examples(30), stateful_step_count=40, deadline=None),
    )


def test_random_writes_with_subjects_leave_what_a_plain_model_says() -> None:
    run_state_machine_as_test(
        SubjectsAgainstAModel,
        settings=settings(max_examples=examples(160), stateful_step_count=40, deadline=None),
    )
