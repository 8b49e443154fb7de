"""Subscriptions: history or state first, then every change, each once, in the order of
revisions."""

from __future__ import annotations

import asyncio
import random

import pytest

from holdfast.client import (
    KV,
    Change,
    ChangeKind,
    Client,
    HoldfastError,
    InvalidArgumentError,
    InvalidNameError,
    RemovalReason,
    Stream,
)
from tests.conformance.conforming import State, apply, state_of, stored, take, take_until
from tests.support.present import present

SET, DELETE, TRIM = ChangeKind.SET, ChangeKind.DELETE, ChangeKind.TRIM
RESET, READY = ChangeKind.RESET, ChangeKind.READY
USER, TTL, LIMIT = RemovalReason.USER, RemovalReason.TTL, RemovalReason.LIMIT


def kinds(changes: list[Change]) -> list[ChangeKind]:
    return [change.kind for change in changes]


def revisions(changes: list[Change]) -> list[int]:
    return [change.revision for change in changes]


async def test_history_then_whatever_happens_deletes_included(
    stream: Stream, other: Client
) -> None:
    await stream.append_many([b"1", b"2", b"3"])
    async with other.stream("s").subscribe(start_seq=2) as changes:
        history = await take(changes, 2)
        assert revisions(history) == [2, 3]
        await stream.append(b"4", headers={"a": "b"})
        await stream.set(2, b"TWO")
        await stream.delete([1, 3])
        await stream.delete_all(end_seq=2)
        await stream.delete_all()
        live = await take(changes, 5)
        assert revisions(live) == [4, 5, 6, 7, 8]
        assert kinds(live) == [SET, SET, DELETE, TRIM, TRIM]
        message = present(live[0].message)
        assert (message.seq, message.value, message.headers) == (4, b"4", {"a": "b"})
        assert (live[2].seqs, live[3].end_seq) == ((1, 3), 2)
        assert state_of(history + live) == await stored(stream) == {}


async def test_without_a_start_only_what_is_new(stream: Stream, hf: Client, other: Client) -> None:
    await stream.append(b"old")
    async with other.stream("s").subscribe() as changes, hf.stream("new").subscribe() as born:
        await stream.append(b"new")
        await other.stream("new").append(b"first")
        assert revisions(await take(changes, 1)) == [2]
        assert revisions(await take(born, 1)) == [1]


async def test_what_changes_no_message_is_no_change_to_a_follower(
    stream: Stream, other: Client
) -> None:
    async with other.stream("s").subscribe() as changes:
        await stream.configure(description="about")
        with pytest.raises(HoldfastError):
            await stream.append(b"", expected_last_seq=7)
        ack = await stream.append(b"1", msg_id="a")
        await stream.append(b"1", msg_id="a")
        await stream.delete(1)
        await stream.delete(1)
        last = await stream.append(b"2")
        first = ack.revision
        assert revisions(await take(changes, 3)) == [first, first + 1, last.revision]


async def test_what_limits_remove_is_told_to_followers(stream: Stream, other: Client) -> None:
    await stream.configure(max_messages=3)
    async with other.stream("s").subscribe(start_seq=1) as changes:
        for number in range(1, 8):
            await stream.append(b"%d" % number)
        seen = await take_until(changes, (await stream.head()).revision)
        assert state_of(seen) == await stored(stream) == {5: b"5", 6: b"6", 7: b"7"}


async def test_a_removal_says_whether_somebody_a_ttl_or_a_limit_asked_for_it(
    stream: Stream, kv: KV, other: Client
) -> None:
    await stream.append(b"1", ttl_seconds=0.05)
    await kv.set("a", b"1", ttl_seconds=0.05)
    async with (
        other.stream("s").subscribe(start_revision=1) as messages,
        other.kv("k").watch(start_revision=1, with_state=False) as entries,
    ):
        [gone, lost] = [*await take(messages, 1), *await take(entries, 1)]
        assert (gone.reason, lost.reason, lost.keys) == (TTL, TTL, ("a",))
        await stream.append_many([b"2", b"3", b"4", b"5"])
        await kv.set_many({"b": b"", "c": b"", "d": b""})
        await stream.configure(max_messages=3)
        await kv.configure(max_messages=2)
        await stream.delete(4)
        await stream.delete_all(end_seq=3)
        await kv.delete("c")
        await kv.delete_all()
        seen = [*await take(messages, 7), *await take(entries, 6)]
        reasons = [change.reason for change in seen if change.kind is not SET]
        assert reasons == [LIMIT, USER, USER, LIMIT, USER, USER]
        assert all(change.reason is None for change in seen if change.kind is SET)
        revision = gone.revision
    # The owner remembers it for those who were away.
    async with other.stream("s").subscribe(start_revision=revision - 1) as messages:
        first = await take(messages, 1)
        assert first[0].reason is TTL


