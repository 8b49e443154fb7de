"""The blocking API: what the other tests of this folder say of the client, from threads, forks and
interrupts."""

from __future__ import annotations

import io
import os
import shutil
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from holdfast.client import (
    ChangeKind,
    ConnectionFailedError,
    Deleted,
    Entry,
    HeaderBlock,
    HoldfastError,
    InvalidArgumentError,
    OperationTimeoutError,
    StoreKind,
    UnavailableError,
    WrongLastSeqError,
    WrongRevisionError,
)
from holdfast.client.sync import KV, Client, Subscription, connect
from holdfast.protocol.errors import BackgroundThreadError, ForkedError
from tests.conformance.conforming import apply
from tests.support.present import present


@pytest.fixture
def connected(nats: str, tenant: str) -> Callable[..., Client]:
    """Connects to the tenant of this test."""
    return lambda **options: connect(nats, tenant=tenant, **options)


@pytest.fixture
def hf(connected: Callable[..., Client]) -> Iterator[Client]:
    with connected() as client:
        yield client


def wait_until(condition: Callable[[], object]) -> None:
    tried = threading.Event()
    for _ in range(3000):
        if condition():
            return
        tried.wait(0.01)
    raise AssertionError("still not so after 30 s")


def interrupted_when(condition: Callable[[], object]) -> threading.Thread:
    """Send SIGINT to this process once `condition` holds."""

    def interrupt() -> None:
        wait_until(condition)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    return thread


def test_streams(hf: Client) -> None:
    notes = hf.stream("notes")
    assert notes.append(b"1", headers={"by": "ada"}).seq == 1
    assert [ack.seq for ack in notes.append_many([b"2", (b"3", {"a": "b"})])] == [2, 3]
    pending = [notes.append_async(b"%d" % number) for number in range(4, 3000)]
    assert [each.result().seq for each in pending] == list(range(4, 3000))
    assert notes.set(2, b"two", expected_revision=2).revision == 3000
    assert [ack.seq for ack in notes.set_many([(3, b"three")])] == [3]
    assert present(notes.get(2)).value == b"two"
    assert notes.get(3000) is None
    values = [b"1", b"two", b"three", *(b"%d" % number for number in range(4, 3000))]
    assert [message.value for message in notes.get_all()] == values
    assert [message.seq for message in notes.get_all(last=3)] == [2997, 2998, 2999]
    assert notes.delete([1, 2]).count == 2
    assert notes.delete_all(end_seq=10).count == 8
    assert notes.head().first_seq == 11
    assert notes.configure(max_messages=5).max_messages == 5
    assert notes.config().max_messages == 5
    with pytest.raises(WrongLastSeqError):
        notes.append(b"x", expected_last_seq=5)
    with pytest.raises(InvalidArgumentError):
        notes.append_async("text")  # type: ignore[arg-type]
    with notes.transaction(expected_last_seq=2999) as t:
        t.append(b"a")
        t.set(2998, b"b")
        t.delete(2999)
    assert [message.value for message in notes.get_all(start_seq=2998)] == [b"b", b"a"]


def test_subjects(hf: Client) -> None:
    stream = hf.stream("subjects")
    block = HeaderBlock.of({"user": "ada"})
    stream.append(b"1", subject="a.x", headers=block, expected_last_subject_seq=0)
    with pytest.raises(WrongLastSeqError):
        stream.append(b"2", subject="a.x", expected_last_subject_seq=0)
    stream.append_async(b"2", subject="a.y").result()
    stream.append_many([(b"3", None, "b"), b"4"], subject="a.x")
    large = b"large " * 200_000
    assert stream.append(large, subject="b").seq == 5
    assert [message.seq for message in stream.get_all(subjects=["a.x", "b"])] == [1, 3, 4, 5]
    assert present(stream.get_last("b")).value == large
    assert [message.seq for message in stream.get_lasts("a.*")] == [2, 4]
    assert [(each.subject, each.count) for each in stream.subjects()] == [
        *(("a.x", 2), ("a.y", 1), ("b", 2))
    ]
    assert stream.count("a.>") == 3
    with stream.transaction() as t:
        t.append(b"6", subject="a.y", rollup="sub")
    with stream.subscribe(start_seq=1, subjects="a.y") as changes:
        assert present(next(changes).message).seq == 6
    assert stream.purge("b", keep=1).count == 1
    assert [message.seq for message in stream.get_all()] == [1, 4, 5, 6]


