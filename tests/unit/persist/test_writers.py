"""Exactly once: whatever the network does to a writer's groups, each is applied once or never."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.persist.store.writers import Admission, WriterState
from holdfast.protocol.limits import MAX_WRITER_OUTCOME_BYTES, MAX_WRITER_OUTCOMES
from tests.support.effort import examples


def answer(counter: int) -> bytes:
    return f"answer {counter}".encode()


def writer_after(*groups: tuple[int, int]) -> WriterState:
    """Return a writer whose `(counter, first_unacked)` groups were all applied."""
    writer = WriterState()
    for counter, first_unacked in groups:
        assert writer.judge(counter, first_unacked) == (Admission.NEW, None)
        writer.record(counter, first_unacked, answer(counter))
    return writer


def test_groups_are_new_in_their_order() -> None:
    writer = writer_after((1, 1), (2, 1), (3, 2))
    assert writer.last == 3


def test_a_retry_is_answered_with_the_first_answer() -> None:
    writer = writer_after((1, 1), (2, 1))
    for counter in (1, 2, 1):
        assert writer.judge(counter, 1) == (Admission.KNOWN, answer(counter))


def test_a_group_before_its_predecessors_is_a_gap() -> None:
    assert WriterState().judge(2, 1) == (Admission.GAP, None)
    assert writer_after((1, 1)).judge(3, 2) == (Admission.GAP, None)


def test_a_group_whose_predecessors_were_given_up_is_new() -> None:
    assert WriterState().judge(5, 5) == (Admission.NEW, None)
    assert writer_after((1, 1)).judge(5, 5) == (Admission.NEW, None)


def test_a_group_that_was_given_up_is_stale_when_it_arrives_late() -> None:
    writer = writer_after((1, 1), (5, 5))
    for counter in (1, 2, 4):
        assert writer.judge(counter, 1) == (Admission.STALE, None)
        assert writer.judge(counter, counter) == (Admission.STALE, None)


def test_outcomes_below_the_floor_are_forgotten_but_never_the_last() -> None:
    writer = writer_after((1, 1), (2, 1), (3, 3))
    assert set(writer.outcomes) == {3}
    assert writer.judge(3, 3) == (Admission.KNOWN, answer(3))


def test_a_group_that_was_taken_back_is_new_again() -> None:
    writer = writer_after((1, 1), (2, 1), (3, 1))
    writer.forget(3)
    writer.forget(2)
    assert writer.judge(2, 1) == (Admission.NEW, None)
    assert writer.judge(3, 1) == (Admission.GAP, None)
    assert writer.judge(1, 1) == (Admission.KNOWN, answer(1))


def test_a_jump_that_was_taken_back_can_be_made_again() -> None:
    writer = writer_after((1, 1), (7, 7))
    writer.forget(7)
    assert writer.judge(7, 7) == (Admission.NEW, None)
    for given_up in (2, 6):
        assert writer.judge(given_up, 2)[0] is Admission.STALE


def test_a_writer_whose_floor_never_rises_is_refused_until_it_does() -> None:
    writer = writer_after(*[(counter, 1) for counter in range(1, MAX_WRITER_OUTCOMES + 1)])
    full = MAX_WRITER_OUTCOMES + 1
    assert writer.judge(full, 1) == (Admission.FULL, None)
    assert writer.judge(full, 0) == (Admission.FULL, None)
    assert writer.judge(1, 1) == (Admission.KNOWN, answer(1))
    assert writer.judge(full, 2) == (Admission.NEW, None)
    writer.record(full, 2, answer(full))
    assert writer.judge(full + 1, 2) == (Admission.FULL, None)
    assert writer.judge(full + 1, full) == (Admission.NEW, None)
    assert len(writer.outcomes) == MAX_WRITER_OUTCOMES


def test_large_outcomes_count_by_their_size() -> None:
    writer = WriterState()
    large = bytes(MAX_WRITER_OUTCOME_BYTES // 4)
    for counter in range(1, 6):
        assert writer.judge(counter, 1) == (Admission.NEW, None)
        writer.record(counter, 1, large)
    assert writer.judge(6, 1) == (Admission.FULL, None)
    assert writer.judge(6, 3) == (Admission.NEW, None)
    assert sum(map(len, writer.outcomes.values())) == writer.size_bytes == 3 * len(large)


@pytest.mark.parametrize("rows", [[], [(4, b"x")], [(3, b"x"), (4, b"y")]])
def test_a_writer_comes_back_from_its_rows(rows: list[tuple[int, bytes]]) -> None:
    writer = WriterState.from_rows(rows)
    assert writer.last == max((counter for counter, _ in rows), default=0)
    for counter, outcome in rows:
        assert writer.judge(counter, 1) == (Admission.KNOWN, outcome)


@dataclass
class Client:
    """A writer as clients are: a few groups in flight, sent again unchanged, some given up."""

    next_counter: int = 1
    waiting: list[int] = field(default_factory=list)
    answered: dict[int, bytes] = field(default_factory=dict)

    @property
    def first_unacked(self) -> int:
        return self.waiting[0] if self.waiting else self.next_counter


@dataclass
class Owner:
    """The store's side: applied groups in order, and rows as a store file keeps them."""

    writer: WriterState = field(default_factory=WriterState)
    rows: dict[int, bytes] = field(default_factory=dict)
    applied: list[int] = field(default_factory=list)

    def receive(self, counter: int, first_unacked: int) -> bytes | None:
        verdict, known = self.writer.judge(counter, first_unacked)
        if verdict is not Admission.NEW:
            return known
        self.applied.append(counter)
        outcome = f"answer {counter} as number {len(self.applied)}".encode()
        self.writer.record(counter, first_unacked, outcome)
        self.rows[counter] = outcome
        self.rows = {number: kept for number, kept in self.rows.items() if number >= first_unacked}
        return outcome

    def restart(self) -> None:
        self.writer = WriterState.from_rows(sorted(self.rows.items()))


