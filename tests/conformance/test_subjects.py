"""Subjects: messages are read, counted, limited and removed by what they are about."""

from __future__ import annotations

import pytest

from holdfast.client import (
    ChangeKind,
    Client,
    DeniedError,
    HeaderBlock,
    InvalidArgumentError,
    LimitExceededError,
    Message,
    Stream,
    SubjectInfo,
    TooLargeError,
    WrongLastSeqError,
)
from holdfast.protocol.limits import MAX_MESSAGE_SUBJECT_BYTES
from tests.conformance.conforming import take
from tests.support.present import present

BLOCK = HeaderBlock(b"NATS/1.0\r\nuser: ada\r\nuser:bob \r\n\r\n")


async def filled(stream: Stream, *subjects: str | None) -> None:
    """Append a message for each subject, whose value is its seq."""
    last_seq = (await stream.head()).last_seq
    await stream.append_many(
        [(b"%d" % seq, None, subject) for seq, subject in enumerate(subjects, last_seq + 1)]
    )


async def seqs(stream: Stream, *subjects: str, **bounds: int) -> list[int]:
    return [message.seq async for message in stream.get_all(subjects=subjects, **bounds)]


async def lasts(stream: Stream, *subjects: str, up_to_seq: int | None = None) -> list[int]:
    return [each.seq async for each in stream.get_lasts(subjects, up_to_seq=up_to_seq)]


async def infos(stream: Stream, wanted: str = ">") -> list[SubjectInfo]:
    return [each async for each in stream.subjects(wanted)]


async def test_a_message_keeps_its_subject_wherever_it_is_read(
    stream: Stream, other: Client
) -> None:
    async with other.stream("s").subscribe(start_seq=1) as changes:
        await stream.append(b"1", subject="a.b")
        await stream.append(b"2")
        pending = await stream.append_async(b"3", subject="a.c", headers=BLOCK)
        await pending
        await stream.set(1, b"one")
        found = [change.message for change in await take(changes, 4)]
    assert [present(each).subject for each in found] == ["a.b", None, "a.c", "a.b"]
    messages = [message async for message in other.stream("s").get_all()]
    assert [message.subject for message in messages] == ["a.b", None, "a.c"]
    read = present(await stream.get(3))
    assert isinstance(read.headers, HeaderBlock)
    assert (read.headers.block, read.headers["user"]) == (BLOCK.block, "ada")
    assert read.headers.all("user") == ["ada", "bob"]


async def test_what_is_no_subject_or_filter_is_refused_before_anything_is_sent(
    stream: Stream,
) -> None:
    for wrong in ("", "a..b", "a b", "a.*", ">"):
        with pytest.raises(InvalidArgumentError):
            await stream.append(b"", subject=wrong)
    with pytest.raises(TooLargeError):
        await stream.append(b"", subject="x" * (MAX_MESSAGE_SUBJECT_BYTES + 1))
    for wrong in ("", "a.>.b", "a b"):
        with pytest.raises(InvalidArgumentError):
            await seqs(stream, wrong)
        with pytest.raises(InvalidArgumentError):
            await stream.get_last(wrong)
        with pytest.raises(InvalidArgumentError):
            await stream.purge(wrong)
    with pytest.raises(InvalidArgumentError):
        await seqs(stream)
    with pytest.raises(InvalidArgumentError):
        await seqs(stream, "a", last=1)
    with pytest.raises(InvalidArgumentError):
        await stream.purge(end_seq=1, keep=1)
    assert (await stream.head()).revision == 0


async def test_filters_select_what_they_match_in_order_of_seq(stream: Stream) -> None:
    await filled(stream, "a.x", "b.x", "a.y", None, "a.x.deep", "A.x", "a.x")
    assert await seqs(stream, "a.x") == [1, 7]
    assert await seqs(stream, "a.*") == [1, 3, 7]
    assert await seqs(stream, "a.>") == [1, 3, 5, 7]
    assert await seqs(stream, "*.x") == [1, 2, 6, 7]
    assert await seqs(stream, "b.x", "a.y", "nobody") == [2, 3]
    assert await seqs(stream, ">") == [1, 2, 3, 5, 6, 7]
    assert await seqs(stream, "a.>", start_seq=2, end_seq=5) == [3, 5]
    assert await seqs(stream, "a.>", start_seq=2, limit=1) == [3]
    assert await seqs(stream, "a.x.*.*") == []
    assert await stream.count("a.>") == 4
    assert await stream.count(["a.x", "b.x"], start_seq=2) == 2
    assert await stream.count() == 6


