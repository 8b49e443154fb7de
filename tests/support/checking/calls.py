"""What the client says, noted in a history."""

from __future__ import annotations

from collections.abc import Callable

from holdfast.client import Client
from holdfast.protocol.messages import Ack, Deleted, Durability, Entry, Head, Message
from holdfast.protocol.names import StoreKind
from tests.support.checking.history import Final, Key, Operation, Store, value_of

Answer = Ack | list[Ack] | Deleted | Head | Message | Entry | None
"""Of a call that is one operation."""
Value = Callable[[Message | Entry], bytes]
"""What stands for the value of a row in a history."""


def note_answer(operation: Operation, answer: Answer, value: Value = value_of) -> None:
    """Put what a call returned into its operation."""
    match answer:
        case Ack():
            note_answer(operation, [answer])
        case list():
            operation.revisions = tuple(ack.revision for ack in answer)
            operation.seqs = tuple(ack.seq for ack in answer if ack.seq is not None)
            operation.duplicate = answer[0].duplicate
            operation.stored = all(ack.durability is Durability.STORED for ack in answer)
        case Deleted():
            operation.count, operation.revisions = answer.count, (answer.revision,)
        case Head():
            operation.head_revision = answer.revision
        case Message():
            operation.seen = {answer.seq: (value(answer), answer.revision)}
        case Entry():
            operation.seen = {answer.key: (value(answer), answer.revision)}


async def read_final(client: Client, store: Store, value: Value = value_of) -> Final:
    """Read a whole store to which nobody writes any more. Raises HoldfastError."""
    kind, name = store
    rows: dict[Key, tuple[bytes, int]] = {}
    if kind == StoreKind.STREAM:
        stream = client.stream(name)
        head = await stream.head()
        async for message in stream.get_all():
            assert message.seq not in rows, f"{name} has {message.seq} twice"
            rows[message.seq] = (value(message), message.revision)
    else:
        kv = client.kv(name)
        head = await kv.head()
        async for entry in kv.get_all():
            assert entry.key not in rows, f"{name} has {entry.key} twice"
            rows[entry.key] = (value(entry), entry.revision)
    return Final(head.revision, head.last_seq, rows, head.count)
