"""The consumers of a served stream, over NATS and a stream in memory: what clients get, what is
recorded, and what the next gateway makes of it."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from holdfast.gateway.jetstream.api.headers import build
from holdfast.gateway.jetstream.wire.ports import PortMessage
from holdfast.protocol.errors import StorageError
from holdfast.protocol.limits import PAGE_BYTES
from tests.support.consumer_set_world import SECOND, ConsumerSetWorld, in_virtual_time


def test_a_pull_gets_what_is_there_and_the_reply_of_a_create_says_how_much() -> None:
    async def work(world: ConsumerSetWorld) -> None:
        for number in range(5):
            world.stream.publish(f"S.{number}")
        made = await world.create("c")
        assert made["num_pending"] == 5
        inbox = await world.pull("c", batch=3, expires=SECOND)
        assert inbox.subjects == ["S.0", "S.1", "S.2"]
        assert [each.reply.rsplit(".", 1)[1] for each in inbox.received] == ["4", "3", "2"]
        info = await world.info("c")
        assert (info["num_ack_pending"], info["num_pending"]) == (3, 2)
        assert world.consumers.lags() == [5]
        await world.ack(inbox.received[0])
        assert world.consumers.lags() == [4]

    in_virtual_time(work)


def test_consumers_at_the_tail_cost_no_reads_and_deliver_with_the_append() -> None:
    async def work(world: ConsumerSetWorld) -> None:
        inbox = await world.listen()
        push = {"deliver_subject": inbox.subject, "durable_name": "", "ack_policy": "none"}
        assert (await world.create("p", **push))["push_bound"]
        await world.create("c")
        waiting = await world.pull("c", batch=10)
        for number in range(10):
            world.stream.publish("S.a", b"%d" % number)
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            assert len(inbox.received) == number + 1
        assert len(waiting.values()) == 10
        # A pull that comes later finds them still at hand.
        world.stream.publish("S.a")
        assert len((await world.pull("c")).received) == 1
        assert world.stream.read_count == 0

    in_virtual_time(work)


def test_a_double_ack_is_answered_once_it_is_recorded() -> None:
    async def work(world: ConsumerSetWorld) -> None:
        world.stream.publish("S.a")
        await world.create("c")
        message = (await world.pull("c")).received[0]
        await world.settle()
        world.stream.writes_pass.clear()
        answers = await world.listen()
        await world.ack(message, b"+ACK", answers)
        assert not answers.received
        world.stream.writes_pass.set()
        await world.settle()
        assert [each.payload for each in answers.received] == [b""]
        # Again: it counts already, and is answered all the same.
        await world.ack(message, b"", answers)
        assert len(answers.received) == 2

    in_virtual_time(work)


def test_another_gateway_goes_on_from_the_record() -> None:
    async def work(world: ConsumerSetWorld) -> None:
        for number in range(6):
            world.stream.publish("S.a", b"%d" % number)
        await world.create("c", ack_wait=SECOND, deliver_policy="all")
        inbox = await world.pull("c", batch=4)
        answers = await world.listen()
        await world.ack(inbox.received[1], b"", answers)
        assert answers.received
        before = await world.info("c")
        await world.restart()
        after = await world.info("c")
        for each in ("ts", "num_waiting"):
            before.pop(each), after.pop(each)
        assert before == after
        later = await world.pull("c", batch=10)
        assert later.values() == [b"4", b"5"]
        # The acknowledged one never comes again; the others do, with a count that goes on.
        await asyncio.sleep(1.1)
        assert later.values()[2:] == [b"0", b"2", b"3", b"4", b"5"]
        assert [each.reply.split(".")[4] for each in later.received[2:]] == ["2"] * 5

    in_virtual_time(work)


def test_ephemeral_consumers_without_acks_are_not_recorded() -> None:
    async def work(world: ConsumerSetWorld) -> None:
        await world.create("e", durable_name="", ack_policy="none")
        await world.create("a", durable_name="")
        await world.create("d", ack_policy="none")
        await world.restart()
        names = (await world.api("CONSUMER.NAMES.S"))["consumers"]
        assert names == ["a", "d"]
        assert (await world.info("e"))["error"]["err_code"] == 10014

    in_virtual_time(work)


def test_what_has_no_listener_says_so() -> None:
    async def work(world: ConsumerSetWorld) -> None:
        nobody = "503"
        assert (await world.pull("missing")).statuses() == [nobody]
        await world.create("n", durable_name="", ack_policy="none")
        world.stream.publish("S.a")
        message = (await world.pull("n")).received[0]
        answers = await world.listen()
        await world.ack(message, b"", answers)
        assert answers.statuses() == [nobody]

    in_virtual_time(work)


def test_a_pull_whose_client_is_gone_gets_no_message() -> None:
    async def work(world: ConsumerSetWorld) -> None:
        await world.create("c")
        gone = await world.pull("c", batch=1)
        await gone.subscription.unsubscribe()
        there = await world.pull("c", batch=1)
        world.stream.publish("S.a")
        await world.settle()
        assert len(there.received) == 1
        assert (await world.info("c"))["num_waiting"] == 0

    in_virtual_time(work)


def test_deliver_groups_decide_whether_a_push_consumer_is_active() -> None:
    async def work(world: ConsumerSetWorld) -> None:
        plain = await world.listen("deliver")
        config: dict[str, Any] = {"deliver_subject": "deliver", "deliver_group": "g"}
        made = await world.create("p", **config)
        assert "push_bound" not in made
        world.stream.publish("S.a")
        await world.settle()
        assert not plain.received
        member = await world.listen("deliver", "g")
        world.stream.publish("S.a")
        await world.settle()
        assert (len(plain.received), len(member.received)) == (2, 2)
        assert (await world.info("p"))["push_bound"]

    in_virtual_time(work)


def test_a_watch_of_last_values_ends_at_pending_zero_whatever_is_put_meanwhile() -> None:
    async def work(world: ConsumerSetWorld) -> None:
        keys = 700
        for number in range(keys):
            world.stream.publish(f"S.{number}", b"old")
            world.stream.publish(f"S.{number}", b"new")
        inbox = await world.listen()
        watch = asyncio.create_task(
            world.create(
                "w",
                durable_name="",
                ack_policy="none",
                deliver_policy="last_per_subject",
                deliver_subject=inbox.subject,
                filter_subject="S.>",
            )
        )
        while not inbox.received:
            await asyncio.sleep(0)
        # One key changes, and of another the last value goes, while the first are on their way.
        seq = world.stream.publish("S.5", b"newest")
        world.stream.remove(2 * keys)
        await watch
        assert (await watch)["num_pending"] == keys
        left = [int(each.reply.rsplit(".", 1)[1]) for each in inbox.received]
        assert left[0] == keys - 1
        assert [each for each in left if not each] == [left[-1]] == [0]
        assert inbox.values() == [b"new"] * (keys - 1) + [b"old", b"newest"]
        assert int(inbox.received[-1].reply.split(".")[5]) == seq

    in_virtual_time(work)


def test_a_work_queue_keeps_a_message_until_it_is_acknowledged() -> None:
    async def work(world: ConsumerSetWorld) -> None:
        world.stream.publish("S.a")
        world.stream.publish("S.b")
        await world.create("c")
        inbox = await world.pull("c", batch=2)
        await world.ack(inbox.received[0])
        assert list(world.stream.messages) == [2]
        await world.ack(inbox.received[1], b"+TERM")
        assert not world.stream.messages

    in_virtual_time(work, retention="workqueue")


def test_interest_keeps_a_message_until_the_last_consumer_that_matches_has_acknowledged_it() -> (
    None
):
    async def work(world: ConsumerSetWorld) -> None:
        world.stream.publish("S.nobody")
        await world.settle()
        assert not world.stream.messages
        await world.create("all")
        await world.create("a", filter_subject="S.a")
        world.stream.publish("S.a")
        world.stream.publish("S.b")
        await world.settle()
        of_all = await world.pull("all", batch=2)
        for message in of_all.received:
            await world.ack(message)
        assert [each.subject for each in world.stream.messages.values()] == ["S.a"]
        of_a = await world.pull("a")
        await world.ack(of_a.received[0])
        assert not world.stream.messages
        # One that is deleted needs nothing any more.
        world.stream.publish("S.a")
        await world.ack((await world.pull("a")).received[0])
        assert world.stream.messages
        await world.api("CONSUMER.DELETE.S.all")
        await world.settle()
        assert not world.stream.messages

    in_virtual_time(work, retention="interest")


def test_interest_is_looked_up_page_by_page_where_messages_are_large() -> None:
    async def work(world: ConsumerSetWorld) -> None:
        await world.create("all")
        await world.create("a", filter_subject="S.a")
        for number in range(12):
            world.stream.publish(f"S.{'ab'[number % 2]}", bytes(PAGE_BYTES * 2 // 3))
        await world.settle()
        of_all = await world.pull("all", batch=12)
        assert len(of_all.received) == 12
        for message in of_all.received:
            await world.ack(message)
        await world.settle()
        assert [each.subject for each in world.stream.messages.values()] == ["S.a"] * 6

    in_virtual_time(work, retention="interest")


def test_sampled_acks_are_told_of() -> None:
    async def work(world: ConsumerSetWorld) -> None:
        told: list[PortMessage] = []
        await world.app.subscribe("$JS.EVENT.METRIC.>", told.append)
        await world.create("c", sample_freq="100")
        world.stream.publish("S.a")
        message = (await world.pull("c")).received[0]
        await asyncio.sleep(2)
        await world.ack(message)
        await world.settle()
        [metric] = told
        assert metric.subject == "$JS.EVENT.METRIC.CONSUMER.ACK.S.c"
        body = json.loads(metric.payload)
        assert body["type"] == "io.nats.jetstream.metric.v1.consumer_ack"
        assert (body["stream_seq"], body["deliveries"]) == (1, 1)
        assert 2 * SECOND <= body["ack_time"] < 3 * SECOND

    in_virtual_time(work)


def test_flow_control_stops_a_push_consumer_until_its_client_answers() -> None:
    async def work(world: ConsumerSetWorld) -> None:
        inbox = await world.listen()
        await world.create(
            "f",
            durable_name="",
            ack_policy="none",
            deliver_subject=inbox.subject,
            flow_control=True,
            idle_heartbeat=5 * SECOND,
        )
        value = bytes(100_000)
        for _ in range(60):
            world.stream.publish("S.a", value)
        await world.settle()
        stopped = len(inbox.values())
        assert 20 < stopped < 25
        asked = [each for each in inbox.received if not each.payload]
        assert asked[0].headers == b"NATS/1.0 100 FlowControl Request\r\n\r\n"
        assert asked[0].reply.startswith("$JS.FC.S.f.")
        await asyncio.sleep(5.1)
        assert f"Nats-Consumer-Stalled: {asked[0].reply}" in inbox.statuses()[-1]
        world.app.publish(asked[0].reply, b"")
        await world.settle()
        assert stopped + 30 < len(inbox.values()) <= 60

    in_virtual_time(work)


def test_answers_to_flow_control_acknowledge_what_they_name() -> None:
    async def work(world: ConsumerSetWorld) -> None:
        inbox = await world.listen()
        await world.create(
            "f",
            ack_policy="flow_control",
            deliver_subject=inbox.subject,
            max_ack_pending=2,
        )
        for number in range(1, 4):
            world.stream.publish("S.a", b"%d" % number)
        await world.settle()

        async def pending() -> tuple[int, int]:
            info = await world.api("CONSUMER.INFO.S.f")
            return info["num_ack_pending"], info["ack_floor"]["stream_seq"]

        def asked() -> str:
            requests = [each.reply for each in inbox.received if each.reply.startswith("$JS.FC.")]
            return requests[-1]

        async def answer(subject: str, seq: str) -> None:
            headers = {"Nats-Last-Consumer": seq, "Nats-Last-Stream": seq}
            world.app.publish(subject, b"", headers=build(headers))
            await world.settle()

        assert inbox.values() == [b"1", b"2"] and await pending() == (2, 0)
        # Nothing else acknowledges, and nothing is delivered again.
        world.app.publish(inbox.received[0].reply, b"+ACK")
        await answer("$JS.FC.S.f.none", "2")
        await asyncio.sleep(120)
        assert inbox.values() == [b"1", b"2"] and await pending() == (2, 0)
        await answer(asked(), "2")
        assert inbox.values() == [b"1", b"2", b"3"] and await pending() == (1, 2)
        await world.restart()
        await asyncio.sleep(2.0)
        assert inbox.values() == [b"1", b"2", b"3"] and await pending() == (1, 2)
        for wrong in ("x", "-1", "", "9" * 40, "99"):
            await answer(asked(), wrong)
            assert await pending() == (1, 2)
            await asyncio.sleep(2.0)
        await answer(asked(), "3")
        assert await pending() == (0, 3)

    in_virtual_time(work)


def test_a_consumer_that_nobody_uses_is_deleted() -> None:
    async def work(world: ConsumerSetWorld) -> None:
        await world.create("e", durable_name="", inactive_threshold=SECOND)
        await world.create("p", durable_name="", deliver_subject="nobody", ack_policy="none")
        await world.create("d")
        await asyncio.sleep(1.2)
        assert (await world.api("CONSUMER.NAMES.S"))["consumers"] == ["d", "p"]
        await asyncio.sleep(5)
        assert (await world.api("CONSUMER.NAMES.S"))["consumers"] == ["d"]
        await world.restart()
        assert (await world.api("CONSUMER.NAMES.S"))["consumers"] == ["d"]

    in_virtual_time(work)


def test_a_deleted_consumer_tells_those_who_wait() -> None:
    async def work(world: ConsumerSetWorld) -> None:
        await world.create("c")
        inbox = await world.pull("c", batch=2, expires=10 * SECOND)
        assert (await world.api("CONSUMER.DELETE.S.c"))["success"]
        assert inbox.statuses() == ["409 Consumer Deleted"]
        assert (await world.pull("c")).statuses() == ["503"]
        assert not world.stream.recorded

    in_virtual_time(work)


def test_reads_and_records_that_fail_are_made_again() -> None:
    async def work(world: ConsumerSetWorld) -> None:
        world.stream.publish("S.a")
        await world.create("c")
        await world.restart()
        world.stream.fault = StorageError(reason="away")
        inbox = await world.pull("c", batch=1)
        assert not inbox.received
        world.stream.fault = None
        await asyncio.sleep(1.1)
        assert len(inbox.received) == 1
        world.stream.fault = StorageError(reason="away")
        answers = await world.listen()
        await world.ack(inbox.received[0], b"", answers)
        assert not answers.received
        world.stream.fault = None
        await asyncio.sleep(1.1)
        assert len(answers.received) == 1

    in_virtual_time(work)


def test_what_nats_does_not_take_now_is_delivered_when_it_does() -> None:
    async def work(world: ConsumerSetWorld) -> None:
        inbox = await world.listen()
        push = {"deliver_subject": inbox.subject, "durable_name": "", "ack_policy": "none"}
        await world.create("p", **push)
        await world.create("c")
        waiting = await world.pull("c", batch=10)
        world.stream.hold()
        for number in range(600):
            world.stream.publish("S.a", b"%d" % number)
        await world.settle()
        assert not inbox.received
        assert not waiting.received
        world.stream.let_go()
        await world.settle()
        assert inbox.values() == [b"%d" % number for number in range(600)]
        assert waiting.values() == [b"%d" % number for number in range(10)]

    in_virtual_time(work)


def test_of_requests_that_come_together_the_priority_counts_before_the_order() -> None:
    async def work(world: ConsumerSetWorld) -> None:
        for _ in range(4):
            world.stream.publish("S.a")
        await world.create("c", priority_policy="prioritized", priority_groups=["g"])
        inboxes = [await world.listen() for _ in range(2)]
        for inbox, priority in zip(inboxes, (1, 0), strict=True):
            body = b'{"batch": 3, "group": "g", "priority": %d}' % priority
            world.app.publish("$JS.API.CONSUMER.MSG.NEXT.S.c", body, reply=inbox.subject)
        await world.settle()
        assert [len(inbox.received) for inbox in inboxes] == [1, 3]

    in_virtual_time(work)
