"""What users do is decided by who they are and how often they acted; followers notice what is
wrong."""

from __future__ import annotations

import asyncio
import gzip
import json
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from holdfast.bench.users.client import FollowingUser
from holdfast.bench.users.histogram import Histogram
from holdfast.bench.users.plan import (
    MAX_EDITS,
    Action,
    Crowd,
    Deed,
    deed_of,
    edit_of,
    read_edits,
    said,
    said_at_ns,
    synthetic_edits,
)
from holdfast.client import Change, ChangeKind, Message
from holdfast.protocol.errors import InvalidArgumentError
from holdfast.protocol.frames import pack


def test_every_user_is_in_one_client_process_and_rooms_span_them() -> None:
    crowds = [Crowd(1000, 100, client, 3) for client in range(3)]
    members = [user for crowd in crowds for user in crowd.members]
    assert sorted(members) == list(range(1000))
    assert all(crowd.rooms == list(range(10)) for crowd in crowds)


def test_members_take_turns_and_each_of_their_actions_comes_once() -> None:
    crowd = Crowd(10, 5, 1, 2)
    actions = [crowd.action(number) for number in range(30)]
    assert [action.user for action in actions[:5]] == [1, 3, 5, 7, 9]
    assert len({(action.user, action.turn) for action in actions}) == 30
    assert [action.turn for action in actions if action.user == 3] == list(range(6))


def test_one_action_in_a_hundred_goes_to_a_room_and_ten_to_a_cursor_at_any_moment() -> None:
    for turn in (0, 77):
        deeds = Counter(deed_of(user, turn) for user in range(1000))
        assert deeds == {Deed.TYPE: 890, Deed.MOVE_CURSOR: 100, Deed.SAY_IN_ROOM: 10}


def test_what_is_said_in_a_room_tells_when_it_was_due() -> None:
    assert said_at_ns(said(123_456_789_012, b"an edit")) == 123_456_789_012


def test_an_edit_follows_from_user_and_turn() -> None:
    edits = [b"%d" % number for number in range(50)]
    typed = [edit_of(edits, Action(7, turn, Deed.TYPE)) for turn in range(50)]
    assert sorted(typed) == sorted(edits)
    assert typed != [edit_of(edits, Action(8, turn, Deed.TYPE)) for turn in range(50)]


def test_edits_come_from_the_traces_of_a_folder_without_the_first_that_sets_a_document_up(
    tmp_path: Path,
) -> None:
    patches = [[[0, 0, "a whole document"]], [[0, 1, ""]], [[5, 0, "é"], [6, 0, "x"]]]
    content = {"txns": [{"patches": each} for each in patches]}
    with gzip.open(tmp_path / "one.json.gz", "wt") as file:
        json.dump(content, file)
    assert read_edits(tmp_path) == [pack(patches[1]), pack(patches[2])]


def test_a_folder_without_traces_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgumentError, match="traces"):
        read_edits(tmp_path)


def test_made_up_edits_are_the_same_each_time_and_mostly_keystrokes() -> None:
    edits = read_edits(None)
    assert len(edits) == MAX_EDITS
    assert edits[:1000] == synthetic_edits(1000)
    sizes = sorted(map(len, edits))
    assert sizes[len(sizes) // 2] < 16 < sizes[-1] < 1024


def message(seq: int) -> Change:
    content = Message(seq, said(1, b"%d" % seq), {}, 0, seq)
    return Change(ChangeKind.SET, seq, 0, message=content)


def follower_of(*changes: Change) -> FollowingUser:
    async def told() -> AsyncIterator[Change]:
        for change in changes:
            yield change

    follower = FollowingUser(1, 2, Histogram())
    asyncio.run(follower.follow(told()))
    return follower


def test_a_follower_of_an_unbroken_room_has_no_complaint() -> None:
    follower = follower_of(message(1), message(2), message(3))
    assert (follower.problem, follower.last_seq, follower.count) == ("", 3, 3)


@pytest.mark.parametrize("seqs", [(1, 3), (1, 2, 2), (2,), (1, 2, 1)])
def test_a_follower_notices_a_gap_a_repetition_and_a_wrong_order(seqs: tuple[int, ...]) -> None:
    assert "after" in follower_of(*map(message, seqs)).problem


def test_a_follower_that_is_reset_complains() -> None:
    assert "reset" in follower_of(message(1), Change(ChangeKind.RESET, 1, 0)).problem


def test_followers_of_the_same_messages_agree_and_of_others_do_not() -> None:
    one, same = follower_of(message(1), message(2)), follower_of(message(1), message(2))
    assert one.checksum == same.checksum != follower_of(message(1)).checksum
