"""Any writes, removals, limits and changes of owner of a kv with a chain, with or without a
history, against a list of leaves: owner, acks, log and file have the same chain. In an encrypted
tenant too."""

from __future__ import annotations

import hashlib
import shutil
import struct
import tempfile
from pathlib import Path
from typing import Any
from unittest.mock import patch

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from holdfast.persist.recovery.takeover import batches_of
from holdfast.protocol import frames
from holdfast.protocol.chain.hashing import GENESIS
from holdfast.protocol.names import StoreKind
from holdfast.shared_fs.encryption import salts
from holdfast.shared_fs.encryption.data_keys import TenantKeys
from holdfast.shared_fs.store_file import schema
from holdfast.shared_fs.store_file.store_file import StoreFile
from tests.support.effort import examples
from tests.support.stores import file_of
from tests.support.tenant_keys import KEYS as TENANT_KEYS
from tests.support.ticked_store import Bench, configure, put

KEYS = ("a", "b", "ü")
HEADERS = (None, {"y": "2", "x": "1"})


def leaf(revision: int, time: int, key: str, value: bytes, headers: Any) -> bytes:
    """What docs/chain.md says, in the plainest words."""
    text = b""
    for pair in sorted((headers or {}).items()):
        for each in pair:
            text += struct.pack(">I", len(each.encode())) + each.encode()
    about = key.encode()
    packed = b"\2" + struct.pack(">QqBIIQ", revision, time, 0, len(about), len(text), len(value))
    return hashlib.sha256(packed + about + text + value).digest()


class KvChain(RuleBasedStateMachine):
    """See above."""

    keys: TenantKeys | None = None

    @initialize(keeps_up=st.booleans(), before=st.integers(0, 2), kept=st.sampled_from((1, 3)))
    def begin(self, keeps_up: bool, before: int, kept: int) -> None:
        self.folder = Path(tempfile.mkdtemp())
        self.bench = Bench(self.folder, StoreKind.KV, keeps_up=keeps_up, keys=self.keys)
        #: The chain after each set, by revision.
        self.chains: dict[int, bytes] = {}
        self.leaves: dict[int, bytes] = {}
        self.chain = GENESIS
        for number in range(before):
            self.bench.do(*put(KEYS[number], b"before the chain"))
        if kept > 1:
            configure(self.bench, history=kept)
        configure(self.bench, chain=True)

    def teardown(self) -> None:
        if hasattr(self, "bench"):
            self.bench.close()
            shutil.rmtree(self.folder)

    def link(self, revision: int, time: int, key: str, value: bytes, headers: Any) -> bytes:
        if self.keys is not None:
            headers = {**(headers or {}), salts.SALT_HEADER: "c1f4"}
        self.leaves[revision] = leaf(revision, time, key, value, headers)
        self.chain = hashlib.sha256(b"\1" + self.chain + self.leaves[revision]).digest()
        self.chains[revision] = self.chain
        return self.chain

    @rule(
        keys=st.lists(st.sampled_from(KEYS), min_size=1, max_size=5),
        headers=st.sampled_from(HEADERS),
        ttl=st.sampled_from((None, 1.0)),
        commit=st.booleans(),
    )
    def set_some(self, keys: list[str], headers: Any, ttl: float | None, commit: bool) -> None:
        chain = self.chain
        values = [b"%d" % number for number in range(len(keys))]
        wanted = [
            [frames.SET_ENTRY, key, value, headers, None, ttl]
            for key, value in zip(keys, values, strict=True)
        ]
        results = self.bench.tick(*wanted, commit=commit)
        for key, value, result in zip(keys, values, results, strict=True):
            told = self.link(result[1], result[2], key, value, headers)
            assert result == [0, result[1], result[2], False, None, told]
        if not commit:
            for result in results:
                del self.chains[result[1]], self.leaves[result[1]]
            self.chain = chain

    @rule(keys=st.lists(st.sampled_from(KEYS), min_size=1, unique=True))
    def delete(self, keys: list[str]) -> None:
        self.bench.do(frames.DELETE_ENTRIES, keys)

    @rule()
    def clear(self) -> None:
        self.bench.do(frames.CLEAR)

    @rule(limit=st.sampled_from((None, 1, 2)), kept=st.sampled_from((1, 2, 3)))
    def configure(self, limit: int | None, kept: int) -> None:
        configure(self.bench, max_messages=limit, history=kept)

    @rule(seconds=st.sampled_from((0.4, 1.5)))
    def wait(self, seconds: float) -> None:
        self.bench.time += int(seconds * 1000)

    @rule(crash=st.booleans())
    def change_owner(self, crash: bool) -> None:
        self.bench.tick()
        self.bench.fail_over(crash=crash)

    @invariant()
    def all_tell_the_same(self) -> None:
        if not hasattr(self, "bench"):
            return
        assert self.bench.store.chain == self.chain
        self.bench.tick()
        self.bench.materialise()
        file = file_of(self.bench.store)
        assert file.chain.value == self.chain
        base = file.chain.base
        found = dict(file.chain.leaves(file._connection.execute, has_subjects=False))
        beyond = [revision for revision in self.leaves if revision > base.seq]
        assert found == {revision: self.leaves[revision] for revision in beyond}
        before = [revision for revision in self.chains if revision <= base.seq]
        assert base.chain == (self.chains[max(before)] if before else GENESIS)
        assert file.chain.damage(file._connection.execute, has_subjects=False) == ""
        for key, revision, *_ in self.bench.read(frames.GET_ENTRIES)[0]:
            assert key in KEYS
            assert revision in found or revision not in self.leaves
        told = [batch.chain for record in self.bench.records[-1:] for batch in batches_of(record)]
        assert told in ([], [self.chain], [None])


TestKvChain = KvChain.TestCase
TestKvChain.settings = settings(max_examples=examples(40), stateful_step_count=15, deadline=None)


class EncryptedKvChain(KvChain):
    """Each set has a salt, the same here."""

    keys = TENANT_KEYS

    def __init__(self) -> None:
        super().__init__()
        self._salts = patch.object(salts, "_salt", lambda: "c1f4")
        self._salts.start()

    def teardown(self) -> None:
        self._salts.stop()
        super().teardown()


TestEncryptedKvChain = EncryptedKvChain.TestCase
TestEncryptedKvChain.settings = settings(
    max_examples=examples(25), stateful_step_count=12, deadline=None
)


def test_a_file_with_a_chain_has_format_8_and_others_stay_as_they_are(tmp_path: Path) -> None:
    formats = []
    for name, config in (("plain", {}), ("chained", {"chain": True}), ("past", {"history": 3})):
        (tmp_path / name).mkdir()
        bench = Bench(tmp_path / name, StoreKind.KV)
        for each in config.items():
            configure(bench, **dict([each]))
        bench.do(*put("a"))
        if name == "chained":
            # A history of later does not take the format back.
            configure(bench, history=3)
            bench.do(*put("a"))
        bench.materialise()
        formats.append(file_of(bench.store)._connection.pragma("user_version"))
        file_of(bench.store).close()
        file = StoreFile.open(bench.path, bench.id)
        assert file.chain.exists == (name == "chained")
        assert file.history.exists == (name != "plain")
        file.close()
    assert formats == [schema.FORMAT_VERSION, schema.KV_CHAIN_FORMAT, schema.HISTORY_FORMAT]
    assert schema.KV_CHAIN_FORMAT == 8
