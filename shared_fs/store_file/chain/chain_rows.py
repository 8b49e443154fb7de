"""The chain of a store as rows of its file (`protocol/chain.py` says what is hashed).

Tables are created when the store is configured to keep a chain (`chain_schema.py`). Invariants:

- `value` is the chain after the message with the last seq, or the last set of a kv. It is computed
  from the changes that are applied; where a batch says which chain its owner had after it, the two
  are compared. If this very process has computed that from the same changes in its memory, it is
  taken over, but for one batch in `CHECKED_EVERY` (docs/decisions/094).
- Each message beyond `base_seq` is either in `messages`, or has its leaf in `leaves`: so the chain
  from `base` to `value` can be computed anew from the file alone, at any time.
- The base moves over what was removed from the front, and over nothing else. It never passes a
  message that exists. Messages of before the chain are not part of it.
- In a kv a set of a key takes the place of a message, and its revision that of the seq. A value
  that is replaced leaves its leaf like one that is deleted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from heapq import merge
from typing import Any, Final, NamedTuple

import apsw

from holdfast.protocol.chain.hashing import (
    GENESIS,
    ChainLink,
    after,
    after_all,
    after_values,
    leaf_of,
    leaf_of_set,
)
from holdfast.protocol.errors import StoreDamagedError
from holdfast.protocol.frames import WireChange, unpack
from holdfast.protocol.header_block import FIRST_BYTE
from holdfast.protocol.names import StoreId
from holdfast.shared_fs.store_file import schema
from holdfast.shared_fs.store_file.chain import chain_schema as sql
from holdfast.shared_fs.store_file.chain.kept_leaves import (
    kept_leaf_of,
    kept_leaf_of_set,
    leaf_of_kept,
    leaf_of_kept_set,
)
from holdfast.shared_fs.store_file.encrypted.encrypted_values import BOX_FIRST_BYTE
from holdfast.shared_fs.store_file.pages.page_sizes import raise_format, read_format
from holdfast.shared_fs.store_file.sqlite_connection import integers

#: Of the batches that this process has accepted itself, one in so many is computed again.
CHECKED_EVERY: Final = 16
_LARGEST_SEQ: Final = (1 << 63) - 1
#: The first bytes of headers that are no packed map.
_AS_THEY_ARE: Final = (FIRST_BYTE, BOX_FIRST_BYTE)

#: `(seq, leaf)` of messages, by seq.
Leaves = Iterator[tuple[int, bytes]]


class ChainState(NamedTuple):
    """The row of `chain`. `value` is None without a chain."""

    value: bytes | None = None
    base_seq: int = 0
    base: bytes = GENESIS


NO_CHAIN: Final = ChainState()


class StoredChain:
    """The chain of one open file. Without one, nothing queries the file."""

    __slots__ = ("_execute", "_is_kv", "_own_batches", "state")

    def __init__(self, execute: Callable[..., apsw.Cursor], *, is_kv: bool = False) -> None:
        """`execute(statement, bindings)` returns a cursor of the file."""
        self._execute = execute
        self._is_kv = is_kv
        self._own_batches = 0
        self.state = NO_CHAIN

    def believes_next(self) -> bool:
        """Return whether the chain of the next batch that this process has accepted is taken over.
        The first one after a file is opened is computed again."""
        is_checked = self._own_batches % CHECKED_EVERY == 0
        self._own_batches += 1
        return not is_checked

    @property
    def exists(self) -> bool:
        """The store keeps a chain."""
        return self.state.value is not None

    @property
    def value(self) -> bytes | None:
        """The chain after the last message; None without a chain."""
        return self.state.value

    @property
    def base(self) -> ChainLink:
        """Where what can be checked begins."""
        return ChainLink(self.state.base_seq, self.state.base)

    def load(self) -> None:
        """Read the state from a file of CHAIN_FORMAT."""
        self.state = NO_CHAIN
        if self._execute(sql.HAS_CHAIN).get:
            self.state = ChainState(*self._execute(sql.SELECT_STATE).get)

    def go_back(self, state: ChainState) -> None:
        """Return to the state before a transaction that is rolled back."""
        self.state = state

    def kept_leaves(self, after_seq: int, limit: int) -> list[list[Any]]:
        """Return `[seq, leaf]` of the first messages after a seq whose values are not in the file.
        """
        after_seq = max(after_seq, self.state.base_seq)
        found = self._execute(sql.SELECT_SOME_LEAVES, (after_seq, limit)).fetchall()
        return [list(row) for row in found]

    def leaves(self, execute: Callable[..., apsw.Cursor], *, has_subjects: bool) -> Leaves:
        """Yield the leaf of each message beyond the base, computed anew where its value is in the
        file. `execute` makes a cursor for each statement. A box is believed only in a file whose
        format says that it has some: without keys, a check must not call others sound."""
        start = self.state.base_seq + 1
        believes = read_format(execute) >= schema.ENCRYPTED_CHAIN_FORMAT
        kept: Any = execute(sql.SELECT_LEAVES, (start, _LARGEST_SEQ))
        if self._is_kv:
            sets = execute(sql.SELECT_SETS, (start, _LARGEST_SEQ))
            return merge(_set_leaves(execute, sets, believes=believes), kept)
        computed = _computed(execute, start, _LARGEST_SEQ, has_subjects, believes=believes)
        return merge(computed, kept)

    def at(
        self, seq: int, execute: Callable[..., apsw.Cursor], *, has_subjects: bool
    ) -> bytes | None:
        """Return the chain after the last message up to `seq`; None without a chain, or below the
        base."""
        if not self.exists or seq < self.state.base_seq:
            return None
        leaves = self.leaves(execute, has_subjects=has_subjects)
        return after_all(self.state.base, [leaf for each, leaf in leaves if each <= seq])

    def damage(self, execute: Callable[..., apsw.Cursor], *, has_subjects: bool) -> str:
        """Return what is wrong with the chain; empty if it is sound. Reads all messages."""
        if not self.exists:
            return ""
        before = self.state.base_seq
        chain = self.state.base
        for seq, leaf in self.leaves(execute, has_subjects=has_subjects):
            if seq == before:
                return f"message {seq} exists, and has the leaf of a removed one"
            chain, before = after(chain, leaf), seq
        if chain != self.state.value:
            return (
                f"the messages from {self.state.base_seq + 1} on give the chain {chain.hex()}"
                f" instead of {(self.state.value or b'').hex()}"
            )
        return ""


class ChainRows:
    """Writes the chain in one transaction. Call `flush` at its end."""

    def __init__(self, cursor: apsw.Cursor, stored: StoredChain) -> None:
        self._execute = cursor.execute
        self._connection = cursor.connection
        self._stored = stored
        self._before = self._state = stored.state
        #: Messages beyond the base may be gone from the front.
        self._has_removed = False
        #: The chain after the batch is believed: what its changes would do to it, in order.
        self._believes = False
        self._deferred: list[tuple[Callable[..., None], tuple[Any, ...]]] = []
        self._format = schema.CHAIN_FORMAT
        self._first_beyond = sql.SELECT_FIRST_BEYOND

    @property
    def exists(self) -> bool:
        return self._state.value is not None

    def configure(self, last_seq: int) -> None:
        """Begin a chain after `last_seq`, unless there is one."""
        if self.exists:
            return
        for statement in sql.CREATE_CHAIN:
            self._execute(statement)
        raise_format(self._execute, self._format)
        self._state = ChainState(GENESIS, last_seq, GENESIS)
        self._execute(sql.INSERT_STATE, self._state)

    def begin(self, *, is_own: bool) -> None:
        """Begin a batch, at whose end `compare` is called. `is_own` tells that this process has
        accepted its changes, and has computed the chain from them as they are in its memory."""
        self._settle()
        self._believes = is_own and self.exists and self._stored.believes_next()

    def _settle(self) -> None:
        """Compute the chain after what was applied, because it is needed within a batch, or nobody
        tells it."""
        self._believes = False
        deferred, self._deferred = self._deferred, []
        for go_on, arguments in deferred:
            go_on(*arguments)

    def append_values(self, seq: int, time: int, values: Sequence[bytes]) -> None:
        """Go on with the messages from `seq` on that have a value and nothing else."""
        if self._believes:
            self._deferred.append((self.append_values, (seq, time, values)))
            return
        assert self._state.value is not None
        self._state = self._state._replace(
            value=after_values(self._state.value, seq, time, values)[-1]
        )

    def append_timed(self, seq: int, times: Sequence[int], values: Sequence[bytes]) -> None:
        """Do what `append_values` does, with messages of different times."""
        if self._believes:
            self._deferred.append((self.append_timed, (seq, times, values)))
            return
        assert self._state.value is not None
        leaves = map(leaf_of, range(seq, seq + len(values)), times, values)
        self._state = self._state._replace(value=after_all(self._state.value, leaves))

    def append_rows(
        self, rows: Iterable[tuple[int, int, bytes, bytes | None, str | None]]
    ) -> None:
        """Go on with messages `(seq, time, value, header block | None, subject)`."""
        if self._believes:
            self._deferred.append((self.append_rows, (rows,)))
            return
        assert self._state.value is not None
        leaves = (kept_leaf_of(*row) for row in rows)
        self._state = self._state._replace(value=after_all(self._state.value, leaves))

    def append(self, change: WireChange, time: int) -> None:
        """Go on with a message that is set at `time`."""
        if self._believes:
            self._deferred.append((self.append, (change, time)))
            return
        assert self._state.value is not None
        value = after(self._state.value, leaf_of_kept(change, time))
        self._state = self._state._replace(value=value)

    def compare(self, chain: bytes) -> None:
        """End a batch. Raises StoreDamagedError unless this is the chain, which the owner had."""
        if self._deferred:
            self._deferred.clear()
            self._state = self._state._replace(value=chain)
        self._believes = False
        if chain != self._state.value:
            mine = "none" if self._state.value is None else self._state.value.hex()
            reason = f"its owner had the chain {chain.hex()}; the changes give {mine}"
            raise StoreDamagedError(store=_name_in(self._execute), reason=reason)

    def keep(self, seqs: Sequence[int], *, has_subjects: bool) -> None:
        """Keep the leaves of messages whose values are about to leave the file: they are removed or
        archived. Those of archived messages are kept already."""
        wanted = (self._state.base_seq, integers(seqs))
        rows = self._execute(sql.SELECT_MANY[has_subjects], wanted).fetchall()
        for seq, leaf in _leaves(self._connection.execute, rows):
            self._execute(sql.INSERT_LEAF, (seq, leaf))
        self._has_removed = True

    def trim(self, end_seq: int, last_seq: int, *, has_subjects: bool) -> None:
        """Move the base to `end_seq`: all messages up to there are about to be removed."""
        _, base_seq, base = self._state
        if end_seq <= base_seq:
            return
        if end_seq >= last_seq:
            self._settle()
            assert self._state.value is not None
            self._state = self._state._replace(base_seq=last_seq, base=self._state.value)
            self._execute(sql.DELETE_ALL_LEAVES)
            return
        execute = self._connection.execute
        kept: Any = execute(sql.SELECT_LEAVES, (base_seq + 1, end_seq))
        for _, leaf in merge(_computed(execute, base_seq + 1, end_seq, has_subjects), kept):
            base = after(base, leaf)
        self._state = self._state._replace(base_seq=end_seq, base=base)
        self._execute(sql.DELETE_LEAVES_UP_TO, (end_seq,))
        self._has_removed = True

    def end_at(self, last_seq: int, chain: bytes | None) -> None:
        """Go back to the chain after `last_seq`, as if later messages had never been. Without a
        `chain`, nothing is left up to there, and it begins anew."""
        self._settle()
        self._execute(sql.DELETE_LEAVES_BEYOND, (last_seq,))
        value = GENESIS if chain is None else chain
        _, base_seq, base = self._state
        if chain is None or base_seq > last_seq:
            base_seq, base = last_seq, value
        self._state = ChainState(value, base_seq, base)

    def flush(self, first_archived: Callable[[int], int | None]) -> None:
        """Move the base over what is gone from the front, and write the state. `first_archived`
        returns the first archived seq from one on."""
        if not self.exists:
            return
        self._settle()
        if self._has_removed:
            self._fold(first_archived)
        if self._state != self._before:
            # The row is replaced in its place, which takes half as long as a new one.
            self._execute(sql.UPDATE_STATE, self._state)
            self._stored.state = self._before = self._state

    def _fold(self, first_archived: Callable[[int], int | None]) -> None:
        _, base_seq, base = self._state
        first: int | None = self._execute(self._first_beyond, (base_seq,)).get
        ends = [seq for seq in (first, first_archived(base_seq + 1)) if seq is not None]
        end_seq = min(ends) - 1 if ends else _LARGEST_SEQ
        gone: Any = self._execute(sql.SELECT_LEAVES, (base_seq + 1, end_seq)).fetchall()
        for seq, leaf in gone:
            base_seq, base = seq, after(base, leaf)
        if gone:
            self._execute(sql.DELETE_LEAVES_UP_TO, (base_seq,))
            self._state = self._state._replace(base_seq=base_seq, base=base)
        self._has_removed = False


class KvChainRows(ChainRows):
    """Writes the chain of a kv in one transaction. Call `flush` at its end."""

    def __init__(self, cursor: apsw.Cursor, stored: StoredChain) -> None:
        super().__init__(cursor, stored)
        self._format = schema.KV_CHAIN_FORMAT
        self._first_beyond = sql.SELECT_FIRST_SET_BEYOND

    def set(self, change: WireChange, revision: int, time: int) -> None:
        """Go on with a set of a key."""
        if self._believes:
            self._deferred.append((self.set, (change, revision, time)))
            return
        assert self._state.value is not None
        leaf = leaf_of_kept_set(change, revision, time)
        self._state = self._state._replace(value=after(self._state.value, leaf))

    def keep_of(self, key: str) -> None:
        """Keep the leaf of a key whose value is about to be replaced or removed, if it has one."""
        rows = self._execute(sql.SELECT_SET, (self._state.base_seq, key)).fetchall()
        for revision, leaf in _set_leaves(self._connection.execute, rows):
            self._execute(sql.INSERT_LEAF, (revision, leaf))
            self._has_removed = True

    def clear(self, revision: int) -> None:
        """Move the base to `revision`: all values are about to be removed."""
        self._settle()
        assert self._state.value is not None
        self._state = self._state._replace(base_seq=revision, base=self._state.value)
        self._execute(sql.DELETE_ALL_LEAVES)

    def end(self) -> None:
        """Move the base over what is gone from the front, and write the state."""
        self.flush(lambda _: None)


def _computed(
    execute: Callable[..., apsw.Cursor],
    start_seq: int,
    end_seq: int,
    has_subjects: bool,
    *,
    believes: bool = True,
) -> Leaves:
    """Yield the leaves of the messages of a range whose values are in the file."""
    rows = execute(sql.SELECT_RANGE[has_subjects], (start_seq, end_seq))
    return _leaves(execute, rows, believes=believes)


def _leaves(
    execute: Callable[..., apsw.Cursor], rows: Iterable[Any], *, believes: bool = True
) -> Leaves:
    leaf_of_row = kept_leaf_of if believes else leaf_of
    for seq, time, value, headers, body_bytes, subject in rows:
        if body_bytes is not None:
            value = _large_value(execute, seq)
        if headers is not None and headers[0] not in _AS_THEY_ARE:
            headers = unpack(headers)
        yield seq, leaf_of_row(seq, time, value, headers, subject)


def _set_leaves(
    execute: Callable[..., apsw.Cursor], rows: Iterable[Any], *, believes: bool = True
) -> Leaves:
    leaf_of_row = kept_leaf_of_set if believes else leaf_of_set
    for revision, time, value, headers, body_bytes, key in rows:
        if body_bytes is not None:
            value = execute(schema.SELECT_BODY_AT, (key,)).get
        if headers is not None and headers[0] != BOX_FIRST_BYTE:
            headers = unpack(headers)
        yield revision, leaf_of_row(revision, time, value, headers, key)


def _name_in(execute: Callable[..., apsw.Cursor]) -> str:
    found: Any = execute(sql.SELECT_STORE).get
    return str(StoreId(*found))


def _large_value(execute: Callable[..., apsw.Cursor], seq: int) -> Any:
    return execute(schema.SELECT_BODY_AT, (seq,)).get
