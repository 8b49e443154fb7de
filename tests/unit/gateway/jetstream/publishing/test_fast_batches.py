"""Fast batches, event by event: what is stored, what publishers are told, how batches end."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from holdfast.client.handles.serving_wire import Appended, NewMessage
from holdfast.gateway.jetstream.api import errors
from holdfast.gateway.jetstream.api.headers import build
from holdfast.gateway.jetstream.api.replies import PubAcks
from holdfast.gateway.jetstream.api.stream_config import ApiStreamConfig
from holdfast.gateway.jetstream.publishing.fast_batches import (
    FAST_SILENCE_SECONDS,
    Effect,
    FastBatch,
    FastBatches,
    FastMessage,
    Refuse,
    Send,
    SendSoon,
    Settle,
    Take,
    Tell,
)
from holdfast.gateway.jetstream.publishing.publish_load import PublishLoad
from holdfast.gateway.jetstream.publishing.publish_rules import PublishRules
from holdfast.gateway.jetstream.wire.ports import PortMessage
from holdfast.protocol.limits import MAX_FAST_BATCHES, MAX_FAST_BATCHES_TOTAL, MAX_VALUE_BYTES

START, APPEND, COMMIT, END, PING = range(5)
_CONFIG = {
    "name": "S",
    "subjects": ["s.>"],
    "allow_batched": True,
    "allow_rollup_hdrs": True,
    "max_msg_size": -1,
}


def _rules(**more: object) -> PublishRules:
    return PublishRules(ApiStreamConfig.from_json({**_CONFIG, **more}), lambda: 0)


@pytest.fixture(autouse=True, params=[True, False], ids=["short_way", "long_way"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Messages like most take a short way, or all the long one: it makes no difference."""
    monkeypatch.setattr(_World, "takes_short_way", request.param)