async def test_two_followers_of_racing_writers_see_one_sequence(hf: Client, other: Client) -> None:
    rng = random.Random(1)

    async def write(client: Client) -> None:
        stream = client.stream("s")
        for number in range(60):
            ack = await stream.append(b"%d" % number)
            if rng.random() < 0.3:
                await stream.delete(rng.randint(1, ack.seq or 1))

    async with hf.stream("s").subscribe() as one, other.stream("s").subscribe() as two:
        await asyncio.gather(*[write(client) for client in (hf, other) * 2])
        revision = (await hf.stream("s").head()).revision
        seen = await take_until(one, revision)
        assert seen == await take_until(two, revision)
        assert revisions(seen) == list(range(1, revision + 1))
        assert state_of(seen) == await stored(hf.stream("s"))


async def test_a_follower_that_comes_while_others_write_misses_nothing(
    stream: Stream, other: Client
) -> None:
    async def write() -> None:
        for number in range(200):
            await stream.append(b"%d" % number)

    async def follow() -> list[int]:
        async with other.stream("s").subscribe(start_seq=1) as changes:
            return revisions(await take(changes, 200))

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(write())
        followers = [tasks.create_task(follow()) for _ in range(5)]
    assert all(follower.result() == list(range(1, 201)) for follower in followers)


