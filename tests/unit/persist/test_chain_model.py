"""Any writes, removals, limits and changes of owner of a stream with a chain, against a list of
leaves: the owner, its acks, the log and the file have the same chain after each message. In an
encrypted tenant too, whose log and file are replayed without keys."""

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
from holdfast.protocol.chain.hashing import GENESIS, after, leaf_of
from holdfast.protocol.header_block import HeaderBlock
from holdfast.protocol.names import StoreKind
from holdfast.shared_fs.encryption import salts
from holdfast.shared_fs.encryption.data_keys import TenantKeys
from holdfast.shared_fs.store_file.store_file import StoreFile
from tests.support.effort import examples
from tests.support.stores import file_of
from tests.support.tenant_keys import KEYS
from tests.support.ticked_store import Bench, configure

SUBJECTS = ("a", "b")
HEADERS = (None, {"y": "2", "x": "1"}, HeaderBlock.of({"a": "1"}).block)


def leaf(seq: int, time: int, value: bytes, headers: Any, subject: str | None) -> bytes:
    """What docs/chain.md says, in the plainest words."""
    form, text = 0, b""
    if type(headers) is bytes:
        form, text = 2, headers
    elif headers:
        for pair in sorted(headers.items()):
            for each in pair:
                text += struct.pack(">I", len(each.encode())) + each.encode()
    about = b"" if subject is None else subject.encode()
    form |= 0 if subject is None else 1
    packed = b"\0" + struct.pack(">QqBIIQ", seq, time, form, len(about), len(text), len(value))
    return hashlib.sha256(packed + about + text + value).digest()