def test_rows_may_be_left_before_their_end_and_raise_what_their_pages_raise(hf: Client) -> None:
    notes = hf.stream("notes")
    notes.append_many([b"%d" % number for number in range(4096)])
    notes.append_many([b"%d" % number for number in range(4096)])
    with notes.get_all() as rows:
        assert next(rows).seq == 1
    assert list(rows) == []
    for message in notes.get_all():
        if message.seq == 4097:
            break
    with pytest.raises(InvalidArgumentError):
        next(notes.get_all(last=-1))
    assert sum(1 for _ in notes.get_all()) == 8192


def test_kvs(hf: Client) -> None:
    settings = hf.kv("settings")
    assert settings.set("theme", b"dark", expected_revision=0).revision == 1
    with pytest.raises(WrongRevisionError):
        settings.set("theme", b"light", expected_revision=0)
    assert len(settings.set_many({"a": b"1", "b": b"2"})) == 2
    assert settings.set_async("c", b"3").result(30).revision == 4
    ended = hf.on_disconnect(lambda: None)
    ended()
    assert list(settings.keys()) == ["a", "b", "c", "theme"]
    assert [entry.value for entry in settings.get_all(prefix="t")] == [b"dark"]
    assert list(settings.keys(after_key="a", limit=2)) == ["b", "c"]
    found = settings.get_many(["theme", "never"])
    assert [each and each.value for each in found] == [b"dark", None]
    with settings.watch(with_state=False, meta_only=True) as changes:
        settings.set("c", b"4")
        assert present(next(changes).entry).value is None
    with settings.transaction() as t:
        before = present(t.get("a"))
        t.set("a", before.value + b"0")
        t.delete("b")
    with pytest.raises(ZeroDivisionError), settings.transaction() as t:
        t.set("a", b"never")
        raise ZeroDivisionError
    assert [entry.value for entry in settings.get_all(prefix="a")] == [b"10"]
    assert settings.delete("theme").count == 1
    assert settings.delete_all().count == 2
    assert settings.head().count == 0
    assert {store.name for store in hf.stores(StoreKind.KV)} == {"settings"}
    assert [(found.store.name, found.head and found.head.count) for found in hf.heads()] == [
        ("settings", 0)
    ]
    assert any(server.state == "live" for server in hf.servers())
    parts = hf.statistics()
    assert {"coordinator", "persist"} <= {part.kind for part in parts}
    assert any(list(part.having("persist_operations_total")) for part in parts)


