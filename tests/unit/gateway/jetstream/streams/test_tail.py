"""The tail of a stream: acks of this gateway's appends and broadcasts become one order."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from holdfast.client.handles.serving_wire import (
    Removed,
    ServedChange,
    ServedMessage,
    ServingHead,
    Trimmed,
)
from holdfast.gateway.jetstream.streams.tail import Tail


class _Heard:
    """What consumers heard, in order."""

    def __init__(self) -> None:
        self.events: list[object] = []

    def appended(self, messages: Sequence[ServedMessage]) -> None:
        self.events += [("appended", message.seq) for message in messages]

    def removed(self, seqs: Sequence[int]) -> None:
        self.events.append(("removed", *seqs))

    def trimmed(self, first_seq: int) -> None:
        self.events.append(("trimmed", first_seq))

    def replaced(self, message: ServedMessage) -> None:
        self.events.append(("replaced", message.seq))

    def restarted(self) -> None:
        self.events.append("restarted")

    def configured(self) -> None:
        self.events.append("configured")


def _message(seq: int) -> ServedMessage:
    return ServedMessage(seq, "s", 0, b"", b"")


def _head(first_seq: int, last_seq: int, count: int) -> ServingHead:
    return ServingHead(1, first_seq, last_seq, count, 0, 1, "s1")


def _tail(first_seq: int = 1, last_seq: int = 0, count: int = 0) -> tuple[Tail, _Heard]:
    tail, heard = Tail(_head(first_seq, last_seq, count)), _Heard()
    tail.listener = heard
    return tail, heard


def test_an_append_is_told_by_whichever_is_first_and_once() -> None:
    tail, heard = _tail()
    tail.acknowledged(_message(1))
    tail.told([_message(1), _message(2)])
    tail.acknowledged(_message(2))
    assert heard.events == [("appended", 1), ("appended", 2)]
    assert tail.state == (1, 2, 2)


def test_an_ack_that_overtakes_the_append_of_another_waits_for_its_broadcast() -> None:
    tail, heard = _tail()
    tail.acknowledged(_message(2))
    assert heard.events == []
    tail.told([_message(1), _message(2)])
    assert heard.events == [("appended", 1), ("appended", 2)]


def test_a_message_that_is_set_again_is_told_as_replaced() -> None:
    tail, heard = _tail()
    tail.acknowledged(_message(1))
    tail.told([_message(1)])
    tail.told([_message(1)])
    assert heard.events == [("appended", 1), ("replaced", 1)]


def test_removals_move_the_numbers() -> None:
    tail, heard = _tail(1, 5, 5)
    tail.told([Removed((2,)), Trimmed(3), Removed((7, 8)), _message(9)])
    assert heard.events == [
        ("removed", 2),
        ("trimmed", 4),
        ("removed", 7, 8),
        ("appended", 9),
    ]
    # Of a stream with gaps these are bounds, until a head says more.
    assert tail.inexact
    tail.head(_head(4, 9, 3))
    assert tail.state == (4, 9, 3) and not tail.inexact
    tail.told([Trimmed(9)])
    assert tail.state == (10, 9, 0) and not tail.inexact


def test_after_a_loss_the_head_counts() -> None:
    tail, heard = _tail()
    tail.acknowledged(_message(1))
    tail.restart(_head(5, 9, 4))
    assert heard.events == [("appended", 1), "restarted"]
    assert tail.state == (5, 9, 4)


@given(st.data())
def test_whatever_the_interleaving_each_append_is_told_once_and_in_order(
    data: st.DataObject,
) -> None:
    tail, heard = _tail()
    own = data.draw(st.lists(st.booleans(), max_size=12))
    acks = [seq for seq, mine in enumerate(own, 1) if mine]
    changes: list[ServedChange] = [_message(seq) for seq in range(1, len(own) + 1)]
    while acks or changes:
        if acks and (not changes or data.draw(st.booleans())):
            tail.acknowledged(_message(acks.pop(0)))
        else:
            count = data.draw(st.integers(1, len(changes)))
            tail.told(changes[:count])
            del changes[:count]
    assert heard.events == [("appended", seq) for seq in range(1, len(own) + 1)]
    assert tail.state == (1, len(own), len(own))
