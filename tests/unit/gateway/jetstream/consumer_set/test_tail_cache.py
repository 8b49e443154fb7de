"""The last messages of a stream, shared by its consumers."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from holdfast.client.handles.serving_wire import ServedMessage
from holdfast.gateway.jetstream.consumer_set.tail_cache import MAX_BYTES, MAX_MESSAGES, TailCache


def message(seq: int, size: int = 1) -> ServedMessage:
    return ServedMessage(seq, f"s.{seq % 3}", 0, b"", bytes(size))


def seqs(cache: TailCache, start_seq: int, limit: int = 10**6) -> list[int] | None:
    page = cache.page(None, start_seq, limit, 1 << 40)
    return None if page is None else [each.seq for each in page.messages]


def test_a_page_is_there_from_where_the_cache_begins() -> None:
    cache = TailCache(10)
    cache.append([message(seq) for seq in range(11, 16)])
    assert seqs(cache, 10) is None
    assert seqs(cache, 11) == [11, 12, 13, 14, 15]
    assert seqs(cache, 16) == []
    page = cache.page(lambda subject: subject == "s.0", 11, 1, 1 << 20)
    assert page is not None
    assert ([each.seq for each in page.messages], page.next_seq) == ([12], 15)


def test_the_oldest_are_forgotten_beyond_the_bounds() -> None:
    cache = TailCache(0)
    for seq in range(1, 3 * MAX_MESSAGES):
        cache.append([message(seq)])
    assert seqs(cache, 2 * MAX_MESSAGES - 1) is None
    kept = seqs(cache, 2 * MAX_MESSAGES)
    assert kept is not None and len(kept) == MAX_MESSAGES
    cache.append([message(3 * MAX_MESSAGES, MAX_BYTES // 2)])
    cache.append([message(3 * MAX_MESSAGES + 1, MAX_BYTES // 2)])
    assert seqs(cache, cache.from_seq) == [3 * MAX_MESSAGES + 1]
    # One that is larger than the cache is not kept, and nothing else is then.
    cache.append([message(3 * MAX_MESSAGES + 2, 2 * MAX_BYTES)])
    assert seqs(cache, cache.from_seq) == []
    assert cache.from_seq == 3 * MAX_MESSAGES + 3


def test_large_messages_that_were_forgotten_are_not_held() -> None:
    cache = TailCache(0)
    for seq in range(1, 100):
        cache.append([message(seq, MAX_BYTES // 2 - 1000)])
        assert sum(len(each.value) for each in cache._messages) <= 3 * MAX_BYTES
        assert seqs(cache, cache.from_seq) == list(range(max(1, seq - 1), seq + 1))
    cache.removed([98])
    cache.append([message(100, MAX_BYTES // 2 - 1000)])
    assert seqs(cache, cache.from_seq) == [99, 100]


@given(st.lists(st.tuples(st.sampled_from(("append", "remove", "trim")), st.integers(1, 8))))
def test_it_has_what_the_stream_has(steps: list[tuple[str, int]]) -> None:
    cache = TailCache(0)
    expected: dict[int, ServedMessage] = {}
    last_seq = 0
    for kind, number in steps:
        if kind == "append":
            new = [message(last_seq + 1 + each) for each in range(number)]
            last_seq += number
            expected.update((each.seq, each) for each in new)
            cache.append(new)
        elif kind == "remove":
            gone = sorted(expected)[number - 1 : number + 1]
            for seq in gone:
                del expected[seq]
            if gone:
                cache.removed(gone)
        else:
            first_seq = min(last_seq, number) + 1
            expected = {seq: each for seq, each in expected.items() if seq >= first_seq}
            cache.trimmed(first_seq)
    assert seqs(cache, 1) == sorted(expected)
    assert all(cache.get(seq) == expected.get(seq) for seq in range(last_seq + 2))