async def test_a_consumer_that_sleeps_through_more_than_is_kept_misses_nothing(
    stream: Stream, other: Client
) -> None:
    count = 20_000
    async with other.stream("s").subscribe() as changes:
        for _ in range(count // 2000):
            await stream.append_many([b"x"] * 2000)
        assert revisions(await take(changes, count)) == list(range(1, count + 1))


async def test_a_stream_is_gone_on_with_from_a_saved_revision(
    stream: Stream, other: Client
) -> None:
    await stream.append_many([b"1", b"2", b"3"])
    async with other.stream("s").subscribe(start_seq=1) as changes:
        seen = await take(changes, 3)
        saved = changes.revision
        assert saved == 3
    await stream.delete(1)
    await stream.append(b"4")
    await stream.set(2, b"TWO")
    async with other.stream("s").subscribe(start_revision=saved) as changes:
        since = await take(changes, 3)
        assert revisions(since) == [4, 5, 6]
        assert state_of(seen + since) == await stored(stream)
        await stream.append(b"5")
        assert revisions(await take(changes, 1)) == [7]
    with pytest.raises(InvalidArgumentError):
        stream.subscribe(start_seq=1, start_revision=1)


async def test_a_saved_revision_of_another_store_is_a_reset_with_everything(
    stream: Stream, kv: KV, other: Client
) -> None:
    await stream.append_many([b"1", b"2"])
    async with other.stream("s").subscribe(start_revision=9) as changes:
        assert kinds(await take(changes, 3)) == [RESET, SET, SET]
        await stream.append(b"3")
        assert revisions(await take(changes, 1)) == [3]
    await kv.set("a", b"1")
    async with other.kv("k").watch(start_revision=9) as changes:
        assert kinds(await take(changes, 3)) == [RESET, SET, READY]


async def test_a_watch_gives_the_state_a_mark_and_what_follows(kv: KV, other: Client) -> None:
    async with other.kv("k").watch() as empty:
        assert kinds(await take(empty, 1)) == [READY]
    await kv.set_many({"b": b"1", "a": b"1", "gone": b""})
    await kv.delete("gone")
    async with other.kv("k").watch() as changes:
        state = await take(changes, 3)
        assert [change.entry and change.entry.key for change in state] == ["a", "b", None]
        await kv.set("a", b"2")
        await kv.delete(["b", "never"])
        await kv.delete_all()
        live = await take(changes, 3)
        assert kinds(live) == [SET, DELETE, TRIM]
        assert (live[1].keys, revisions(live)) == (("b",), [5, 6, 7])


async def test_a_kv_with_many_deletes_behind_it_can_be_watched(kv: KV) -> None:
    for round_number in range(3):
        await kv.set_many({f"{i:04}": b"%d" % round_number for i in range(4000)})
        for start in range(0, 4000, 1000):
            await asyncio.gather(
                *[kv.delete(f"{i:04}") for i in range(start, start + 1000) if i % 8]
            )
    async with kv.watch() as changes:
        assert kinds((await take(changes, 501))[-2:]) == [SET, READY]
        await kv.set("new", b"")
        assert (await take(changes, 1))[0].entry is not None


async def test_a_watch_of_a_prefix_sees_its_keys_alone(kv: KV, other: Client) -> None:
    await kv.set_many({"x1": b"", "x2": b"", "y": b""})
    async with other.kv("k").watch(prefix="x") as changes:
        assert kinds(await take(changes, 3)) == [SET, SET, READY]
        await kv.set("y", b"")
        await kv.delete(["y", "x1"])
        await kv.set("x3", b"")
        deleted, added = await take(changes, 2)
        assert (deleted.keys, added.entry and added.entry.key) == (("x1",), "x3")


async def test_a_kv_is_gone_on_with_from_a_saved_revision(kv: KV, other: Client) -> None:
    await kv.set_many({"a": b"1", "b": b"1", "c": b"1"})
    async with other.kv("k").watch() as changes:
        seen = await take(changes, 4)
        saved = changes.revision
    await kv.delete("b")
    for number in range(5):
        await kv.set("a", b"%d" % number)
    async with other.kv("k").watch(start_revision=saved) as changes:
        since = await take_until(changes, (await kv.head()).revision)
        assert state_of(seen + since) == await stored(kv) == {"a": b"4", "c": b"1"}
        assert len(since) == 2, "what was overwritten is not news"


async def test_a_watch_may_begin_without_the_state(kv: KV, other: Client) -> None:
    await kv.set("a", b"old")
    async with other.kv("k").watch(with_state=False) as changes:
        assert changes.revision == 1
        await kv.set("b", b"new")
        await kv.delete("a")
        found = await take(changes, 2)
        assert kinds(found) == [SET, DELETE] and revisions(found) == [2, 3]


async def test_a_watch_without_the_state_is_given_it_after_a_reset(
    hf: Client, other: Client
) -> None:
    kv = hf.kv("k")
    await kv.set_many({"a": b"1", "b": b"2"})
    async with other.kv("k").watch(with_state=False) as changes:
        await kv.destroy()
        await kv.set("born", b"again")
        found = await take(changes, 1)
        while found[-1].kind is not READY:
            found += await take(changes, 1)
        assert RESET in kinds(found)
        assert state_of(found) == await stored(kv)


async def test_a_watch_of_meta_only_has_revisions_and_times_and_no_values(
    hf: Client, other: Client
) -> None:
    kv = hf.kv("k", codec="json")
    first = await kv.set("a", {"n": 1}, headers={"by": "ada"})
    await hf.kv("k").set("not.json", b"\xff")
    async with other.kv("k", codec="json").watch(meta_only=True) as changes:
        found = await take(changes, 3)
        assert kinds(found) == [SET, SET, READY]
        second = await kv.set("a", {"n": 2}, headers={"by": "bob"})
        await kv.delete("a")
        found += await take(changes, 2)
        entries = [present(change.entry) for change in (found[0], found[3])]
        assert [(each.key, each.value, each.headers) for each in entries] == [("a", None, {})] * 2
        assert [each.revision for each in entries] == [first.revision, second.revision]
        assert [each.time for each in entries] == [first.time, second.time]
        assert found[4].keys == ("a",)
    async with other.kv("k").watch(prefix="n", meta_only=True) as changes:
        found = await take(changes, 2)
        assert present(found[0].entry).key == "not.json"


async def test_patterns_follow_every_store_that_matches_and_those_born_later(
    hf: Client, other: Client
) -> None:
    for name in ("p.1.x", "p.2.y", "q.1.x"):
        await hf.stream(name).append(b"old")
    async with other.subscribe("p.*.x") as tokens, other.subscribe("p.>", start_seq=1) as tails:
        assert {found.store for found in await take(tails, 2)} == {"p.1.x", "p.2.y"}
        for name in ("p.1.x", "p.2.y", "q.1.x", "p.born.x", "p.1.x.deeper"):
            await hf.stream(name).append(b"new")
        await hf.kv("p.1.x").set("k", b"of a kv")
        await hf.stream("p.1.x").delete(1)
        seen = {(name, change.revision) for name, change in await take(tokens, 3)}
        assert seen == {("p.1.x", 2), ("p.1.x", 3), ("p.born.x", 1)}
        stores = sorted(found.store for found in await take(tails, 5))
        assert stores == ["p.1.x", "p.1.x", "p.1.x.deeper", "p.2.y", "p.born.x"]
    for wrong in ("", "p.x*", ">.p", "p..x"):
        with pytest.raises(InvalidNameError):
            hf.subscribe(wrong)


async def test_a_pattern_gives_each_store_what_a_subscription_would(
    hf: Client, other: Client
) -> None:
    names = [f"user.{number}" for number in range(20)]
    rng = random.Random(2)

    async def write(client: Client) -> None:
        for number in range(80):
            kv = client.kv(rng.choice(names))
            key = rng.choice("abc")
            await (kv.delete(key) if rng.random() < 0.3 else kv.set(key, b"%d" % number))

    states: dict[str, State] = {name: {} for name in names}
    reached: dict[str, int] = dict.fromkeys(names, -1)
    await write(hf)
    async with other.watch("user.*") as changes, asyncio.timeout(30):
        await asyncio.gather(write(hf), write(other))
        heads = {name: (await hf.kv(name).head()).revision for name in names}
        while any(reached[name] < heads[name] for name in names if heads[name]):
            name, change = await anext(changes)
            if change.kind is not SET or reached[name] >= 0:
                assert change.revision >= reached[name]
                reached[name] = change.revision
            apply(change, states[name])
    assert states == {name: await stored(hf.kv(name)) for name in names}


async def test_a_pattern_resumes_each_store_where_it_was(hf: Client, other: Client) -> None:
    for name in ("p.1", "p.2", "p.3"):
        await hf.stream(name).append_many([b"1", b"2"])
    async with other.subscribe("p.*", start_seq=1) as changes:
        await take(changes, 6)
        saved = changes.revisions
        assert saved == {"p.1": 2, "p.2": 2, "p.3": 2}
    await hf.stream("p.1").append(b"3")
    await hf.stream("p.2").delete(1)
    await hf.stream("p.3").destroy()
    await hf.stream("p.4").append(b"new")
    async with other.subscribe("p.*", start_seq=1, start_revisions=saved) as changes:
        seen = {(name, change.kind, change.revision) for name, change in await take(changes, 4)}
        assert seen == {("p.1", SET, 3), ("p.2", DELETE, 3), ("p.3", RESET, 0), ("p.4", SET, 1)}
        await hf.stream("p.1").append(b"4")
        [found] = await take(changes, 1)
        assert (found.store, found.change.revision) == ("p.1", 4)
        assert changes.revisions["p.1"] == 4
    with pytest.raises(InvalidArgumentError):
        hf.subscribe("p.*", start_revisions={"q": 1})
    with pytest.raises(InvalidArgumentError):
        hf.watch("p.*", start_revisions={"p.1": -1})


async def test_a_pattern_of_kvs_resumes_and_has_a_codec(hf: Client, other: Client) -> None:
    await hf.kv("u.1", codec="json").set("a", {"n": 1})
    async with other.watch("u.*", codec="json") as changes:
        found = await take(changes, 2)
        assert present(found[0].change.entry).value == {"n": 1}
        saved = {found[1].store: found[1].change.revision}
        assert changes.revisions == saved
    await hf.kv("u.1", codec="json").set("b", {"n": 2})
    await hf.kv("u.2", codec="json").set("c", {"n": 3})
    async with other.watch("u.*", codec="json", start_revisions=saved) as changes:
        entries = [change.entry for _, change in await take(changes, 3) if change.entry is not None]
        assert sorted((each.key, each.value["n"]) for each in entries) == [("b", 2), ("c", 3)]


async def test_a_subscription_ends_when_it_is_closed_and_with_its_client(
    stream: Stream, hf: Client, other: Client
) -> None:
    closed, of_client = stream.subscribe(), hf.subscribe("p.*")
    following = [asyncio.ensure_future(anext(each, None)) for each in (closed, of_client)]
    async with stream.subscribe() as sign:
        await other.stream("s").append(b"")
        await take(sign, 1)
    await closed.aclose()
    await hf.close()
    async with asyncio.timeout(30):
        assert (await asyncio.gather(*following))[1] is None
    assert await anext(closed, None) is None
