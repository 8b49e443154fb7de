"""Any writes, limits and times of a kv with a history against all that ever happened to it."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from holdfast.persist.operations import reads
from holdfast.protocol import frames
from holdfast.protocol.changes import CHANGE_DELETE_ENTRIES
from holdfast.protocol.names import StoreKind
from holdfast.shared_fs.encryption.data_keys import TenantKeys
from tests.support.effort import examples
from tests.support.stores import file_of
from tests.support.tenant_keys import KEYS as KEYS_OF_TENANT
from tests.support.ticked_store import Bench, configure, put

KEYS = ("a", "b", "c")
GONE = "revision_gone"


class KvHistory(RuleBasedStateMachine):
    """A read of an earlier revision tells the truth or that it is gone; the history of a key is the
    end of what happened; and owner, file and log count the same bytes."""

    @initialize(
        keeps_up=st.booleans(), kept=st.integers(1, 4), keys=st.sampled_from((None, KEYS_OF_TENANT))
    )
    def begin(self, keeps_up: bool, kept: int, keys: TenantKeys | None) -> None:
        self.folder = Path(tempfile.mkdtemp())
        self.bench = Bench(self.folder, StoreKind.KV, keeps_up=keeps_up, keys=keys)
        #: Each value of a key and each delete: (revision, value or None, end of its ttl or None).
        self.past: dict[str, list[tuple[int, bytes | None, int | None]]] = {
            key: [] for key in KEYS
        }
        self.kept = self.least = 1
        #: The revision from which on there has been a history.
        self.since = 0
        #: A limit or a ttl may have removed something.
        self.is_limited = False
        self.configure(kept)

    def teardown(self) -> None:
        if hasattr(self, "bench"):
            self.bench.close()
            shutil.rmtree(self.folder)

    def learn(self) -> None:
        """Learn from the last broadcasts what keys have become."""
        revision = self.bench.store.revision
        for changes in reversed(self.bench.broadcasts[self.heard :]):
            for change in reversed(changes):
                self.learn_change(change, revision)
                revision -= 1
        self.heard = len(self.bench.broadcasts)
        for events in self.past.values():
            events.sort()

    heard = 0

    def learn_change(self, change: list[Any], revision: int) -> None:
        if change[0] == frames.SET_ENTRY:
            expires = change[4] if len(change) > 4 else None
            self.past[change[1]].append((revision, change[2], expires))
        elif change[0] == CHANGE_DELETE_ENTRIES:
            for key in change[1]:
                self.past[key].append((revision, None, None))
        elif change[0] == frames.CLEAR:
            for key in KEYS:
                self.past[key].append((revision, None, None))

    @rule(kept=st.integers(1, 4))
    def configure(self, kept: int) -> None:
        configure(self.bench, history=kept)
        if self.kept == 1 or kept == 1:
            self.since, self.least = self.bench.store.revision, kept
        self.kept, self.least = kept, min(kept, self.least)

    @rule(size_bytes=st.none() | st.integers(10, 60), age_seconds=st.none() | st.integers(2, 9))
    def limit(self, size_bytes: int | None, age_seconds: int | None) -> None:
        configure(self.bench, max_bytes=size_bytes, max_age_seconds=age_seconds)
        self.is_limited = True

    @rule(
        keys=st.lists(st.sampled_from(KEYS), min_size=1, max_size=4),
        size_bytes=st.integers(0, 9),
        ttl_seconds=st.none() | st.integers(1, 6),
    )
    def write(self, keys: list[str], size_bytes: int, ttl_seconds: int | None) -> None:
        self.is_limited |= ttl_seconds is not None
        self.bench.tick(*[put(key, bytes(size_bytes), ttl_seconds) for key in keys])

    @rule(keys=st.lists(st.sampled_from(KEYS), min_size=2, max_size=4), fails=st.booleans())
    def write_batch(self, keys: list[str], fails: bool) -> None:
        members = [put(key, b"batch") for key in keys]
        members.append([frames.DELETE_ENTRIES, [keys[0]]])
        if fails:
            members.append([frames.EXPECT, "nowhere", 7])
        self.bench.tick([frames.BATCH, members])

    @rule(keys=st.lists(st.sampled_from(KEYS), min_size=1, max_size=2))
    def delete(self, keys: list[str]) -> None:
        self.bench.tick([frames.DELETE_ENTRIES, keys])

    @rule()
    def delete_all(self) -> None:
        self.bench.tick([frames.CLEAR])

    @rule(key=st.sampled_from(KEYS))
    def fail(self, key: str) -> None:
        """The log takes nothing of a tick."""
        before = len(self.bench.broadcasts)
        now = self.bench.store.now(self.bench.time)
        retention = self.bench.store.retention
        if retention is not None and retention.is_due(now):
            self.bench.tick()
            before = len(self.bench.broadcasts)
        self.bench.tick(put(key, b"lost"), [frames.CLEAR], commit=False)
        assert len(self.bench.broadcasts) == before

    @rule(seconds=st.integers(1, 3))
    def wait(self, seconds: int) -> None:
        self.bench.time += 1000 * seconds

    @rule()
    def materialise(self) -> None:
        self.bench.materialise()
        self.check_file()

    @precondition(lambda self: self.bench.store.file is not None)
    @rule(crash=st.booleans())
    def fail_over(self, crash: bool) -> None:
        self.bench.fail_over(crash=crash)
        self.check_file()

    def check_file(self) -> None:
        file, store = file_of(self.bench.store), self.bench.store
        assert (file.meta.count, file.meta.bytes) == (store.count, store.bytes)
        assert file.history.damage() == ""
        assert file.history.exists == (self.kept > 1)

    @rule(data=st.data())
    def read_earlier(self, data: st.DataObject) -> None:
        self.bench.tick()
        self.bench.materialise()
        self.learn()
        latest = self.bench.store.revision
        revision = data.draw(st.integers(0, latest))
        found = {key: self.read(frames.GET_ENTRY_AT, key, revision) for key in KEYS}
        for key, row in found.items():
            self.check_row(key, revision, row)
        rows = self.read(frames.GET_ENTRIES_AT, "", None, 1, True, revision)
        if rows[0] == GONE:
            assert revision < latest
            assert any(self.may_lack(key, revision) for key in KEYS)
            return
        whole = {row[0]: row for row in rows[0]}
        while rows[1] is not None:
            rows = self.read(frames.GET_ENTRIES_AT, "", rows[1], 1, True, revision)
            if rows[0] == GONE:
                return
            whole.update({row[0]: row for row in rows[0]})
        for key in KEYS:
            self.check_row(key, revision, whole.get(key))
        if revision == latest:
            assert whole == {row[0]: row for row in self.read(frames.GET_ENTRIES)[0]}

    def read(self, *operation: Any) -> Any:
        return reads.execute(self.bench.store, "s1", [list(operation)])[0]

    def check_row(self, key: str, revision: int, row: Any) -> None:
        """Check what a read says of a key at a revision."""
        events = [event for event in self.past[key] if event[0] <= revision]
        last = events[-1] if events else (0, None, None)
        if row is None:
            is_over = last[2] is not None and last[2] <= self.bench.store.now(self.bench.time)
            assert last[1] is None or is_over
        elif row[0] == GONE:
            assert revision < self.bench.store.revision
            assert self.may_lack(key, revision)
        else:
            assert (row[1], row[3]) == last[:2]

    def may_lack(self, key: str, revision: int) -> bool:
        """Tell if the history need not reach back to a revision."""
        values = [event for event in self.past[key] if event[1] is not None]
        is_whole = self.kept > 1 and not self.is_limited and revision >= self.since
        return not is_whole or len(values) >= self.least

    @rule(key=st.sampled_from(KEYS))
    def read_history(self, key: str) -> None:
        self.bench.tick()
        self.bench.materialise()
        self.learn()
        dated, after = self.read(frames.HISTORY, key)
        assert after is None
        found = [
            (revision, change[2] if change[0] == frames.SET_ENTRY else None)
            for revision, _, change in dated
        ]
        values = [each for each in found if each[1] is not None]
        assert len(values) <= self.kept
        told = {(revision, value) for revision, value, _ in self.past[key]}
        assert set(found) <= told
        assert found == sorted(found)
        present = self.read(frames.GET_ENTRY, key)
        if present is not None:
            assert found[-1] == (present[1], present[3])

    @invariant()
    def counts_are_right(self) -> None:
        if hasattr(self, "bench"):
            self.bench.store.validate()


TestKvHistory = KvHistory.TestCase
TestKvHistory.settings = settings(
    deadline=None, max_examples=examples(60), stateful_step_count=30
)
