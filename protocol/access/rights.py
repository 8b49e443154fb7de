"""Rights: what a token may allow on the stores it names, and which operation needs which.

| right | allows |
|---|---|
| read | reading messages, entries, heads, configurations and consumers; following changes |
| write | appending, setting, deleting, trimming, clearing; uploads and transactions. |
| configure | changing a store's configuration, and being told what it is then |
| consume | making, using and deleting consumers (work queues); not what is in the messages |
| destroy | removing a whole store |
| list | listing the stores whose names match; following a pattern of names also needs it |

Operations on all keys with a prefix need the rights to read and to write.

A write may tell its writer something about what is there, for example that an expected revision
did not hold. Nothing else is disclosed by a right that does not include reading.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import IntFlag
from operator import itemgetter
from typing import Any, Final

from holdfast.protocol import frames
from holdfast.protocol.errors import InvalidArgumentError


class Right(IntFlag):
    """What a token allows. The numbers are not on the wire; tokens name rights by their words."""

    READ = 1
    WRITE = 2
    CONFIGURE = 4
    CONSUME = 8
    DESTROY = 16
    LIST = 32

    @property
    def words(self) -> tuple[str, ...]:
        """The words of these rights, in the order of their definition."""
        return tuple(word for word, right in RIGHT_OF_WORD.items() if right in self)


RIGHT_OF_WORD: Final = {
    str(right.name).lower(): right
    for right in (
        Right.READ,
        Right.WRITE,
        Right.CONFIGURE,
        Right.CONSUME,
        Right.DESTROY,
        Right.LIST,
    )
}
NO_RIGHTS: Final = Right(0)
ALL_RIGHTS: Final = (
    Right.READ | Right.WRITE | Right.CONFIGURE | Right.CONSUME | Right.DESTROY | Right.LIST
)

#: The rights that each operation needs. A batch needs what its members need. An operation that is
#: not listed here needs all rights, so that a new one is closed until it is listed.
RIGHT_OF_OPERATION: Final = {
    frames.APPEND: Right.WRITE,
    frames.SET_MESSAGE: Right.WRITE,
    frames.DELETE_MESSAGES: Right.WRITE,
    frames.TRIM: Right.WRITE,
    frames.SET_ENTRY: Right.WRITE,
    frames.DELETE_ENTRIES: Right.WRITE,
    frames.CLEAR: Right.WRITE,
    frames.CONFIGURE: Right.CONFIGURE,
    frames.PUT_CHUNK: Right.WRITE,
    frames.DROP_UPLOADS: Right.WRITE,
    frames.PURGE: Right.WRITE,
    frames.SET_CURSOR: Right.CONSUME,
    frames.DELETE_CURSOR: Right.CONSUME,
    frames.EXPECT: Right.WRITE,
    frames.CONSUMER_CONFIGURE: Right.CONSUME,
    frames.CONSUMER_FETCH: Right.CONSUME,
    frames.CONSUMER_ACK: Right.CONSUME,
    frames.CONSUMER_DELETE: Right.CONSUME,
    # Their answers name keys that nobody has named to them.
    frames.DELETE_PREFIX: Right.READ | Right.WRITE,
    frames.EXPECT_PREFIX: Right.READ | Right.WRITE,
    frames.GET_MESSAGE: Right.READ,
    frames.GET_MESSAGES: Right.READ,
    frames.GET_ENTRY: Right.READ,
    frames.GET_ENTRIES: Right.READ,
    frames.HEAD: Right.READ,
    frames.CHANGES: Right.READ,
    frames.CONFIG: Right.READ,
    # Whoever writes a large value asks how far its upload has come.
    frames.UPLOAD: Right.WRITE,
    frames.READ_CHUNK: Right.READ,
    frames.CONSUMERS: Right.READ,
    frames.GET_SEQS: Right.READ,
    frames.GET_KEYS: Right.READ,
    frames.GET_BY_SUBJECT: Right.READ,
    frames.GET_LASTS: Right.READ,
    frames.SUBJECTS: Right.READ,
    frames.COUNT: Right.READ,
    frames.GAPS: Right.READ,
    frames.CURSORS: Right.READ,
    frames.CHAIN: Right.READ,
    frames.GET_ENTRY_AT: Right.READ,
    frames.GET_ENTRIES_AT: Right.READ,
    frames.HISTORY: Right.READ,
    frames.WATCH_META: Right.READ,
}


_ALL: Final = int(ALL_RIGHTS)
#: In the masks of operations that the audit log has. No grant has this bit, so that they are found
#: where a right is missing, and no other operation pays for it.
AUDITED: Final = 64
_MASKS: Final = {
    number: int(right) | (AUDITED if number == frames.CONFIGURE else 0)
    for number, right in RIGHT_OF_OPERATION.items()
}
#: In place of the number of what is no operation.
_NO_OPERATION: Final = -1
_SEQUENCES: Final = {list, tuple}
_INT: Final = {int}
_first: Final = itemgetter(0)


def rights_of(words: Iterable[str]) -> Right:
    """Return the rights that `words` name; `all` names all of them. Raises InvalidArgumentError."""
    rights = NO_RIGHTS
    for word in words:
        found = ALL_RIGHTS if word == "all" else RIGHT_OF_WORD.get(word)
        if found is None:
            known = ", ".join((*RIGHT_OF_WORD, "all"))
            raise InvalidArgumentError(
                argument="allow", reason=f"{word[:40]!r} is no right; rights are {known}"
            )
        rights |= found
    if not rights:
        raise InvalidArgumentError(argument="allow", reason="a token needs at least one right")
    return rights


def rights_needed(operations: Sequence[Sequence[Any]]) -> Right:
    """Return the rights that the operations of a group need. They may have any shape: what is no
    operation needs all rights, and nobody is refused for it who has them."""
    return Right(mask_needed(operations) & _ALL)


def mask_needed(operations: Sequence[Sequence[Any]]) -> int:
    """Return what `rights_needed` does as a number, with AUDITED. Servers ask for every group, and
    arithmetic with flags takes ten times as long."""
    if len(operations) == 1:
        number = operations[0][0]
        if type(number) is int and (mask := _MASKS.get(number)) is not None:
            return mask
    needed = 0
    numbers = _numbers(operations)
    if frames.BATCH in numbers:
        numbers.discard(frames.BATCH)
        for operation in operations:
            if operation[0] == frames.BATCH:
                members = operation[1] if len(operation) > 1 else None
                # Batches do not nest, so a batch in a batch needs all rights, as does nonsense.
                numbers |= _numbers(members) if members != [] else set()
    for number in numbers:
        needed |= _MASKS.get(number, _ALL)
    return needed


def numbers_within(rights: Right) -> frozenset[int]:
    """Return the numbers of the operations that need nothing but `rights`. A batch is none of
    them: what it needs depends on its operations; nor is one that the audit log has."""
    return frozenset(number for number, mask in _MASKS.items() if not mask & ~int(rights))


def _numbers(operations: Any) -> set[int]:
    """Return the numbers of operations; what is no operation has a number that none has. There may
    be thousands, so they are looked at without Python code for each."""
    if (
        not isinstance(operations, list | tuple)
        or not set(map(type, operations)) <= _SEQUENCES
        or not all(operations)
    ):
        return {_NO_OPERATION}
    numbers = list(map(_first, operations))
    return set(numbers) if set(map(type, numbers)) <= _INT else {_NO_OPERATION}