def test_an_update_calls_its_function_in_the_calling_thread_where_it_may_block(hf: Client) -> None:
    counters = hf.kv("counters")
    callers = set()

    def one_more(entry: Entry | None) -> bytes:
        callers.add(threading.get_ident())
        counters.head()
        return b"%d" % (1 if entry is None else int(entry.value) + 1)

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(lambda _: counters.update("visits", one_more), range(12)))
    assert present(counters.get("visits")).value == b"12"
    assert threading.get_ident() not in callers
    with pytest.raises(ZeroDivisionError):
        counters.update("visits", lambda entry: b"%d" % (1 // 0))
    assert counters.update("visits", lambda entry: None) == Deleted(1, 13)


def test_large_values_are_read_as_files_are(hf: Client, tmp_path: Path) -> None:
    content = os.urandom(1_500_000)
    source, target = tmp_path / "source", tmp_path / "target"
    source.write_bytes(content)
    files: KV = hf.kv("files")
    files.put_file("a", source)
    with source.open("rb") as file:
        hf.stream("files").put_file(file)
    assert (entry := files.get("a")) is not None and entry.value == content
    assert files.get_file("a", target) is not None and target.read_bytes() == content
    with files.get_reader("a") as reader:  # type: ignore[union-attr]
        assert reader.readable() and reader.size_bytes == len(content)
        copy = io.BytesIO()
        shutil.copyfileobj(reader, copy)
    assert copy.getvalue() == content
    with pytest.raises(ValueError, match="closed"):
        reader.read()
    message = present(hf.stream("files").get_reader(1))
    with io.BufferedReader(message) as buffered:
        assert buffered.read(10) == content[:10]
        assert buffered.read() == content[10:]
    assert b"".join(hf.stream("files").get_reader(1) or ()) == content
    assert files.get_reader("b") is None


def test_what_follows_a_store_sees_each_change_once_whoever_writes(hf: Client) -> None:
    notes = hf.stream("notes")
    notes.append_many([b"%d" % number for number in range(2000)])
    state: dict[int | str, bytes] = {}
    with notes.subscribe(start_seq=1) as changes:
        with ThreadPoolExecutor(4) as threads:
            list(threads.map(lambda n: notes.append(b"%d" % n), range(2000, 2100)))
        notes.delete(7)
        last = notes.set(9, b"nine").revision
        for change in changes:
            apply(change, state)
            if change.revision == last:
                assert changes.revision == last
                break
        assert changes.poll() is None
        assert state == {message.seq: message.value for message in notes.get_all()}
        saved = changes.revision
        notes.append(b"later")
        assert present(changes.poll(30)).revision == last + 1
    assert next(changes, None) is None
    with notes.subscribe(start_revision=saved) as changes:
        assert next(changes).revision == last + 1


def test_revisions_follow_what_was_given_out_and_not_what_was_taken_over(hf: Client) -> None:
    notes = hf.stream("notes")
    with notes.subscribe() as changes:
        for _ in range(10):
            notes.append(b"x")
        for revision in range(1, 11):
            assert next(changes).revision == revision
            assert changes.revision == revision


def test_a_subscription_is_ended_by_another_thread(hf: Client) -> None:
    kinds: list[ChangeKind] = []

    def follow(changes: Subscription) -> bool:
        kinds.extend(change.kind for change in changes)
        return True

    changes = hf.kv("settings").watch()
    with ThreadPoolExecutor(1) as threads:
        following = threads.submit(follow, changes.__enter__())
        # What is set before the state is read is a part of the state.
        wait_until(lambda: kinds == [ChangeKind.READY])
        hf.kv("settings").set("a", b"1")
        wait_until(lambda: len(kinds) == 2)
        changes.close()
        assert following.result(30)
    assert kinds == [ChangeKind.READY, ChangeKind.SET]


def test_patterns(hf: Client) -> None:
    hf.stream("project.1.chat").append(b"old")
    with hf.subscribe("project.*.chat", start_seq=1) as changes:
        hf.stream("project.2.chat").append(b"new")
        assert {next(changes).store for _ in range(2)} == {"project.1.chat", "project.2.chat"}
        hf.stream("project.1.chat").append_many([b"2", b"3", b"4"])
        for revision in range(2, 5):
            assert changes.revisions == {"project.1.chat": revision - 1, "project.2.chat": 1}
            assert next(changes).change.revision == revision
        saved = {"project.1.chat": 3, "project.2.chat": 1}
    with hf.subscribe("project.*.chat", start_revisions=saved, codec="json") as values:
        found = next(values)
        assert found.change.message is not None and found.change.message.value == 4
    with hf.watch("user.*") as changes:
        hf.kv("user.1").set("a", b"1")
        name, change = next(changes)
        assert (name, change.entry and change.entry.key) == ("user.1", "a")


def test_consumers(hf: Client) -> None:
    jobs = hf.stream("jobs")
    jobs.append_many([b"%d" % number for number in range(10)])
    with jobs.consumer("workers", ack_wait_seconds=30) as consumer:
        first, second = consumer.fetch(2)
        assert first.ack() and second.nak()
        assert consumer.ack(consumer.fetch(3)) == [True] * 3
        assert consumer.info().acked_count == 4
        done = []
        for delivery in consumer:
            assert delivery.ack()
            done.append(delivery.message.seq)
            if len(done) == 6:
                consumer.close()
        assert sorted(done) == list(range(5, 11))
        assert [each.name for each in jobs.consumers()] == ["workers"]
    assert consumer.delete()


def test_live_replicas_are_read_and_written_from_any_thread(hf: Client) -> None:
    seen: list[tuple[str, object]] = []
    with (
        hf.live_kv("settings", codec="json") as live,
        hf.live_kv("settings", codec="json") as other,
    ):
        end = other.on_change(lambda change: seen.append((change.key, other[change.key])))
        with ThreadPoolExecutor(4) as threads:
            list(threads.map(lambda n: live.__setitem__(f"k{n}", [n]), range(100)))
        live.save()
        assert live.unsaved == () and live.unsaved_count == 0
        wait_until(lambda: len(other) == 100)
        assert dict(other.items()) == dict(live) == {f"k{n}": [n] for n in range(100)}
        wait_until(lambda: len(seen) == 100)
        end()
        live.clear()
        live.save()
        wait_until(lambda: not other)
        assert len(seen) == 100
        refused: list[HoldfastError] = []

        def block(_: object) -> None:
            try:
                live.save()
            except BackgroundThreadError as error:
                refused.append(error)

        live.on_change(block)
        live["a"] = 1
        assert refused
    with pytest.raises(ConnectionFailedError):
        live["b"] = 2
    with hf.live_stream("notes", last=10) as notes:
        notes.append(b"1")
        notes.save()
        assert [message.value for message in notes] == [b"1"] and notes[-1].seq == 1
        notes.load()


def test_many_threads_share_a_client_and_their_writes_travel_together(hf: Client) -> None:
    notes = hf.stream("notes")

    def work(number: int) -> list[int | None]:
        own = hf.stream(f"own.{number}")
        own.append(b"x")
        return [notes.append(b"x").seq for _ in range(10)] + [own.head().last_seq]

    with ThreadPoolExecutor(32) as threads:
        found = list(threads.map(work, range(32)))
    assert sorted(seq for seqs in found for seq in seqs[:-1] if seq) == list(range(1, 321))
    assert all(seqs[:-1] == sorted(seqs[:-1], key=int) for seqs in found), "of each in order"  # type: ignore[arg-type]
    assert {seqs[-1] for seqs in found} == {1}

    def pipeline(_: int) -> list[int]:
        pending = [notes.append_async(b"y") for _ in range(63)]
        return [each.result().time for each in pending]

    with ThreadPoolExecutor(16) as threads:
        times = [time for times in threads.map(pipeline, range(16)) for time in times]
    # What was committed together has the same time.
    assert len(times) == 1008 and len(set(times)) < 250


def test_an_interrupt_ends_a_wait_and_loses_nothing(hf: Client) -> None:
    notes = hf.stream("notes")
    with notes.subscribe() as changes:
        waiting = threading.Event()

        def change() -> int:
            waiting.set()
            return next(changes).revision

        interrupting = interrupted_when(waiting.is_set)
        with pytest.raises(KeyboardInterrupt):
            change()
        interrupting.join()
        notes.append_many([b"1", b"2"])
        assert [next(changes).revision, next(changes).revision] == [1, 2]
    consumer = hf.stream("jobs").consumer("workers")
    waiting.clear()
    interrupting = interrupted_when(waiting.is_set)
    with pytest.raises(KeyboardInterrupt):
        waiting.set()
        consumer.fetch(max_wait_seconds=60)
    interrupting.join()


def test_an_interrupted_batch_is_stored_whole_or_not_at_all(hf: Client) -> None:
    stored = 0
    notes = hf.stream("notes")
    for _ in range(10):
        sent = threading.Event()
        interrupting = interrupted_when(sent.is_set)
        with pytest.raises(KeyboardInterrupt):
            while True:
                sent.set()
                notes.append_many([b"x"] * 50)
        interrupting.join()
        count = notes.head().count
        assert count % 50 == 0 and count >= stored
        stored = count


def test_a_timeout_is_that_of_the_call_or_of_the_client(connected: Callable[..., Client]) -> None:
    with connected() as hf:
        notes = hf.stream("notes")
        notes.append(b"x")
        with pytest.raises(OperationTimeoutError):
            notes.append(b"x", timeout_seconds=1e-9)
        with pytest.raises(OperationTimeoutError):
            notes.append_async(b"x").result(0)
    with connected(timeout_seconds=1e-9) as hf:
        notes = hf.stream("notes")
        for wait in (notes.head, lambda: list(notes.get_all())):
            with pytest.raises(OperationTimeoutError):
                wait()
        with pytest.raises(UnavailableError):
            next(notes.subscribe())
        with pytest.raises(UnavailableError):
            hf.servers()


def test_a_closed_client_says_so_and_may_be_closed_again(connected: Callable[..., Client]) -> None:
    hf = connected()
    notes = hf.stream("notes")
    changes = notes.subscribe().__enter__()
    hf.close()
    hf.close()
    assert list(changes) == []
    for call in (lambda: notes.append(b"x"), notes.head, lambda: list(notes.get_all())):
        with pytest.raises(ConnectionFailedError):
            call()


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_child_of_a_fork_connects_for_itself(
    hf: Client, connected: Callable[..., Client]
) -> None:
    notes = hf.stream("notes")
    notes.append(b"parent")
    child = os.fork()
    if not child:
        code = 1
        try:
            with hf:
                try:
                    notes.append(b"never")
                except ForkedError:
                    with connected() as own:
                        own.stream("notes").append(b"child")
                        code = 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    notes.append(b"parent")
    assert [message.value for message in notes.get_all()] == [b"parent", b"child", b"parent"]
