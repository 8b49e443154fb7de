"""What values are: compressed on the way and in the store, and what a codec makes of them."""

from __future__ import annotations

import io
from typing import Any

import pytest

from holdfast.client import Client, InvalidArgumentError, ValueUnreadableError, sync
from tests.support.present import present

TEXT = b"a holdfast is what anchors kelp to the rock while the stream moves. " * 100


async def test_messages_above_a_kibibyte_are_stored_compressed_and_read_as_they_were(
    hf: Client, other: Client
) -> None:
    notes = hf.stream("notes")
    assert (await notes.head()).count == 0
    written = [TEXT + b"%d" % number for number in range(8)]
    first = await notes.append(written[0], headers={"user": "ada"}, msg_id="one")
    again = await notes.append(written[0], headers={"user": "ada"}, msg_id="one")
    assert (again.duplicate, again.seq) == (True, first.seq)
    await (await notes.append_async(written[1]))
    await notes.append_many([written[2], (written[3], {"a": "b"})], expected_last_seq=2)
    await notes.append(b"short")
    await notes.set(5, written[4])
    await notes.put_file(io.BytesIO(written[5]))
    async with notes.transaction(expected_last_seq=6) as change:
        change.append(written[6])
        change.append(b"")
        change.set(8, written[7])
        assert await change.get(8) is not None
    head = await notes.head()
    assert head.bytes < len(TEXT)

    seen = other.stream("notes")
    headers: list[dict[str, str]] = [{} for _ in written]
    headers[0], headers[3] = {"user": "ada"}, {"a": "b"}
    read = [message async for message in seen.get_all()]
    assert [message.value for message in read] == written
    assert [message.headers for message in read] == headers
    assert read[0] == await seen.get(1)
    async with seen.subscribe(start_seq=1) as changes:
        await notes.append(TEXT)
        for value in [*written, TEXT]:
            change_seen = await anext(changes)
            assert present(change_seen.message).value == value
    assert await present(await seen.get_reader(1)).read() == written[0]
    async with seen.consumer("workers", start_seq=9) as workers:
        [delivery] = await workers.fetch()
        assert delivery.message.value == TEXT
        assert await delivery.ack()
    async with other.live_stream("notes") as live:
        assert [message.value for message in live] == [*written, TEXT]
        live.append(TEXT + b"live")
        await live.save()
    assert present(await notes.get(10)).value == TEXT + b"live"
    assert (await notes.head()).bytes < 2 * len(TEXT)


async def test_entries_above_a_kibibyte_are_stored_compressed_and_read_as_they_were(
    hf: Client, other: Client
) -> None:
    pages = hf.kv("pages")
    await pages.head()
    ack = await pages.set("a", TEXT, expected_revision=0)
    await pages.set_many({"b": TEXT + b"b", "c": b"short"})
    await pages.update("a", lambda entry: entry.value + b"!" if entry else b"")
    assert ack.revision == 1
    assert (await pages.head()).bytes < len(TEXT)
    seen = other.kv("pages")
    expected = {"a": TEXT + b"!", "b": TEXT + b"b", "c": b"short"}
    assert {entry.key: entry.value async for entry in seen.get_all()} == expected
    async with seen.watch() as changes:
        found = [await anext(changes) for _ in expected]
        entries = [change.entry for change in found]
        assert {entry.key: entry.value for entry in entries if entry is not None} == expected
    async with other.live_kv("pages") as live:
        assert dict(live) == expected
        live["d"] = TEXT + b"d"
        await live.save()
    entry = present(await pages.get("d"))
    assert (entry.value, entry.headers) == (TEXT + b"d", {})
    async with pages.transaction() as change:
        before = present(await change.get("a"))
        change.set("a", before.value + b"?")
    assert (await seen.get("a")) is not None
    async with other.watch("*") as every:
        store, first = await anext(every)
        assert store == "pages"
        assert present(first.entry).value == TEXT + b"!?"


