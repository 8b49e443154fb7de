"""The bound on what all followers of a client hold."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.client.following.buffers import Buffers, Share, size_of
from holdfast.client.following.merge import Broadcast, Cursor, Merge
from holdfast.protocol.changes import CHANGE_SET_MESSAGE
from holdfast.protocol.frames import ChangeBatch
from holdfast.protocol.header_block import HeaderBlock
from holdfast.protocol.limits import PAGE_BYTES, PAGE_ROWS
from holdfast.protocol.messages import Change, ChangeKind, Entry, Message
from tests.support.effort import examples
from tests.support.present import present

LIMIT = 80_000


class Holder:
    """A follower that counts how often it was shed."""

    def __init__(self, buffers: Buffers) -> None:
        self.shed_count = 0
        self.share: Share = buffers.share(self.shed)

    def shed(self) -> None:
        self.shed_count += 1
        self.share.clear()


def test_room_is_taken_from_who_has_gone_longest_without_being_emptied() -> None:
    buffers = Buffers(1000)
    slow, emptied, quick = (Holder(buffers) for _ in range(3))
    emptied.share.add(300)
    slow.share.add(400)
    emptied.share.remove(300)
    emptied.share.add(300)
    quick.share.add(400)
    assert [each.shed_count for each in (slow, emptied, quick)] == [1, 0, 0]
    assert buffers.used_bytes == 700


def test_one_follower_has_an_eighth_unless_it_holds_nothing() -> None:
    share = Holder(Buffers(1000)).share
    assert share.fits(5000)
    share.add(100)
    assert share.fits(25)
    assert not share.fits(26)


def test_pages_are_whole_for_a_few_and_shrink_to_a_row_for_many() -> None:
    buffers = Buffers(8 * PAGE_BYTES)
    assert buffers.page_rows(100) is None
    for _ in range(7):
        Holder(buffers).share.add(1)
    rows = present(buffers.page_rows(1000))
    assert 1 < rows <= PAGE_ROWS
    assert buffers.page_rows(10 * PAGE_BYTES) == 1


def test_sizes_count_values_keys_headers_and_what_was_deleted() -> None:
    def of_message(value: bytes, **headers: str) -> int:
        message = Message(1, value, headers, 0, 1)
        return size_of(Change(ChangeKind.SET, 1, 0, message=message))

    assert of_message(b"x" * 1000) == of_message(b"") + 1000
    assert of_message(b"", a="b" * 100) > of_message(b"") + 100
    block = Message(1, b"", HeaderBlock(b"not even a block" * 10), 0, 1)
    assert size_of(Change(ChangeKind.SET, 1, 0, message=block)) == of_message(b"") + 160
    entry = Change(ChangeKind.SET, 1, 0, entry=Entry("k" * 500, b"", {}, 1, 0))
    assert size_of(entry) > 500
    deleted = Change(ChangeKind.DELETE, 1, 0, seqs=tuple(range(100)))
    assert size_of(deleted) > 100 * 8


@settings(max_examples=examples(40), deadline=None)
@given(data=st.data())
def test_any_number_of_slow_followers_stay_within_the_bound_and_lose_nothing(
    data: st.DataObject,
) -> None:
    buffers = Buffers(LIMIT)
    count = data.draw(st.integers(1, 12), "followers")
    merges: list[Merge] = []
    for _ in range(count):
        merge = Merge(limit=50)
        merge._share = buffers.share(merge.shed)
        merge.start(Cursor(0, 0))
        merge.page([[], 0, 0, 0, False], Cursor(0, 0))
        merges.append(merge)
    heads, got = [0] * count, [[] for _ in range(count)]

    def append(which: int, number: int) -> Broadcast:
        previous = heads[which]
        heads[which] += number
        changes = [[CHANGE_SET_MESSAGE, previous + i, b"v" * 600] for i in range(1, number + 1)]
        return Broadcast(ChangeBatch(1, previous, 0, changes))

    def consume(which: int, number: int) -> None:
        merge = merges[which]
        for _ in range(number):
            if merge.ready:
                got[which].append(merge.take().revision)
            elif merge.behind:
                asked = present(merge.cursor)
                end = min(heads[which], asked.revision + 5)
                rows = [
                    [r, 0, [CHANGE_SET_MESSAGE, r, b"v" * 600]]
                    for r in range(asked.revision + 1, end + 1)
                ]
                merge.page([rows, end, end, heads[which], False], asked)

    for _ in range(data.draw(st.integers(1, 60), "steps")):
        which = data.draw(st.integers(0, count - 1), "which")
        if data.draw(st.booleans(), "writes"):
            merges[which].broadcast(append(which, data.draw(st.integers(1, 12), "changes")))
        else:
            consume(which, data.draw(st.integers(1, 10), "consumed"))
        assert buffers.used_bytes <= LIMIT
        assert buffers.used_bytes == sum(merge._share.held_bytes for merge in merges)
    for which in range(count):
        merges[which].head(heads[which])
        consume(which, 3 * heads[which] + 10)
        assert got[which] == list(range(1, heads[which] + 1))
    assert buffers.used_bytes == 0
