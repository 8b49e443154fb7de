"""Any writes, limits and times against a plain model: what is readable, and what a log brings
back."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from holdfast.persist.operations import eviction
from holdfast.persist.recovery.takeover import plan
from holdfast.protocol import frames
from holdfast.protocol.names import StoreKind
from holdfast.shared_fs.store_file.reading import going_rows
from holdfast.shared_fs.store_file.store_file import StoreFile
from tests.support.effort import examples
from tests.support.ticked_store import Bench, append, configure, put


class AgainstAModel(RuleBasedStateMachine):
    """Random writes, limits and times: what is readable is what a plain model says, and who applies
    the log to an empty file gets the same."""

    def __init__(self, kind: StoreKind) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        self.bench = Bench(self.folder, kind)
        #: Key to revision, time, size and expiry.
        self.model: dict[Any, tuple[int, int, int, float]] = {}
        self.limits: dict[str, Any] = {}

    def teardown(self) -> None:
        self.bench.close()
        shutil.rmtree(self.folder)

    @initialize(limits=st.booleans())
    def begin(self, limits: bool) -> None:
        if limits:
            self.configure(5, 60, 10, "old")

    @rule(
        count=st.none() | st.integers(1, 6),
        size_bytes=st.none() | st.integers(20, 80),
        age_seconds=st.none() | st.integers(1, 10),
        discard=st.sampled_from(["old", "new"]),
    )
    def configure(
        self, count: int | None, size_bytes: int | None, age_seconds: int | None, discard: str
    ) -> None:
        self._expire()
        self.limits = {
            "max_messages": count,
            "max_bytes": size_bytes,
            "max_age_seconds": age_seconds,
            "discard": discard,
        }
        configure(self.bench, **self.limits)
        self._evict()

    @rule(
        key=st.integers(1, 8),
        size_bytes=st.integers(0, 25),
        ttl_seconds=st.none() | st.integers(1, 8),
    )
    def write(self, key: int, size_bytes: int, ttl_seconds: int | None) -> None:
        store = self.bench.store
        self._expire()
        value = bytes(size_bytes)
        name: Any = f"{key}"
        if store.is_stream:
            name = key = min(key, store.last_seq + 1)
            operation = [frames.SET_MESSAGE, key, value, None, ttl_seconds]
        else:
            operation = put(name, value, ttl_seconds)
            size_bytes += 1
        result = self.bench.do(*operation)
        count = len(self.model) + (name not in self.model)
        old_bytes = self.model[name][2] if name in self.model else 0
        total_bytes = sum(row[2] for row in self.model.values()) + size_bytes - old_bytes
        is_new = self.limits.get("discard") == "new"
        max_count = self.limits.get("max_messages") or count
        max_bytes = self.limits.get("max_bytes") or max(total_bytes, size_bytes)
        refused = size_bytes > max_bytes or (
            is_new
            and (
                (count > max_count and name not in self.model)
                or (total_bytes > max_bytes and size_bytes > old_bytes)
            )
        )
        assert (result[0] == "limit_exceeded") == refused, result
        if not refused:
            expires = float("inf") if ttl_seconds is None else store.time + 1000 * ttl_seconds
            self.model[name] = (result[1], store.time, size_bytes, expires)
            self._evict()

    @rule(key=st.integers(1, 8))
    def delete(self, key: int) -> None:
        store = self.bench.store
        self._expire()
        if store.is_stream:
            if key <= store.last_seq:
                self.bench.do(frames.DELETE_MESSAGES, [key])
            self.model.pop(key, None)
        else:
            self.bench.do(frames.DELETE_ENTRIES, [f"{key}"])
            self.model.pop(f"{key}", None)

    @rule(milliseconds=st.integers(1, 4000))
    def wait(self, milliseconds: int) -> None:
        self.bench.time += milliseconds

    @rule()
    def materialise(self) -> None:
        self.bench.store.materialise(self.bench.number)

    @rule()
    def reopen(self) -> None:
        self.bench.reopen()

    @rule()
    def fail_a_tick(self) -> None:
        operation = append() if self.bench.store.is_stream else put("1")
        self.bench.tick(operation, commit=False)

    @rule()
    def read(self) -> None:
        self._expire()
        assert sorted(self.bench.rows()) == sorted(self.model)

    @invariant()
    def the_log_tells_the_same(self) -> None:
        bench = self.bench
        found = plan(bench.id, bench.records, file_epoch=0, file_revision=0)
        path = self.folder / "again.db"
        file = StoreFile.create(path, bench.id, time=0)
        file.apply(found.batches, found.outcomes)
        assert (file.meta.count, file.meta.bytes) == (bench.store.count, bench.store.bytes)
        assert file.limits()[0] == bench.store.config.to_wire()
        file.abandon()
        for each in self.folder.glob("again.db*"):
            each.unlink()

    def _expire(self) -> None:
        """Before each operation the owner removes what is due."""
        now = max(self.bench.time, self.bench.store.time)
        age_ms = 1000 * (self.limits.get("max_age_seconds") or 1 << 40)
        self.model = {
            key: row for key, row in self.model.items() if row[3] > now and row[1] + age_ms > now
        }

    def _evict(self) -> None:
        if self.limits.get("discard") == "new":
            return
        order = (lambda key: key) if self.bench.store.is_stream else lambda k: self.model[k][0]
        while self.model and (
            len(self.model) > (self.limits.get("max_messages") or len(self.model))
            or sum(row[2] for row in self.model.values())
            > (self.limits.get("max_bytes") or 1 << 40)
        ):
            del self.model[min(self.model, key=order)]


@pytest.mark.parametrize(
    ("kind", "expired_rows"), [(StoreKind.STREAM, 4096), (StoreKind.STREAM, 2), (StoreKind.KV, 2)]
)
def test_random_writes_and_limits_leave_what_a_plain_model_says(
    kind: StoreKind, expired_rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(eviction, "MAX_EXPIRED_ROWS", expired_rows)
    monkeypatch.setattr(eviction, "_LOOKED_AT_ROWS", expired_rows // 2)
    monkeypatch.setattr(eviction, "_TURNS_IN_LOOP", 1)
    monkeypatch.setattr(going_rows, "_MEASURED_ROWS", (2, 1))
    run_state_machine_as_test(
        lambda: AgainstAModel(kind),
        settings=settings(max_examples=examples(40), stateful_step_count=30, deadline=None),
    )