async def test_the_last_of_a_subject_and_of_each(stream: Stream) -> None:
    await filled(stream, "a.x", "b.x", "a.y", "a.x", None)
    assert present(await stream.get_last("a.x")).value == b"4"
    assert present(await stream.get_last("b.>")).seq == 2
    assert present(await stream.get_last("*.x")).seq == 4
    assert await stream.get_last("c") is None
    assert await lasts(stream, ">") == [2, 3, 4]
    assert await lasts(stream, "a.*") == [3, 4]
    assert await lasts(stream, ">", up_to_seq=2) == [1, 2]
    assert await lasts(stream, ">", up_to_seq=0) == []
    await stream.delete(4)
    assert present(await stream.get_last("a.x")).seq == 1
    assert await lasts(stream, ">") == [1, 2, 3]


async def test_the_last_match_of_a_wildcard_is_found_behind_many_other_messages(
    stream: Stream,
) -> None:
    await filled(stream, "rare.1", "rare.2", *["often"] * 400)
    assert present(await stream.get_last("rare.*")).seq == 2
    assert await stream.get_last("never.*") is None


async def test_subjects_are_listed_with_their_counts_as_long_as_they_have_messages(
    stream: Stream,
) -> None:
    await filled(stream, "b", "a.x", "b", None, "ä", "a.x")
    a, b, umlaut = (
        SubjectInfo("a.x", 2, 2, 6),
        SubjectInfo("b", 2, 1, 3),
        SubjectInfo("ä", 1, 5, 5),
    )
    assert await infos(stream) == [a, b, umlaut]
    assert await infos(stream, "a.*") == [a]
    await stream.delete([2, 5])
    assert await infos(stream) == [SubjectInfo("a.x", 1, 6, 6), b]
    await stream.delete_all(end_seq=3)
    assert await infos(stream) == [SubjectInfo("a.x", 1, 6, 6)]


async def test_a_purge_removes_what_matches_and_followers_see_it(
    stream: Stream, other: Client
) -> None:
    await filled(stream, "a.x", "b", "a.y", "a.x", "b", None)
    async with other.stream("s").subscribe() as changes:
        assert (await stream.purge("a.*", end_seq=3)).count == 2
        assert (await stream.purge("b", keep=1)).count == 1
        assert (await stream.purge("nobody")).count == 0
        assert (await stream.purge("a.x", end_seq=0)).count == 0
        gone: set[int] = set()
        while gone != {1, 2, 3}:
            [change] = await take(changes, 1)
            assert change.kind in (ChangeKind.DELETE, ChangeKind.TRIM)
            gone |= set(change.seqs) | set(range(1, change.end_seq + 1))
    assert [message.seq async for message in stream.get_all()] == [4, 5, 6]
    assert (await stream.purge(keep=1)).count == 2
    assert (await stream.purge()).count == 1
    assert (await stream.append(b"")).seq == 7


async def test_an_append_may_expect_the_last_seq_of_its_subject_or_of_a_filter(
    stream: Stream, other: Client
) -> None:
    ack = await stream.append(b"1", subject="a.x", expected_last_subject_seq=0)
    with pytest.raises(WrongLastSeqError) as wrong:
        await other.stream("s").append(b"2", subject="a.x", expected_last_subject_seq=0)
    assert (wrong.value.expected, wrong.value.actual) == (0, ack.seq)
    await stream.append(b"2", subject="b")
    await stream.append(b"3", subject="a.x", expected_last_subject_seq=1)
    with pytest.raises(WrongLastSeqError) as wrong:
        await stream.append(
            b"4", subject="b", expected_last_subject_seq=2, expected_subject="a.*"
        )
    assert wrong.value.actual == 3
    await stream.append(b"4", subject="b", expected_last_subject_seq=3, expected_subject="a.*")
    with pytest.raises(WrongLastSeqError):
        await stream.append_many([b"5", b"6"], subject="b", expected_last_subject_seq=2)
    acks = await stream.append_many([b"5", b"6"], subject="b", expected_last_subject_seq=4)
    assert [each.seq for each in acks] == [5, 6]