async def test_with_a_codec_values_are_objects_in_and_out(hf: Client, other: Client) -> None:
    documents: list[Any] = [{"n": 1}, ["kelp"] * 1000, None, "rock", 1.5]
    for codec in ("json", "msgpack"):
        stream = hf.stream(f"stream.{codec}", codec=codec)
        seen = other.stream(f"stream.{codec}", codec=codec)
        await stream.append_many(documents)
        ack = await stream.append({"n": 2}, expected_last_seq=5)
        await stream.set(ack.seq or 0, {"n": 3})
        large = {"text": "x" * 1_100_000}
        await stream.append(large)
        read = [message.value async for message in seen.get_all(end_seq=6)]
        assert read == [*documents, {"n": 3}]
        message = present(await seen.get(7))
        assert message.value == large

        kv = hf.kv(f"kv.{codec}", codec=codec)
        await kv.set("a", {"count": 1})
        await kv.update("a", lambda entry: {"count": entry.value["count"] + 1 if entry else 0})
        entry = present(await other.kv(f"kv.{codec}", codec=codec).get("a"))
        assert entry.value == {"count": 2}
        async with kv.transaction() as change:
            change.set("b", [1])
            assert present(await change.get("b")).value == [1]
        with pytest.raises(InvalidArgumentError):
            await kv.set("c", object())

    # Of another codec: an error of that message where its value is read, and nothing else.
    await hf.stream("mixed").append_many([b"\xff", b"2"])
    mixed = hf.stream("mixed", codec="json")
    async with mixed.subscribe(start_seq=1) as changes:
        unreadable = present((await anext(changes)).message)
        with pytest.raises(ValueUnreadableError, match="message 1 of mixed"):
            _ = unreadable.value
        following = await anext(changes)
        assert present(following.message).value == 2
    async with mixed.consumer("workers") as workers:
        bad, good = await workers.fetch(2)
        with pytest.raises(ValueUnreadableError):
            _ = bad.message.value
        assert await bad.term()
        assert good.message.value == 2
    await hf.kv("mixed").set_many({"a": b"1", "b": b"\xff", "c": b"3"})
    read: list[Any] = []
    async for entry in hf.kv("mixed", codec="json").get_all():
        try:
            read.append((entry.key, entry.value))
        except ValueUnreadableError as error:
            assert "key 'b' of mixed" in str(error)
            assert entry.unreadable is not None
            read.append((entry.key, entry.revision))
    assert read == [("a", 1), ("b", 2), ("c", 3)]
    with pytest.raises(ValueUnreadableError):
        await hf.kv("mixed", codec="json").get("b")
    with pytest.raises(InvalidArgumentError, match="raw, json, msgpack"):
        hf.kv("x", codec="yaml")


def test_blocking_code_has_codecs_and_compression_too(
    nats: str, tenant: str, box_bytes: int
) -> None:
    with sync.connect(nats, tenant=tenant) as client:
        notes = client.stream("notes", codec="json")
        assert notes.head().count == 0
        document = {"lines": ["kelp"] * 1000}
        assert notes.append(document).seq == 1
        assert notes.append_async([1]).result().seq == 2
        assert notes.head().bytes < 500
        assert [message.value for message in notes.get_all()] == [document, [1]]
        with notes.subscribe(start_seq=1) as changes:
            first = next(changes)
            assert present(first.message).value == document
        settings = client.kv("settings", codec="msgpack")
        settings.set("a", document)
        settings.update("a", lambda entry: {"was": entry.value if entry else None})
        [entry] = settings.get_all()
        assert entry.value == {"was": document}
        client.stream("bad").append(b"\xff")
        client.stream("bad").append(b"2")
        bad, good = client.stream("bad", codec="json").get_all()
        assert (bad.seq, bool(bad.unreadable), good.value, good.unreadable) == (1, True, 2, None)
        with client.stream("bad", codec="json").subscribe(start_seq=1) as changes:
            assert [next(changes).revision, next(changes).revision] == [1, 2]
        with sync.connect(nats, tenant=tenant, compression=False) as plain:
            plain.stream("plain").head()
            plain.stream("plain").append(TEXT)
            assert plain.stream("plain").head().bytes == len(TEXT) + box_bytes
            found = present(plain.stream("notes").get(1))
            assert (len(found.value), found.headers) == (7011, {})