class Chain(RuleBasedStateMachine):
    """See above."""

    keys: TenantKeys | None = None

    @initialize(keeps_up=st.booleans(), before=st.integers(0, 2), first_seq=st.sampled_from((1, 9)))
    def begin(self, keeps_up: bool, before: int, first_seq: int) -> None:
        self.folder = Path(tempfile.mkdtemp())
        self.bench = Bench(
            self.folder, StoreKind.STREAM, keeps_up=keeps_up, keys=self.keys
        )
        #: The chain after each message, by seq.
        self.chains: dict[int, bytes] = {}
        self.chain = GENESIS
        if first_seq > 1:
            configure(self.bench, first_seq=first_seq)
        for _ in range(before):
            self.bench.do(frames.APPEND, b"before the chain")
        configure(self.bench, chain=True)
        self.began = self.bench.store.last_seq

    def teardown(self) -> None:
        if hasattr(self, "bench"):
            self.bench.close()
            shutil.rmtree(self.folder)

    def expect(self, seq: int, value: bytes, headers: Any = None, subject: Any = None) -> bytes:
        time = self.bench.store.time
        headers = self.kept(headers)
        link = leaf(seq, time, value, headers, subject)
        self.chain = self.chains[seq] = hashlib.sha256(b"\1" + self.chain + link).digest()
        return self.chain

    def kept(self, headers: Any) -> Any:
        """Return the headers that the store keeps."""
        return headers

    @rule(
        values=st.lists(st.binary(max_size=3), min_size=1, max_size=6),
        headers=st.sampled_from(HEADERS),
        subject=st.none() | st.sampled_from(SUBJECTS),
        ttl_seconds=st.none() | st.integers(1, 4),
        batched=st.booleans(),
    )
    def append(
        self,
        values: list[bytes],
        headers: Any,
        subject: str | None,
        ttl_seconds: int | None,
        batched: bool,
    ) -> None:
        if subject is None and type(headers) is bytes and ttl_seconds is None:
            headers = None
        options = [headers, None, None, ttl_seconds, subject]
        while options and options[-1] is None:
            options.pop()
        operations = [[frames.APPEND, value, *options] for value in values]
        before = self.bench.store.last_seq
        if batched:
            results = self.bench.tick([frames.BATCH, operations])[0]
            if type(results[0]) is str:
                # More than a limit lets in.
                return
        else:
            results = self.bench.tick(*operations)
        # What was due in the tick went first, and may have left markers: none is configured.
        for seq, (value, result) in enumerate(zip(values, results, strict=True), before + 1):
            assert result[0] == seq
            assert result[5] == self.expect(seq, value, headers or None, subject)

    @rule(messages=st.integers(1, 5))
    def append_many_and_fail(self, messages: int) -> None:
        """The log takes nothing of a tick."""
        self.bench.tick()
        self.bench.tick(*[[frames.APPEND, b"lost"]] * messages, [frames.TRIM], commit=False)

    @rule(data=st.data(), count=st.integers(1, 3))
    def delete(self, data: Any, count: int) -> None:
        last_seq = max(1, self.bench.store.last_seq)
        seqs = data.draw(st.lists(st.integers(1, last_seq), min_size=count, max_size=count))
        self.bench.do(frames.DELETE_MESSAGES, seqs)

    @rule(data=st.data())
    def trim(self, data: Any) -> None:
        self.bench.do(frames.TRIM, data.draw(st.integers(0, self.bench.store.last_seq)))

    @rule(subject=st.sampled_from(SUBJECTS))
    def purge(self, subject: str) -> None:
        self.bench.do(frames.PURGE, subject)

    @rule(limit=st.none() | st.integers(1, 6), per_subject=st.none() | st.integers(1, 2))
    def limit(self, limit: int | None, per_subject: int | None) -> None:
        configure(self.bench, max_messages=limit, max_messages_per_subject=per_subject)

    @rule(data=st.data())
    def archive(self, data: Any) -> None:
        end_seq = data.draw(st.integers(0, self.bench.store.last_seq))
        self.bench.materialise()
        file = self.bench.store.file
        if file is None or end_seq <= (file._archived.last_seq() if file.has_archived else 0):
            return
        self.bench.tick()
        self.bench.store.begin()
        self.bench.store.archive(end_seq, "t")
        self.bench.commit()

    @rule(seconds=st.integers(1, 3))
    def wait(self, seconds: int) -> None:
        self.bench.time += 1000 * seconds

    @rule()
    def replaces_nothing(self) -> None:
        for seq in {self.bench.store.last_seq, self.began, 1}:
            if 1 <= seq <= self.bench.store.last_seq:
                assert self.bench.do(frames.SET_MESSAGE, seq, b"x")[0] == "denied"
        assert configure(self.bench, chain=False)[0] == "denied"

    @rule(crash=st.booleans())
    def fail_over(self, crash: bool) -> None:
        self.bench.fail_over(crash=crash)
        self.check_file()

    @rule()
    def materialise(self) -> None:
        self.bench.materialise()
        if self.bench.store.file is not None:
            self.check_file()

    @rule()
    def replay(self) -> None:
        """The log alone gives the same chain, also if it is applied in other portions."""
        path = self.folder / "replayed.db"
        file = StoreFile.create(path, self.bench.id, time=0)
        try:
            for record in self.bench.records:
                for batch in batches_of(record):
                    file.apply([batch])
            assert file.chain.value == self.chain
        finally:
            file.close()
            path.unlink()

    @invariant()
    def the_owner_has_the_chain(self) -> None:
        if hasattr(self, "bench"):
            assert self.bench.store.chain == self.chain

    def check_file(self) -> None:
        file = file_of(self.bench.store)
        assert file.chain.value == self.chain
        seq, base = file.chain.base
        # The base is the chain after some message, or that of before the first.
        before = [self.chains[each] for each in self.chains if each <= seq]
        assert base == ([GENESIS, *before])[-1]
        damage = file.chain.damage(
            file._connection.execute, has_subjects=file.subjects.exists
        )
        assert damage == ""
        kept = [each for each, _ in file.kept_leaves(0, 1000)]
        present = [row[0] for row in file.messages(1, None, 1000)]
        archived = [row[0] for row in file.messages(1, None, 1000) if type(row[3]) is not bytes]
        covered = {each for each in self.chains if each > seq}
        assert covered == {each for each in (*kept, *present) if each > self.began}
        # Nothing is kept of what is gone from the front.
        assert not kept or kept[0] > min([*present, *archived, kept[0]]) or kept[0] in archived
        assert set(archived) - {each for each in archived if each <= self.began} <= set(kept)


Chain.TestCase.settings = settings(
    max_examples=examples(40), stateful_step_count=25, deadline=None
)
TestChain = Chain.TestCase


class EncryptedChain(Chain):
    """Each message has a salt, the same here."""

    keys = KEYS

    def __init__(self) -> None:
        super().__init__()
        self._salts = patch.object(salts, "_salt", lambda: "c1f4")
        self._salts.start()

    def teardown(self) -> None:
        self._salts.stop()
        super().teardown()

    def kept(self, headers: Any) -> Any:
        salt = {salts.SALT_HEADER: "c1f4"}
        if type(headers) is bytes:
            return HeaderBlock(headers).with_added(salt).block
        return {**(headers or {}), **salt}

    def check_file(self) -> None:
        super().check_file()
        read = self.bench.read(frames.GET_MESSAGES) if not self._has_archived() else [[]]
        for seq, _, time, value, headers, *more in read[0]:
            if seq > self.began:
                subject = more[0] if more else None
                link = leaf_of(seq, time, value, headers, subject)
                before = max((each for each in self.chains if each < seq), default=None)
                chain = GENESIS if before is None else self.chains[before]
                assert after(chain, link) == self.chains[seq], "clients make the same leaf"

    def _has_archived(self) -> bool:
        return file_of(self.bench.store).has_archived


EncryptedChain.TestCase.settings = settings(
    max_examples=examples(25), stateful_step_count=20, deadline=None
)
TestEncryptedChain = EncryptedChain.TestCase