@given(st.data())
@settings(deadline=None, max_examples=examples(300))
def test_no_group_is_applied_twice_or_after_it_was_given_up(data: st.DataObject) -> None:
    client, owner = Client(), Owner()
    network: list[tuple[int, int]] = []
    replies: list[tuple[int, bytes]] = []
    for _ in range(data.draw(st.integers(5, 40), label="steps")):
        actions = ["new", "restart"]
        if client.waiting:
            actions += ["send again", "give up"]
        if network:
            actions += ["deliver", "deliver", "deliver", "duplicate", "lose"]
        if replies:
            actions += ["reply", "reply", "lose reply"]
        match data.draw(st.sampled_from(actions)):
            case "new":
                client.waiting.append(client.next_counter)
                client.next_counter += 1
                network.append((client.waiting[-1], client.first_unacked))
            case "send again":
                network.append((data.draw(st.sampled_from(client.waiting)), client.first_unacked))
            case "give up":
                # In order, as the timeouts of groups that were sent in order are.
                client.waiting.pop(0)
            case "deliver" | "duplicate" as action:
                index = data.draw(st.integers(0, len(network) - 1))
                counter, first_unacked = network[index]
                if action == "deliver":
                    del network[index]
                applied = list(owner.applied)
                outcome = owner.receive(counter, first_unacked)
                if outcome is not None:
                    replies.append((counter, outcome))
                if owner.applied != applied:
                    # What is below `first_unacked` of anything applied before is never applied now.
                    assert all(counter > earlier for earlier in applied)
            case "lose":
                network.pop(data.draw(st.integers(0, len(network) - 1)))
            case "restart":
                owner.restart()
            case "reply":
                counter, outcome = replies.pop(data.draw(st.integers(0, len(replies) - 1)))
                if counter in client.answered:
                    assert client.answered[counter] == outcome
                if counter in client.waiting:
                    client.waiting.remove(counter)
                    client.answered[counter] = outcome
            case "lose reply":
                replies.pop(data.draw(st.integers(0, len(replies) - 1)))
        assert owner.applied == sorted(set(owner.applied))
    # However it went, sending what still waits, in order, answers all of it.
    for counter in list(client.waiting):
        assert owner.receive(counter, client.first_unacked) is not None
        client.waiting.remove(counter)
    assert owner.applied == sorted(set(owner.applied))
    assert set(client.answered) <= set(owner.applied)
