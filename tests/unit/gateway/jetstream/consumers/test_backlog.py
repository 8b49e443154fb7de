"""What is read ahead for a consumer: as many messages as fit in a few MiB."""

from __future__ import annotations

from holdfast.client.handles.serving_wire import ServedMessage
from holdfast.gateway.jetstream.consumers.backlog import READ_AHEAD, READ_AHEAD_BYTES, Backlog
from holdfast.protocol.limits import MIB


def _message(seq: int, size_bytes: int) -> ServedMessage:
    return ServedMessage(seq, "s", 0, b"", bytes(size_bytes))


def _held_after_reading(size_bytes: int) -> int:
    """Return how many messages are held once no more are wanted; a page has some of them."""
    backlog = Backlog(1)
    backlog.dirty = False
    seq = 1
    while backlog.wants_page:
        backlog.asked_for_page(10_000)
        page = [_message(each, size_bytes) for each in range(seq, seq + 4)]
        backlog.loaded(page, seq + 4, 10_000)
        seq += 4
    return len(backlog.messages)


def test_large_messages_are_read_ahead_in_small_numbers() -> None:
    assert READ_AHEAD // 2 < _held_after_reading(100) <= READ_AHEAD
    assert _held_after_reading(MIB) * MIB <= 2 * READ_AHEAD_BYTES
    # Even if one is larger than all may be, there is always a next one.
    assert _held_after_reading(2 * READ_AHEAD_BYTES) == 4


def test_messages_with_long_headers_are_read_ahead_in_small_numbers() -> None:
    message = ServedMessage(0, "s", 0, bytes(60_000), b"")
    backlog = Backlog(1, at_tail=True)
    for seq in range(1, 300):
        backlog.appended(message._replace(seq=seq), wanted=True)
    assert len(backlog.messages) * 60_000 <= READ_AHEAD_BYTES
    backlog = Backlog(1)
    backlog.dirty = False
    backlog.asked_for_page(10_000)
    backlog.loaded([message._replace(seq=1)], 2, 10_000)
    assert backlog.most * 60_000 <= READ_AHEAD_BYTES


def test_large_messages_at_the_tail_are_not_kept_without_end() -> None:
    backlog = Backlog(1, at_tail=True)
    kept = [backlog.appended(_message(seq, MIB), wanted=True) for seq in range(1, 100)]
    assert kept.count(True) == READ_AHEAD_BYTES // MIB
    assert (backlog.pending, backlog.at_tail) == (99, False)
    # Small ones are read ahead in their usual number again.
    backlog.messages.clear()
    backlog.asked_for_page(99)
    backlog.loaded([_message(seq, 10) for seq in range(5, 69)], 69, 99)
    assert backlog.wants_page