class _World:
    """A stream whose owner answers when it is told to."""

    takes_short_way = True

    def __init__(self, **config: object) -> None:
        self.rules = _rules(**config)
        self.load = PublishLoad()
        self.batches = FastBatches(PubAcks("S"), self.load)
        self.now = 0.0
        self.told: list[dict[str, Any]] = []
        self.unanswered = 0
        self.stored: list[str] = []
        self._asked: list[FastBatch] = []
        self.sent: list[Send] = []

    def publish(
        self,
        sequence: int,
        operation: int = APPEND,
        *,
        batch: str = "b",
        flow: object = 10,
        gap: str = "fail",
        payload: bytes = b"v",
        **fields: str,
    ) -> None:
        headers = {name.replace("_", "-"): value for name, value in fields.items()}
        reply = f"_INBOX.x.{batch}.{flow}.{gap}.{sequence}.{operation}.$FI"
        block = build(headers) if headers else b""
        message = PortMessage(f"s.{sequence}", reply, block, payload)
        if self.takes_short_way:
            taken = self.batches.append_next(message, self.rules, self.now)
            if taken is not None:
                self.unanswered += 1
                if not taken.is_asked and not taken.group:
                    taken.is_asked = True
                    self._asked.append(taken)
                return
        self._carry_out(self.batches.receive(message, self.rules, self.now))

    def ask(self) -> None:
        """The next frame is made."""
        asked, self._asked = self._asked, []
        for batch in asked:
            self._carry_out(self.batches.send(batch))

    def answer(self, *refused: str, duplicates: tuple[str, ...] = ()) -> list[list[str]]:
        """The owner answers all that comes, and refuses groups with one of these subjects. Return
        the groups."""
        groups = []
        self.ask()
        while self.sent:
            batch, group = self.sent.pop(0)
            appends = [_append(each) for each in group]
            subjects = [append.subject for append in appends]
            groups.append(subjects)
            if set(subjects) & set(refused):
                error = errors.stream_store_failed("maximum bytes exceeded")
                self._carry_out(self.batches.refused(batch, error))
            else:
                results = []
                for subject in subjects:
                    duplicate = subject in duplicates
                    if not duplicate:
                        self.stored.append(subject)
                    results.append(Appended(len(self.stored), 1, 5, duplicate))
                self._carry_out(self.batches.stored(batch, results))
            self.ask()
        return groups

    def expire(self) -> None:
        self._carry_out(self.batches.expire(self.now))

    def clear(self) -> None:
        self._carry_out(self.batches.clear())

    def lose(self) -> None:
        """Nobody can say what became of what was sent."""
        self.ask()
        batch, _ = self.sent.pop(0)
        self._carry_out(self.batches.lost(batch))

    def _carry_out(self, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case Tell(_, body):
                    self.told.append(json.loads(body))
                case Refuse(_, error):
                    self.told.append({"error": error.err_code})
                case Take():
                    self.unanswered += 1
                case Settle(count, size_bytes):
                    self.unanswered -= count
                    assert bool(count) == bool(size_bytes)
                case SendSoon(batch):
                    self._asked.append(batch)
                case Send():
                    self.sent.append(effect)

    def take_told(self) -> list[dict[str, Any]]:
        told, self.told = self.told, []
        return told


def _append(message: FastMessage) -> NewMessage:
    assert isinstance(message.append, NewMessage)
    return message.append


def _ack(sequence: int, messages: int) -> dict[str, Any]:
    return {"type": "ack", "seq": sequence, "msgs": messages}


def _pub_ack(seq: int, count: int, batch: str = "b") -> dict[str, Any]:
    return {"stream": "S", "seq": seq, "batch": batch, "count": count}


def _begin(world: _World, count: int = 1, **how: Any) -> None:
    world.publish(1, START, **how)
    for sequence in range(2, count + 1):
        world.publish(sequence, **how)


# What is wrong from the start


@pytest.mark.parametrize(
    ("reply", "code"),
    [
        (".$FI", 10206),
        ("x.$FI", 10206),
        ("b.10.ok.1.0.$FI", 10206),
        ("i.b.10.maybe.1.0.$FI", 10206),
        ("i.b.10.ok.0.0.$FI", 10206),
        ("i.b.10.ok.one.0.$FI", 10206),
        ("i.b.10.ok.18446744073709551615.1.$FI", 10206),
        ("i.b.10.ok.1.5.$FI", 10206),
        ("i.b.10.ok.1.-1.$FI", 10206),
        ("i.b.10.ok.1..$FI", 10206),
        ("i.b.10.ok.2.0.$FI", 10206),
        ("i.b.10.ok.1.1.$FI", 10206),
        ("i.b.10.ok.1.3.$FI", 10206),
        ("i.b.10.ok.²1.0.$FI", 10206),
        (f"i.{'x' * 65}.10.ok.1.0.$FI", 10207),
        ("i.b.10.ok.2.1.$FI", 10208),
        ("i.b.10.ok.2.2.$FI", 10208),
        ("i.b.10.ok.2.4.$FI", 10208),
        ("i.b.10.ok.1.4.$FI", 10208),
    ],
)
def test_a_reply_subject_that_says_nothing_right_is_refused(reply: str, code: int) -> None:
    batches, load = FastBatches(PubAcks("S"), PublishLoad()), PublishLoad()
    message = PortMessage("s.1", reply, b"", b"v")
    [refused] = batches.receive(message, _rules(), 0.0)
    assert isinstance(refused, Refuse) and refused.error.err_code == code
    assert batches.wake_at == float("inf") and not load.fast_batches


@pytest.mark.parametrize(
    ("config", "code"),
    [({"allow_batched": False}, 10205), ({"sealed": True}, 10109), ({"max_msg_size": 0}, 10054)],
)
def test_what_the_stream_does_not_allow_is_refused(config: dict[str, Any], code: int) -> None:
    world = _World(**config)
    world.publish(1, START)
    assert world.take_told() == [{"error": code}]
    assert not world.unanswered


def test_open_batches_are_bounded_for_a_stream_and_a_gateway() -> None:
    world = _World()
    for number in range(MAX_FAST_BATCHES):
        world.publish(1, START, batch=f"b{number}")
    world.take_told()
    world.publish(1, START, batch="more")
    assert world.take_told() == [{"error": 10211}]
    world.clear()
    assert not world.load.fast_batches
    world.load.fast_batches = MAX_FAST_BATCHES_TOTAL
    world.publish(1, START)
    assert world.take_told() == [{"error": 10211}]


def test_a_level_that_the_gateway_lacks_ends_a_batch_and_another_is_not_stored() -> None:
    world = _World()
    _begin(world)
    world.publish(2, Nats_Required_Api_Level="1", X="y")
    world.ask()
    [(_, group)] = world.sent
    assert _append(group[1]).headers == build({"X": "y"})
    world.publish(3, Nats_Required_Api_Level="99")
    assert world.take_told()[-1] == {"error": 10185}
    world.publish(4)
    assert world.take_told() == [{"error": 10208}]
    world.answer()
    assert world.unanswered == 0


# How it goes


def test_a_batch_is_told_of_its_flow_and_gets_one_pub_ack() -> None:
    world = _World()
    _begin(world, 9, flow=3)
    assert world.take_told() == [_ack(0, 3)]
    assert world.answer() == [[f"s.{number}" for number in range(1, 10)]]
    # The last of several that are due tells of all.
    assert world.take_told() == [_ack(9, 3)]
    world.publish(10, COMMIT, flow=3)
    assert world.take_told() == []
    world.answer()
    assert world.take_told() == [_pub_ack(10, 10)]
    assert not world.unanswered and not world.load.fast_batches
    # It is over.
    world.publish(11)
    assert world.take_told() == [{"error": 10208}]


def test_nothing_is_told_of_what_is_not_stored_yet() -> None:
    world = _World()
    _begin(world, 3, flow=1)
    world.take_told()
    world.ask()
    world.publish(4, COMMIT, flow=1)
    assert world.take_told() == []
    assert world.answer() == [["s.1", "s.2", "s.3"], ["s.4"]]
    assert world.take_told() == [_ack(3, 1), _pub_ack(4, 4)]


def test_a_batch_of_one_message_gets_only_its_pub_ack() -> None:
    world = _World()
    world.publish(1, COMMIT)
    world.answer()
    assert world.take_told() == [_pub_ack(1, 1)]


@pytest.mark.parametrize("is_answered", [True, False])
def test_a_batch_can_end_without_a_message(is_answered: bool) -> None:
    world = _World()
    _begin(world, 2)
    if is_answered:
        world.answer()
    world.publish(3, END)
    if not is_answered:
        # Too late.
        world.publish(4)
    world.answer()
    assert world.take_told() == [_ack(0, 10), _pub_ack(2, 2)]
    assert world.stored == ["s.1", "s.2"]


def test_one_of_several_batches_begins_slowly_and_they_share_what_is_unacknowledged() -> None:
    world = _World()
    _begin(world, flow=70_000)
    assert world.take_told() == [_ack(0, 500)]
    world.publish(1, START, batch="c", flow="-")
    assert world.take_told() == [_ack(0, 1)]
    world.answer()
    assert world.take_told() == [_ack(1, 2)]
    for sequence in range(2, 501):
        world.publish(sequence, flow=70_000)
    world.answer()
    assert world.take_told() == [_ack(500, 250)]
    world.publish(2, END, batch="c", flow="-")
    assert world.take_told() == [_pub_ack(2, 1, "c")]
    for sequence in range(501, 751):
        world.publish(sequence, flow=70_000)
    world.answer()
    assert world.take_told() == [_ack(750, 500)]


def test_a_ping_tells_the_flow_again_and_keeps_a_batch() -> None:
    world = _World()
    _begin(world, 10)
    world.answer()
    world.take_told()
    world.now = FAST_SILENCE_SECONDS - 1
    world.publish(10, PING)
    assert world.take_told() == [_ack(10, 10)]
    world.now += FAST_SILENCE_SECONDS - 1
    world.expire()
    world.publish(11, END)
    assert world.take_told() == [_pub_ack(10, 10)]


def test_a_silent_batch_is_dropped_but_not_before_its_answer() -> None:
    world = _World()
    _begin(world)
    world.ask()
    world.now = world.batches.wake_at
    world.expire()
    assert world.load.fast_batches == 1
    world.answer()
    world.now = world.batches.wake_at
    world.expire()
    assert not world.load.fast_batches and not world.unanswered
    world.publish(2)
    assert world.take_told()[-1] == {"error": 10208}


def test_only_plain_messages_take_the_short_way() -> None:
    world = _World()
    _begin(world)

    def is_short(reply: str, headers: dict[str, str] | None = None, payload: bytes = b"v") -> bool:
        message = PortMessage("s.x", reply, build(headers) if headers else b"", payload)
        batch = world.batches.append_next(message, world.rules, 0.0)
        return batch is not None

    head = "_INBOX.x.b.10.fail"
    assert not is_short(f"{head}.2.2.$FI") and not is_short(f"{head}.3.1.$FI")
    assert not is_short(f"{head}.02.1.$FI") and not is_short(f"{head}.2.4.$FI")
    assert not is_short("_INBOX.y.b.10.fail.2.1.$FI") and not is_short(".$FI")
    assert not is_short(f"{head}.2.1.$FI", {"Nats-Msg-Id": "a"})
    assert not is_short(f"{head}.2.1.$FI", {"X": "y" * 70_000})
    assert not is_short(f"{head}.2.1.$FI", payload=bytes(MAX_VALUE_BYTES + 1))
    world.rules = _rules(max_msg_size=2)
    assert not is_short(f"{head}.2.1.$FI", payload=b"vvv")
    assert is_short(f"{head}.2.1.$FI") and is_short(f"{head}.3.1.$FI", None, b"v")
    world.rules = _rules()
    assert is_short(f"{head}.4.1.$FI", {"X": "y"})
    world.publish(5, END)
    assert not is_short(f"{head}.5.1.$FI")


# What is lost


def test_a_gap_ends_a_batch_that_may_have_none_behind_what_came_before() -> None:
    world = _World()
    _begin(world, 2)
    world.take_told()
    world.publish(4)
    world.publish(5)
    assert world.take_told() == [{"type": "gap", "last_seq": 3, "seq": 4}]
    world.answer()
    assert world.take_told() == [_pub_ack(2, 2)]
    assert world.stored == ["s.1", "s.2"]


def test_a_batch_goes_on_behind_a_gap_that_it_may_have() -> None:
    world = _World()
    _begin(world, 2, gap="ok", flow=5)
    world.take_told()
    world.publish(5, gap="ok")
    assert world.take_told() == [{"type": "gap", "last_seq": 3, "seq": 5}]
    world.answer()
    assert world.take_told() == [_ack(5, 5)]
    world.publish(7, PING, gap="ok")
    assert world.take_told() == [{"type": "gap", "last_seq": 6, "seq": 8}, _ack(5, 5)]
    world.publish(12, PING, gap="ok")
    assert world.take_told() == [{"type": "gap", "last_seq": 8, "seq": 13}, _ack(10, 5)]
    world.publish(13, COMMIT, gap="ok")
    world.answer()
    assert world.take_told() == [_pub_ack(4, 13)]
    assert world.stored == ["s.1", "s.2", "s.5", "s.13"]


def test_a_ping_finds_what_was_lost_at_the_end() -> None:
    world = _World()
    _begin(world)
    world.answer()
    world.take_told()
    world.publish(3, PING)
    assert world.take_told() == [{"type": "gap", "last_seq": 2, "seq": 4}, _pub_ack(1, 1)]


@pytest.mark.parametrize("gap", ["ok", "fail"])
def test_a_message_that_comes_twice_ends_a_batch(gap: str) -> None:
    world = _World()
    _begin(world, 3, gap=gap)
    world.publish(2, gap=gap)
    world.answer()
    gap_told = {"type": "gap", "last_seq": 4, "seq": 2}
    assert world.take_told() == [_ack(0, 10), gap_told, _pub_ack(3, 3)]


def test_a_batch_of_which_nobody_knows_what_was_stored_is_unknown() -> None:
    world = _World()
    _begin(world, 3)
    world.take_told()
    world.lose()
    assert world.take_told() == [] and not world.unanswered
    world.publish(4)
    assert world.take_told() == [{"error": 10208}]


def test_an_answer_to_a_batch_that_was_dropped_only_settles() -> None:
    world = _World()
    _begin(world, 2)
    world.ask()
    world.publish(3)
    world.take_told()
    world.clear()
    assert world.unanswered == 2
    world.answer()
    assert world.take_told() == [] and not world.unanswered


# What is refused


def test_the_first_message_is_refused_as_if_it_were_alone() -> None:
    world = _World()
    _begin(world, 3)
    world.take_told()
    groups = world.answer("s.1")
    assert groups == [["s.1", "s.2", "s.3"], ["s.1"]]
    assert world.take_told() == [{"error": 10077}]
    assert not world.stored and not world.unanswered and not world.load.fast_batches


def test_nothing_behind_a_refused_message_is_stored_if_gaps_fail() -> None:
    world = _World()
    _begin(world, 9)
    world.take_told()
    world.answer("s.6", "s.8")
    assert world.stored == [f"s.{number}" for number in range(1, 6)]
    error, end = world.take_told()
    assert (error["type"], error["seq"], error["error"]["err_code"]) == ("err", 6, 10077)
    assert end == _pub_ack(5, 5)
    assert not world.unanswered and not world.load.fast_batches


def test_only_refused_messages_are_left_out_if_gaps_are_allowed() -> None:
    world = _World()
    _begin(world, 9, gap="ok", flow=3)
    world.take_told()
    world.answer("s.1", "s.6", "s.8", "s.9")
    assert world.stored == ["s.2", "s.3", "s.4", "s.5", "s.7"]
    told = world.take_told()
    assert [each["seq"] for each in told if each["type"] == "err"] == [1, 6, 8, 9]
    assert [each["seq"] for each in told if each["type"] == "ack"][-1] == 9
    world.publish(10, COMMIT, gap="ok")
    world.answer("s.10")
    error, end = world.take_told()
    assert error["seq"] == 10 and end == _pub_ack(5, 9)
    assert not world.unanswered


def test_a_message_that_can_be_refused_at_once_is_told_of_in_its_turn() -> None:
    world = _World()
    _begin(world, 2)
    world.publish(3, Nats_Expected_Stream="T")
    world.publish(4)
    assert world.take_told() == [_ack(0, 10)]
    assert world.answer() == [["s.1", "s.2"]]
    error, end = world.take_told()
    assert (error["seq"], error["error"]["err_code"]) == (3, 10060)
    assert end == _pub_ack(2, 2)
    assert not world.unanswered


def test_what_looks_at_the_messages_before_goes_alone() -> None:
    world = _World()
    _begin(world)
    world.publish(2, Nats_Msg_Id="a")
    world.publish(3, Nats_Expected_Last_Sequence="2")
    world.publish(4, Nats_Rollup="sub")
    world.publish(5)
    world.publish(6, payload=b"v" * (MAX_VALUE_BYTES + 1))
    world.publish(7)
    groups = [["s.1", "s.2"], ["s.3"], ["s.4"], ["s.5"], ["s.6"], ["s.7"]]
    assert world.answer() == groups


# What is there already


def test_a_duplicate_counts_as_here_and_has_no_seq() -> None:
    world = _World()
    _begin(world, 2)
    world.publish(3, COMMIT, Nats_Msg_Id="a")
    world.answer(duplicates=("s.3",))
    assert world.take_told() == [_ack(0, 10), _pub_ack(2, 3)]


def test_a_batch_that_is_one_duplicate_is_answered_like_a_publish() -> None:
    world = _World()
    world.publish(1, COMMIT, Nats_Msg_Id="a")
    world.answer(duplicates=("s.1",))
    assert world.take_told() == [{**_pub_ack(0, 1), "duplicate": True}]
    assert not world.load.fast_batches


@pytest.mark.parametrize("seed", range(40))
def test_whatever_happens_all_is_settled_and_acks_tell_of_what_is_stored(seed: int) -> None:
    dice = random.Random(seed)
    world = _World()
    gap = dice.choice(["ok", "fail"])
    refused = {f"s.{dice.randrange(1, 60)}" for _ in range(dice.randrange(4))}
    sequence, lost = 0, set()
    for _ in range(60):
        sequence += 1
        if sequence > 1 and dice.random() < 0.05:
            lost.add(sequence)
            continue
        world.publish(sequence, START if sequence == 1 else APPEND, gap=gap, flow=5)
        if dice.random() < 0.2:
            world.answer(*refused)
        for each in world.take_told():
            if each.get("type") == "ack":
                known = {f"s.{number}" for number in range(1, each["seq"] + 1)}
                missing = known - set(world.stored)
                allowed = refused | {f"s.{number}" for number in lost}
                assert missing <= allowed if gap == "ok" else not missing
    world.publish(sequence + 1, END, gap=gap)
    world.answer(*refused)
    assert world.unanswered == 0 and not world.load.fast_batches
    sequences = [int(subject[2:]) for subject in world.stored]
    assert sequences == sorted(sequences)
    if gap == "fail":
        assert sequences == list(range(1, len(sequences) + 1))
    assert not set(world.stored) & refused
