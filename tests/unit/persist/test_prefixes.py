"""Deletion of keys by prefix, and conditions on prefixes, against a plain dict, while the file
follows the changes at any distance."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from holdfast.persist.operations.prefixes.key_ranges import changed_since
from holdfast.protocol import frames
from holdfast.protocol.errors import RateLimitedError
from holdfast.protocol.limits import MAX_DELETE_COUNT, MAX_DELETED_WITH_PREFIX, MAX_LOOKS
from holdfast.protocol.names import StoreKind
from tests.support.effort import examples
from tests.support.ticked_store import Bench, configure, put

DELETE, EXPECT, BATCH = frames.DELETE_PREFIX, frames.EXPECT_PREFIX, frames.BATCH
KEYS = ["", "a", "a.", "a.1", "a.2", "a.\U0010ffff", "b", "b.1", "\ud7ff"]
PREFIXES = ["", "a", "a.", "b", "c", "a.\U0010ffff", "\ud7ff"]


@pytest.fixture
def kv(tmp_path: Path) -> Iterator[Bench]:
    bench = Bench(tmp_path, StoreKind.KV)
    yield bench
    bench.close()


class Prefixes(RuleBasedStateMachine):
    @initialize(history=st.booleans())
    def begin(self, history: bool) -> None:
        self.folder = Path(tempfile.mkdtemp())
        self.bench = Bench(self.folder, StoreKind.KV)
        self.rows: dict[str, int] = {}
        #: When each key was last set or removed.
        self.touched: dict[str, int] = {}
        if history:
            configure(self.bench, history=3)

    def teardown(self) -> None:
        if hasattr(self, "bench"):
            self.bench.close()
            shutil.rmtree(self.folder)

    @rule(keys=st.lists(st.sampled_from(KEYS), min_size=1, max_size=4))
    def set(self, keys: list[str]) -> None:
        for key, (_, revision) in zip(keys, self.bench.tick(*map(put, keys)), strict=True):
            self.rows[key] = self.touched[key] = revision

    @rule(keys=st.lists(st.sampled_from(KEYS), min_size=1, max_size=4, unique=True))
    def delete(self, keys: list[str]) -> None:
        self.removed([key for key in keys if key in self.rows])
        self.bench.do(frames.DELETE_ENTRIES, keys)

    @rule()
    def clear(self) -> None:
        self.removed(list(self.rows))
        # It touches every key, whether or not it exists.
        if self.bench.do(frames.CLEAR)[0]:
            self.touched.update(dict.fromkeys(KEYS, self.bench.store.revision))

    @rule(prefix=st.sampled_from(PREFIXES), limit=st.sampled_from((None, 1, 2)))
    def delete_prefix(self, prefix: str, limit: int | None) -> None:
        going = sorted(key for key in self.rows if key.startswith(prefix))
        after_key = None
        while True:
            part = [key for key in going if after_key is None or key > after_key][:limit]
            self.removed(part)
            operation = [DELETE, prefix, limit, after_key]
            count, revision, after_key = self.bench.do(*operation)
            assert (count, revision) == (len(part), self.bench.store.revision)
            assert (after_key is None) == (not part or part[-1] == going[-1])
            if after_key is None:
                return
            assert after_key == part[-1]

    @rule(prefix=st.sampled_from(PREFIXES), keys=st.lists(st.sampled_from(KEYS)))
    def expect_only(self, prefix: str, keys: list[str]) -> None:
        result = self.bench.do(EXPECT, prefix, keys)
        others = sorted(
            key for key in self.rows if key.startswith(prefix) and key not in keys
        )
        if not others:
            assert result == [self.bench.store.revision]
        else:
            first = others[0]
            assert result[0] == "wrong_revision"
            assert result[1] == {"key": first, "expected": 0, "actual": self.rows[first]}

    @rule(prefix=st.sampled_from(PREFIXES), back=st.integers(0, 12))
    def expect_unchanged(self, prefix: str, back: int) -> None:
        revision = max(0, self.bench.store.revision - back)
        result = self.bench.do(EXPECT, prefix, None, revision)
        changed = {
            key for key, at in self.touched.items() if key.startswith(prefix) and at > revision
        }
        if not changed and result[0] == "wrong_revision":
            # A clear concerns every prefix.
            assert result[1]["key"] == prefix
            assert max(self.touched.values()) > revision
        elif not changed:
            assert result == [self.bench.store.revision]
        else:
            assert result[0] == "wrong_revision"
            key = result[1]["key"]
            assert key in changed or key == prefix

    @rule(prefix=st.sampled_from(PREFIXES), key=st.sampled_from(KEYS))
    def batch_that_fails(self, prefix: str, key: str) -> None:
        before = self.bench.store.revision
        members = [[DELETE, prefix], put(key), put("zzz"), [EXPECT, "zzz", []]]
        [result] = self.bench.tick([BATCH, members])
        assert result[0] == "wrong_revision"
        assert self.bench.store.revision == before

    @rule(prefix=st.sampled_from(PREFIXES))
    def tick_that_fails(self, prefix: str) -> None:
        self.bench.tick(put("a.9"), [DELETE, prefix], commit=False)

    @rule()
    def materialise(self) -> None:
        self.bench.materialise()

    @rule(crash=st.booleans())
    def fail_over(self, crash: bool) -> None:
        self.bench.fail_over(crash=crash)

    @invariant()
    def holds_what_it_should(self) -> None:
        if hasattr(self, "bench"):
            assert self.bench.store.count == len(self.rows)
            [result] = self.bench.tick([EXPECT, "", sorted(self.rows)])
            assert result == [self.bench.store.revision]

    def removed(self, keys: list[str]) -> None:
        if keys:
            for key in keys:
                del self.rows[key]
                self.touched[key] = self.bench.store.revision + 1


Prefixes.TestCase.settings = settings(max_examples=examples(25), stateful_step_count=30)
TestPrefixes = Prefixes.TestCase


def many(count: int) -> list[list[Any]]:
    return [put(f"k.{number:06}", b"") for number in range(count)]


def test_very_many_keys_are_deleted_at_once_in_changes_that_fit_in_a_broadcast(kv: Bench) -> None:
    count = MAX_DELETE_COUNT + 1
    for start in range(0, count, 1000):
        kv.tick(*many(count)[start : start + 1000])
    kv.materialise()
    assert kv.do(DELETE, "k.") == [count, kv.store.revision, None]
    assert [len(change[1]) for change in kv.broadcasts[-1]] == [MAX_DELETE_COUNT, 1]
    assert kv.store.count == 0
    long = [f"l.{number:03}" + "x" * 4000 for number in range(300)]
    kv.tick(*[put(key, b"") for key in long])
    assert kv.do(DELETE, "l.")[0] == 300
    assert all(len(frames.pack(change)) < 1 << 20 for change in kv.broadcasts[-1])


def test_more_keys_than_one_turn_deletes_are_refused_or_deleted_in_parts(kv: Bench) -> None:
    count = MAX_DELETED_WITH_PREFIX + 1
    operations = many(count)
    for start in range(0, count, 4096):
        kv.tick(*operations[start : start + 4096])
        kv.materialise()
    refused = kv.do(DELETE, "k.")
    assert refused[0] == "too_large"
    assert refused[1]["limit"] == MAX_DELETED_WITH_PREFIX
    assert kv.store.count == count
    assert kv.do(DELETE, "k.", 4096) == [4096, kv.store.revision, "k.004095"]
    assert kv.do(DELETE, "k.")[0] == count - 4096


def test_one_turn_looks_at_no_more_than_it_may_however_often_it_is_asked(kv: Bench) -> None:
    for start in range(0, 8192, 4096):
        kv.tick(*many(8192)[start : start + 4096])
    kv.materialise()
    kv.tick([DELETE, "k."])
    asked = 2 * MAX_LOOKS // 8192
    results = kv.tick(*[[EXPECT, "k.", []]] * asked)
    assert results[0] == [kv.store.revision]
    assert results[-1][0] == "rate_limited"
    assert kv.do(EXPECT, "k.", []) == [kv.store.revision], "the next turn has looks again"


def test_what_is_refused_for_want_of_looks_looks_at_nothing(kv: Bench) -> None:
    kv.tick(*many(4000))
    refused = kv.execute(*[[EXPECT, "k.", []]] * (MAX_LOOKS // 4000 + 2))[-1]
    assert refused[0] == "rate_limited"
    with pytest.raises(RateLimitedError):
        kv.store.key_order.with_prefix("none of them")
    with pytest.raises(RateLimitedError):
        changed_since(kv.store, "k.", kv.store.revision)
    kv.commit()


def test_a_change_that_the_kv_has_forgotten_is_no_unchanged_prefix(kv: Bench) -> None:
    kv.tick(put("a"), put("b"))
    kv.do(DELETE, "b")
    kv.materialise()
    file = kv.store.file
    assert file is not None
    file.meta = file.meta.__class__(
        **{name: getattr(file.meta, name) for name in file.meta.__slots__} | {"changes_from": 3}
    )
    kv.tick(put("c"))
    kv.materialise()
    assert kv.do(EXPECT, "a", None, 2)[0] == "revision_gone"
    assert kv.do(EXPECT, "a", None, 3) == [kv.store.revision]


def test_much_that_was_set_since_is_looked_through_by_prefix(kv: Bench) -> None:
    kv.tick(put("a"))
    kv.tick(*many(2000))
    kv.materialise()
    assert kv.do(EXPECT, "a", None, 1) == [kv.store.revision]
    kv.tick(put("a.1"))
    kv.materialise()
    assert kv.do(EXPECT, "a", None, 1)[1]["key"] == "a.1"


@pytest.mark.parametrize(
    ("operation", "code"),
    [
        ([DELETE], "invalid_name"),
        ([DELETE, 7], "invalid_name"),
        ([DELETE, "a", 0], "invalid_argument"),
        ([DELETE, "a", "1"], "invalid_argument"),
        ([DELETE, "a", None, 1], "invalid_name"),
        ([DELETE, "a" * 5000], "invalid_name"),
        ([EXPECT, "a"], "invalid_argument"),
        ([EXPECT, None, []], "invalid_name"),
        ([EXPECT, "a", "a"], "invalid_argument"),
        ([EXPECT, "a", [1]], "invalid_name"),
        ([EXPECT, "a", ["b"] * 5000], "too_large"),
        ([EXPECT, "a", None, -1], "invalid_argument"),
        ([EXPECT, "a", None, 1], "invalid_argument"),
        ([EXPECT, "a", None, 1.0], "invalid_argument"),
    ],
)
def test_what_is_wrong_is_refused(kv: Bench, operation: list[Any], code: str) -> None:
    assert kv.do(*operation)[0] == code


def test_a_stream_has_no_keys(tmp_path: Path) -> None:
    stream = Bench(tmp_path, StoreKind.STREAM)
    assert stream.do(DELETE, "")[0] == stream.do(EXPECT, "", [])[0] == "unknown_operation"
    stream.close()
