"""Rights: what a token may allow on the stores it names, and which operation needs which.

| right | allows |
|---|---|
| read | reading messages, entries, heads, configurations and consumers; following changes |
| write | appending, setting, deleting, trimming, clearing; uploads and transactions |
| configure | changing a store's configuration |
| consume | making, using and deleting consumers (work queues) |
| destroy | removing a whole store |
| list | listing the stores whose names match; following a pattern of names also needs it |

A write may tell its writer something about what is there, for example that an expected revision
did not hold. Nothing else is disclosed by a right that does not include reading.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import IntFlag
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

#: The right that each operation needs. A batch needs what its members need. An operation that is
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
    frames.EXPECT: Right.WRITE,
    frames.CONSUMER_CONFIGURE: Right.CONSUME,
    frames.CONSUMER_FETCH: Right.CONSUME,
    frames.CONSUMER_ACK: Right.CONSUME,
    frames.CONSUMER_DELETE: Right.CONSUME,
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
}


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
    needed = NO_RIGHTS
    for operation in operations:
        number = operation[0]
        if number == frames.BATCH and type(number) is int:
            members = operation[1] if len(operation) > 1 else None
            if type(members) is not list:
                return ALL_RIGHTS
            for member in members:
                # Batches do not nest, so a batch in a batch needs all rights, as does nonsense.
                number = member[0] if type(member) is list and member else None
                needed |= _right_of(number)
        else:
            needed |= _right_of(number)
    return needed


def _right_of(number: object) -> Right:
    if type(number) is not int:
        return ALL_RIGHTS
    return RIGHT_OF_OPERATION.get(number, ALL_RIGHTS)
