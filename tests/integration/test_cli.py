"""The commands against a running cluster, as a user and as a program call them."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.client import connect
from tests.support.holdfast_up import (
    DEADLINE_SECONDS,
    RunningUp,
    read_line,
    run_holdfast,
    running_up,
    started_holdfast,
)

BINARY = bytes(range(256))


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningUp]:
    with running_up(tmp_path_factory.mktemp("up") / "data") as running:
        yield running


def test_bytes_come_back_as_they_went_in(cluster: RunningUp) -> None:
    stream = ("--nats", cluster.nats, "stream")
    assert run_holdfast(*stream, "append", "bytes", stdin=BINARY).returncode == 0
    assert run_holdfast(*stream, "get", "bytes", "1").stdout == BINARY
    cluster.output("stream", "append", "bytes", "-", stdin=b"\n")
    assert cluster.holdfast("stream", "read", "bytes", "--raw").stdout == BINARY + b"\n"
    cluster.output("kv", "set", "bytes", "key", stdin=BINARY)
    assert cluster.holdfast("kv", "get", "bytes", "key").stdout == BINARY
    found = cluster.json("stream", "get", "bytes", "1")
    assert base64.b64decode(found["value_base64"]) == BINARY
    assert "value" not in found


def test_values_of_any_size_come_from_files_and_go_to_files(
    cluster: RunningUp, tmp_path: Path
) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    source.write_bytes(BINARY * 12_000)
    ack = cluster.json("stream", "append", "files", "--file", str(source), "--header", "a=1")
    cluster.output("kv", "set", "files", "key", "--file", str(source))
    said = cluster.output("stream", "get", "files", f"{ack['seq']}", "--output", str(target))
    assert said == f"{target}  2.9 MiB\n"
    assert target.read_bytes() == source.read_bytes()
    assert cluster.holdfast("kv", "get", "files", "key").stdout == source.read_bytes()
    found = cluster.json("stream", "get", "files", "1")
    sha256 = hashlib.sha256(source.read_bytes()).hexdigest()
    assert found["large"] == {"size_bytes": 12_000 * 256, "sha256": sha256}
    assert "value_base64" not in found
    cluster.output("kv", "set", "files", "key", "-", stdin=source.read_bytes()[1:])
    assert cluster.holdfast("kv", "get", "files", "key").stdout == source.read_bytes()[1:]
    piped = run_holdfast(
        *("--nats", cluster.nats, "stream", "append", "piped", "--header", "b=2"),
        stdin=source.read_bytes(),
    )
    assert (piped.returncode, piped.stdout) == (0, b"1  synced\n"), piped.stderr
    assert cluster.holdfast("stream", "get", "piped", "1").stdout == source.read_bytes()
    little = tmp_path / "little"
    little.write_bytes(b"small")
    cluster.output("stream", "append", "files", "--file", str(little))
    small = cluster.json("stream", "get", "files", "2", "--output", str(target))
    assert (small["size_bytes"], target.read_bytes()) == (5, b"small")
    assert "a=1  <2.9 MiB, a large value" in cluster.output("stream", "read", "files")
    whole = cluster.holdfast("stream", "read", "files", "--raw").stdout
    assert whole == source.read_bytes() + b"small"


def test_headers_travel(cluster: RunningUp) -> None:
    cluster.output("stream", "append", "headers", "x", "--header", "a=1", "--header", "b=2=3")
    found = cluster.json("stream", "get", "headers", "1")
    assert found["headers"] == {"a": "1", "b": "2=3"}
    assert "a=1  b=2=3  x" in cluster.output("stream", "read", "headers")


def test_a_message_with_a_msg_id_is_stored_once(cluster: RunningUp) -> None:
    first = cluster.json("stream", "append", "once", "x", "--msg-id", "id-1")
    again = cluster.json("stream", "append", "once", "x", "--msg-id", "id-1")
    assert again == first | {"duplicate": True}


def test_expectations_are_kept_and_told(cluster: RunningUp) -> None:
    cluster.output("stream", "append", "expected", "x", "--expected-last-seq", "0")
    result = cluster.holdfast("stream", "append", "expected", "x", "--expected-last-seq", "0")
    assert result.returncode == 1
    assert b"expected last seq 0, but it is 1. Try: " in result.stderr
    cluster.output("kv", "set", "expected", "k", "1", "--expected-revision", "0")
    result = cluster.holdfast("kv", "set", "expected", "k", "2", "--expected-revision", "0")
    assert result.returncode == 1
    assert cluster.output("kv", "get", "expected", "k") == "1"


def test_each_line_of_stdin_becomes_a_message(cluster: RunningUp) -> None:
    lines = [f"line {number}" for number in range(5000)]
    appended = run_holdfast(
        *("--nats", cluster.nats, "--json", "stream", "append", "lines"),
        *("--lines", "--header", "from=a file"),
        stdin="\n".join(lines).encode(),
    )
    found = json.loads(appended.stdout)
    assert (found["first_seq"], found["last_seq"]) == (1, 5000)
    rows = cluster.output("--json", "stream", "read", "lines").splitlines()
    messages = [json.loads(row) for row in rows]
    assert [one["value"] for one in messages] == lines
    assert {one["headers"]["from"] for one in messages} == {"a file"}


def test_long_lines_that_share_no_frame_are_all_stored(cluster: RunningUp) -> None:
    lines = [character * 700_000 for character in "abc"]
    found = cluster.json("stream", "append", "long", "--lines", stdin="\n".join(lines).encode())
    assert found["last_seq"] == 3
    assert cluster.output("stream", "get", "long", "3") == lines[2]


def test_no_lines_store_nothing(cluster: RunningUp) -> None:
    found = cluster.json("stream", "append", "nothing", "--lines")
    assert found == {"first_seq": None, "last_seq": None, "durability": None}


def test_read_takes_a_range_the_last_and_a_limit(cluster: RunningUp) -> None:
    cluster.output("stream", "append", "range", "--lines", stdin=b"a\nb\nc\nd\ne")

    def read(*options: str) -> str:
        return cluster.output("stream", "read", "range", "--raw", *options)

    assert read() == "abcde"
    assert read("--start", "2", "--end", "4") == "bcd"
    assert read("--last", "2") == "de"
    assert read("--limit", "3") == "abc"
    assert read("--start", "6") == ""


def test_dead_letters_are_listed_and_requeued(cluster: RunningUp) -> None:
    async def give_up() -> None:
        async with connect(cluster.nats) as hf:
            jobs = hf.stream("jobs")
            await jobs.append_many([b"a", b"b"])
            worker = jobs.consumer("workers", dead_letter="jobs.dead")
            assert [await each.term() for each in await worker.fetch(2)] == [True, True]

    asyncio.run(give_up())
    lines = cluster.output("stream", "dead-letters", "jobs", "workers", "--json").splitlines()
    assert [json.loads(line)["stream_seq"] for line in lines] == [1, 2]
    assert cluster.json("stream", "requeue", "jobs", "workers", "2")["seqs"] == [3]
    assert cluster.output("stream", "requeue", "jobs", "workers", "--all") == "1 requeued\n"
    assert cluster.output("stream", "dead-letters", "jobs", "workers") == ""
    assert cluster.holdfast("stream", "requeue", "jobs", "workers", "9").returncode == 1
    assert cluster.holdfast("stream", "dead-letters", "jobs", "nobody").returncode == 1


def test_delete_takes_single_messages_and_delete_all_the_rest(cluster: RunningUp) -> None:
    cluster.output("stream", "append", "deleted", "--lines", stdin=b"a\nb\nc\nd\ne")
    assert cluster.json("stream", "delete", "deleted", "2", "4")["deleted"] == 2
    assert cluster.json("stream", "delete", "deleted", "2")["deleted"] == 0
    assert cluster.output("stream", "read", "deleted", "--raw") == "ace"
    assert cluster.json("stream", "delete-all", "deleted", "--end", "3", "--yes")["deleted"] == 2
    assert cluster.output("stream", "read", "deleted", "--raw") == "e"
    assert cluster.output("stream", "delete-all", "deleted", "--yes") == "1 deleted\n"
    assert cluster.json("stream", "append", "deleted", "f")["seq"] == 6
    assert cluster.json("stream", "destroy", "deleted", "--yes")["destroyed"] is True
    assert cluster.json("stream", "append", "deleted", "g")["seq"] == 1
    cluster.output("kv", "set", "deleted", "key", "value")
    assert cluster.output("kv", "destroy", "deleted", "--yes") == "kv 'deleted' is destroyed\n"
    assert cluster.holdfast("kv", "destroy", "deleted", "--yes").returncode == 1


def test_delete_all_asks_first(cluster: RunningUp) -> None:
    cluster.output("stream", "append", "asked", "x")
    for answer, code in ((b"", 1), (b"n\n", 1), (b"y\n", 0)):
        assert cluster.json("stream", "info", "asked")["count"] == 1
        result = cluster.holdfast("stream", "delete-all", "asked", stdin=answer)
        assert result.returncode == code
        assert b"Delete everything up to seq 1 in stream 'asked' (1 messages" in result.stderr
    assert cluster.json("stream", "info", "asked")["count"] == 0


def test_what_is_missing_ends_with_1_and_nothing_on_stdout(cluster: RunningUp) -> None:
    for command in (["kv", "get", "settings", "absent"], ["stream", "get", "absent", "1"]):
        result = run_holdfast("--nats", cluster.nats, *command)
        assert (result.returncode, result.stdout) == (1, b"")
        assert b"Try: holdfast" in result.stderr


def test_the_history_of_a_key_is_printed_and_read_at_a_revision(cluster: RunningUp) -> None:
    assert cluster.json("kv", "config", "past", "--history", "3")["history"] == 3
    revisions = [cluster.json("kv", "set", "past", "k", text)["revision"] for text in "ab"]
    cluster.output("kv", "delete", "past", "k")
    lines = cluster.output("--json", "kv", "history", "past", "k").splitlines()
    told = [json.loads(line) for line in lines]
    assert [each["change"] for each in told] == ["set", "set", "delete"]
    assert cluster.output("kv", "get", "past", "k", "--revision", str(revisions[0])) == "a"
    assert cluster.holdfast("kv", "get", "past", "k").returncode == 1
    assert cluster.holdfast("kv", "history", "past", "never").returncode == 1


def test_keys_are_listed_by_prefix_in_order(cluster: RunningUp) -> None:
    for key in ("b", "a/2", "a/1", "ä", "two\nlines"):
        cluster.output("kv", "set", "keys", key, "x")
    assert cluster.output("kv", "keys", "keys", "a/") == "a/1\na/2\n"
    assert "two\\nlines\n" in cluster.output("kv", "keys", "keys")
    assert cluster.json("kv", "delete", "keys", "b")["deleted"] == 1
    assert cluster.json("kv", "delete", "keys", "b")["deleted"] == 0


def test_stores_are_listed_with_their_owners(cluster: RunningUp) -> None:
    cluster.output("stream", "append", "listed.one", "x")
    cluster.output("kv", "set", "listed.two", "k", "x")
    rows = cluster.json("stores", "listed.")["stores"]
    assert [(row["kind"], row["name"]) for row in rows] == [
        ("stream", "listed.one"),
        ("kv", "listed.two"),
    ]
    assert {row["server"] for row in rows} <= {"s1", "s2"}
    assert cluster.output("stream", "ls", "listed.", "--names") == "listed.one\n"
    assert [row["name"] for row in cluster.json("kv", "ls", "listed.")["kvs"]] == ["listed.two"]
    assert "listed.one" in cluster.output("stores")
    assert len(cluster.json("stores", "--limit", "1")["stores"]) == 1


def test_details_of_stores_are_asked_of_their_owners(cluster: RunningUp) -> None:
    cluster.output("stream", "append", "detailed.one", "--lines", stdin=b"a\nb")
    cluster.output("kv", "set", "detailed.two", "k", "x")
    rows = cluster.json("stores", "detailed.", "--details", "--sort", "count")["stores"]
    assert [(row["name"], row["count"], row["tier"]) for row in rows] == [
        ("detailed.one", 2, "hot"),
        ("detailed.two", 1, "hot"),
    ]
    assert all(row["time"] > 1_700_000_000_000 and row["bytes"] for row in rows)
    refused = cluster.holdfast("stores", "--sort", "lag")
    assert refused.returncode == 2
    assert b"needs --details or --bucket" in refused.stderr


def test_counts_and_last_changes_are_listed_without_asking_the_owners(cluster: RunningUp) -> None:
    cluster.output("stream", "append", "counted.one", "--lines", stdin=b"a\nb")
    cluster.output("kv", "set", "counted.two", "k", "x")
    deadline_at = time.monotonic() + 60
    while True:
        rows = cluster.json("stores", "counted.", "--sort", "count")["stores"]
        if all(row["count"] for row in rows):
            break
        assert time.monotonic() < deadline_at, rows
        time.sleep(0.2)
    assert [(row["name"], row["count"]) for row in rows] == [("counted.one", 2), ("counted.two", 1)]
    assert all(row["time"] > 1_700_000_000_000 for row in rows)
    latest = cluster.json("stores", "counted.", "--sort", "time")["stores"]
    assert [row["name"] for row in latest] == ["counted.two", "counted.one"]
    assert "last change" in cluster.output("stores", "counted.")


def test_all_parts_of_a_cluster_are_seen(cluster: RunningUp) -> None:
    found = cluster.json("servers")
    assert [row["server"] for row in found["servers"]] == ["s1", "s2"]
    assert "coordinator" in [part["kind"] for part in found["parts"]]
    report = cluster.json("report", "--over", "0")
    assert [row["server"] for row in report["servers"]] == ["s1", "s2"]
    assert report["totals"]["servers_by_state"] == {"live": 2}
    for command in (("report", "--sort", "ops/s", "--over", "0"), ("top", "--once")):
        text = cluster.output(*command)
        assert "s1" in text and "total of 2" in text and "append ms" in text
    assert cluster.json("cost", "--over", "0")["currency"] == "USD"


def test_info_tells_where_a_stream_stands(cluster: RunningUp) -> None:
    cluster.output("stream", "append", "told", "--lines", stdin=b"a\nb")
    found = cluster.json("stream", "info", "told")
    assert (found["first_seq"], found["last_seq"], found["count"]) == (1, 2, 2)
    assert found["server"] in ("s1", "s2")
    assert "messages   2" in cluster.output("stream", "info", "told")


def test_tenants_are_listed_with_how_many_stores_they_have(cluster: RunningUp) -> None:
    for tenant in ("t-one", "t-two"):
        cluster.output("--tenant", tenant, "stream", "append", "notes", "x")
    cluster.output("--tenant", "t-two", "kv", "set", "settings", "k", "v")
    rows = {row["tenant"]: row for row in cluster.json("tenants")["tenants"]}
    # The sizes of open stores are not told for tenants without a quota.
    nothing = {"bytes": 0, "quota": {}, "open_stores": None, "uploads": None}
    assert rows["t-one"] == {"tenant": "t-one", "streams": 1, "kvs": 0, **nothing}
    assert rows["t-two"] == {"tenant": "t-two", "streams": 1, "kvs": 1, **nothing}
    assert "t-two" in cluster.output("tenants")


def test_tail_prints_history_then_what_happens_and_ends_with_130_on_ctrl_c(
    cluster: RunningUp,
) -> None:
    cluster.output("stream", "append", "tailed", "old")
    with started_holdfast(
        *("--nats", cluster.nats, "--json", "stream", "tail", "tailed", "--start", "1"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert json.loads(read_line(process))["value"] == "old"
        cluster.output("stream", "append", "tailed", "new")
        change = json.loads(read_line(process))
        assert (change["change"], change["seq"], change["value"]) == ("set", 2, "new")
        cluster.output("stream", "delete", "tailed", "1")
        assert json.loads(read_line(process))["seqs"] == [1]
        process.send_signal(signal.SIGINT)
        assert process.wait(DEADLINE_SECONDS) == 130
        assert process.stderr is not None
        assert process.stderr.read() == b""


def test_watch_prints_the_state_then_ready_then_what_happens(cluster: RunningUp) -> None:
    cluster.output("kv", "set", "watched", "a", "1")
    with started_holdfast(
        *("--nats", cluster.nats, "--json", "kv", "watch", "watched", "--limit", "4"),
        stdout=subprocess.PIPE,
    ) as process:
        assert json.loads(read_line(process))["key"] == "a"
        assert json.loads(read_line(process))["change"] == "ready"
        cluster.output("kv", "set", "watched", "b", "2")
        assert json.loads(read_line(process))["value"] == "2"
        cluster.output("kv", "delete", "watched", "a")
        assert json.loads(read_line(process))["keys"] == ["a"]
        assert process.wait(DEADLINE_SECONDS) == 0


def test_a_reader_that_leaves_early_ends_a_command_quietly(cluster: RunningUp) -> None:
    cluster.output("stream", "append", "piped", "--lines", stdin=b"x" * 100 + b"\n" * 20_000)
    with started_holdfast(
        *("--nats", cluster.nats, "stream", "read", "piped"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        read_line(process)
        assert process.stdout is not None
        process.stdout.close()
        assert process.wait(DEADLINE_SECONDS) == 0
        assert process.stderr is not None
        assert process.stderr.read() == b""


def test_lines_are_stored_as_they_come_and_ctrl_c_ends_at_once(cluster: RunningUp) -> None:
    with started_holdfast(
        *("--nats", cluster.nats, "stream", "append", "slow", "--lines"),
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        with started_holdfast(
            *("--nats", cluster.nats, "stream", "tail", "slow", "--start", "1", "--raw"),
            *("--limit", "1"),
            stdout=subprocess.PIPE,
        ) as follower:
            assert process.stdin is not None
            process.stdin.write(b"the first line\n")
            process.stdin.flush()
            assert read_line(follower) == "the first line"
            assert follower.wait(DEADLINE_SECONDS) == 0
        process.send_signal(signal.SIGINT)
        assert process.wait(DEADLINE_SECONDS) == 130
        assert process.stderr is not None
        assert process.stderr.read() == b""


def test_an_unreachable_nats_is_one_line_and_what_to_try() -> None:
    result = run_holdfast("--nats", "nats://127.0.0.1:1", "servers")
    assert (result.returncode, result.stdout) == (1, b"")
    [line] = result.stderr.decode().splitlines()
    assert line.startswith("Error: cannot reach NATS at nats://127.0.0.1:1")
    assert "Try: holdfast up" in line


def test_no_coordinator_is_one_line_and_what_to_try(cluster: RunningUp) -> None:
    result = cluster.holdfast("--prefix", "elsewhere", "--timeout", "1", "servers")
    assert (result.returncode, result.stdout) == (1, b"")
    [line] = result.stderr.decode().splitlines()
    assert "no coordinator answers on prefix 'elsewhere'. Try: " in line


def test_a_health_check_of_one_server_fails_unless_it_is_live(cluster: RunningUp) -> None:
    live = cluster.holdfast("--json", "servers", "--live", "s1")
    assert live.returncode == 0
    [row] = json.loads(live.stdout)["servers"]
    assert (row["server"], row["state"]) == ("s1", "live")
    unknown = cluster.holdfast("--json", "servers", "--live", "s9")
    assert (unknown.returncode, unknown.stdout) == (1, b"")
    error = json.loads(unknown.stderr)
    assert error["error"] == "not_live"
    assert error["message"] == "server 's9' is not live, but unknown to the coordinator"


def test_limits_are_shown_and_changed(cluster: RunningUp) -> None:
    shown = cluster.json("stream", "config", "limited")
    assert (shown["max_messages"], shown["discard"]) == (None, "old")
    changed = cluster.json(
        "stream", "config", "limited", "--max-messages", "2", "--description", "ours"
    )
    assert (changed["max_messages"], changed["description"]) == (2, "ours")
    cluster.output("stream", "append", "limited", "--lines", stdin=b"a\nb\nc")
    assert cluster.output("stream", "read", "limited", "--raw") == "bc"
    text = cluster.output("stream", "config", "limited", "--max-messages", "none")
    assert ["max_messages", "-"] in [line.split() for line in text.splitlines()]
    cluster.output("kv", "config", "limited", "--max-message-bytes", "5")
    refused = cluster.holdfast("kv", "set", "limited", "key", "too long")
    assert refused.returncode == 1
    assert b"max_message_bytes is 5; this would make it 11" in refused.stderr
    cluster.output("kv", "set", "limited", "k", "v", "--ttl", "0.001")
    assert cluster.holdfast("kv", "get", "limited", "k").returncode == 1


def test_subjects_select_list_and_purge_messages(cluster: RunningUp) -> None:
    orders = ("orders.eu.1", "orders.us.1", "orders.eu.2", "orders.eu.1")
    for number, subject in enumerate(orders, start=1):
        cluster.output("stream", "append", "subjects", f"{number}", "--subject", subject)
    lines = ("stream", "append", "subjects", "--lines", "--subject", "lines")
    cluster.output(*lines, stdin=b"5\n6\n")

    def read(*arguments: str) -> list[dict[str, str]]:
        said = cluster.output("--json", "stream", "read", "subjects", *arguments)
        return [json.loads(line) for line in said.splitlines()]

    found = read("--subject", "orders.eu.*", "--subject", "lines", "--start", "3")
    assert [(row["value"], row["subject"]) for row in found] == [
        *(("3", "orders.eu.2"), ("4", "orders.eu.1"), ("5", "lines"), ("6", "lines"))
    ]
    assert cluster.output("stream", "read", "subjects", "--limit", "1").endswith("orders.eu.1  1\n")
    tail = ("stream", "tail", "subjects", "--start", "1", "--limit", "2", "--raw")
    assert cluster.output(*tail, "--subject", "orders.eu.1") == "14"
    listed = cluster.json("stream", "subjects", "subjects", "orders.eu.>")
    assert listed["subjects"] == [
        {"subject": "orders.eu.1", "count": 2, "first_seq": 1, "last_seq": 4},
        {"subject": "orders.eu.2", "count": 1, "first_seq": 3, "last_seq": 3},
    ]
    names = cluster.output("stream", "subjects", "subjects", "--names", "--limit", "2")
    assert names == "lines\norders.eu.1\n"
    purge = ("stream", "purge", "subjects", "--subject")
    assert cluster.holdfast(*purge, "orders.>", stdin=b"n\n").returncode == 1
    assert cluster.json(*purge, "orders.>", "--end", "2", "--yes")["deleted"] == 2
    assert cluster.output(*purge, "lines", "--keep", "1", "--yes") == "1 deleted\n"
    assert [row["value"] for row in read()] == ["3", "4", "6"]
    for wrong in (("read", "--subject", "a..b"), ("read", "--last", "1", "--subject", "a")):
        assert cluster.holdfast("stream", wrong[0], "subjects", *wrong[1:]).returncode == 2