async def test_a_rollup_leaves_one_message_of_its_subject_or_of_the_stream(
    stream: Stream,
) -> None:
    await filled(stream, "a", "b", "a", None)
    assert (await stream.append(b"5", subject="a", rollup="sub")).seq == 5
    assert await seqs(stream, ">") == [2, 5]
    await stream.append(b"6", subject="b", rollup="all")
    assert [message.seq async for message in stream.get_all()] == [6]
    with pytest.raises(InvalidArgumentError):
        await stream.append(b"7", subject="b", rollup="some")  # type: ignore[arg-type]


async def test_a_stream_keeps_so_many_messages_of_each_subject(stream: Stream) -> None:
    await filled(stream, "a", "b", "a", "a", None, None)
    await stream.configure(max_messages_per_subject=2)
    assert await seqs(stream, ">") == [2, 3, 4]
    await stream.append(b"7", subject="a")
    assert await seqs(stream, "a") == [4, 7]
    assert (await stream.head()).count == 5, "those without a subject are not counted"
    await stream.configure(discard="new", discard_new_per_subject=True)
    with pytest.raises(LimitExceededError) as full:
        await stream.append(b"8", subject="a")
    assert full.value.what == "max_messages_per_subject"
    assert (await stream.append(b"8", subject="b")).seq == 8


async def test_a_transaction_appends_with_subjects(stream: Stream) -> None:
    await filled(stream, "a", "b")
    async with stream.transaction() as t:
        t.append(b"3", subject="a", expected_last_subject_seq=1)
        t.append(b"4", subject="c", headers=BLOCK)
        t.delete(2)
    assert await seqs(stream, ">") == [1, 3, 4]
    with pytest.raises(WrongLastSeqError):
        async with stream.transaction() as t:
            t.append(b"5", subject="a", expected_last_subject_seq=1)
            t.delete(1)
    assert await seqs(stream, ">") == [1, 3, 4]


async def test_a_follower_may_leave_out_other_subjects(stream: Stream, other: Client) -> None:
    await filled(stream, "a.1", "b.1", None)
    async with other.stream("s").subscribe(start_seq=1, subjects="a.*") as changes:
        await filled(stream, "b.2", "a.2", None, "a.3")
        await stream.delete(2)
        found = await take(changes, 4)
        position = present(changes.revision)
    messages: list[Message] = [present(change.message) for change in found[:3]]
    assert [message.subject for message in messages] == ["a.1", "a.2", "a.3"]
    assert (found[3].kind, found[3].seqs) == (ChangeKind.DELETE, (2,))
    await filled(stream, "b.3", "a.4")
    resumed = other.stream("s").subscribe(start_revision=position, subjects=["a.4", "x"])
    async with resumed as changes:
        [change] = await take(changes, 1)
    assert present(change.message).subject == "a.4"


async def test_large_values_have_subjects_too(stream: Stream) -> None:
    value = b"large " * 250_000
    ack = await stream.append(value, subject="a", headers=BLOCK)
    await stream.append(b"small", subject="a")
    await stream.delete(2)
    found = present(await stream.get_last("a"))
    assert (found.seq, found.subject, found.value) == (ack.seq, "a", value)
    assert found.headers == BLOCK
    [listed] = [message async for message in stream.get_all(subjects="a")]
    assert present(listed.large).size_bytes == len(value)


async def test_what_is_denied_says_which_setting_denies_it(stream: Stream) -> None:
    await filled(stream, "a", "b")
    await stream.configure(deny_purge=True, deny_delete=True)
    roll_up = stream.append(b"", subject="a", rollup="sub")
    for denied in (stream.purge("a"), stream.delete(1), roll_up):
        with pytest.raises(DeniedError):
            await denied
    await stream.configure(sealed=True)
    with pytest.raises(DeniedError) as sealed:
        await stream.append(b"")
    assert sealed.value.setting == "sealed"
    assert await seqs(stream, ">") == [1, 2]
