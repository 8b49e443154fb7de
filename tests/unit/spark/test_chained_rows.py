"""Chains of hashes on their way into a table: every row has its leaf, and the chain after it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner, Result
from deltalake import DeltaTable

from holdfast.cli.command import holdfast
from holdfast.protocol import frames
from holdfast.protocol.chain.hashing import ChainLink, leaf_of
from holdfast.protocol.changes import (
    CHANGE_CLEAR,
    CHANGE_DELETE_ENTRIES,
    CHANGE_DELETE_MESSAGES,
    CHANGE_SET_MESSAGE,
    CHANGE_TRIM,
)
from holdfast.protocol.names import StoreId, TenantName
from holdfast.shared_fs.archive.chain_reading import TableChains
from holdfast.shared_fs.archive.table_chain import COLUMNS, AckOutcome, TableChain
from holdfast.shared_fs.archive.table_location import TableLocation, default_table
from holdfast.shared_fs.bucket_log.bucket_log import list_logs, slot_key
from holdfast.shared_fs.erasure.sought import Sought
from holdfast.shared_fs.store_file.encrypted.encrypted_values import Box
from holdfast.spark.export import export as exporting
from holdfast.spark.export import tasks
from holdfast.spark.export.compaction import MergeJob, merge
from holdfast.spark.export.export import ExportReport
from holdfast.spark.rows import image_rows
from holdfast.spark.tables import table, writing
from holdfast.spark.tables.erasing import erase_rows
from holdfast.spark.tables.table import ChangesTable
from tests.support.bucket_world import BucketWorld, entry, message, stream
from tests.support.chained_world import (
    BLOCK,
    CHAIN,
    LARGE_BODY,
    LEDGER,
    RATES,
    every_form,
    forge,
    ledger,
    link,
)


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[BucketWorld]:
    """A bucket, and exports of it that run on this thread instead of executors of Spark."""

    def run_here(_: Any, __: str, task: Any, job: Any, tasks: Any, ___: Any) -> list[Any]:
        return [task(job, one) for one in tasks]

    monkeypatch.setattr(exporting, "run_job", run_here)
    monkeypatch.setattr(exporting, "parallelism", lambda _: 2)
    (tmp_path / "stores").mkdir()
    made = BucketWorld(tmp_path / "stores", f"file://{tmp_path}/bucket")
    yield made
    made.close()


def export(world: BucketWorld, **options: Any) -> ExportReport:
    nothing: Any = None
    report = exporting.export(nothing, world.url, **options)
    assert report.damaged == []
    return report


def location(world: BucketWorld) -> TableLocation:
    return TableLocation(default_table(world.url))


def checked(world: BucketWorld, store: StoreId, *kept: ChainLink) -> TableChain:
    return TableChains(location(world)).check(store, kept)


def rows_of(world: BucketWorld) -> list[dict[str, Any]]:
    found = DeltaTable(location(world).uri).to_pyarrow_table().to_pylist()
    return sorted(found, key=lambda row: (row["store"], row["run"], row["revision"]))


def rewrite(world: BucketWorld, change: Callable[[dict[str, Any]], dict[str, Any] | None]) -> None:
    """Somebody changes rows of the table, and everything that describes its files."""
    folder = location(world).folder
    for path in [*folder.rglob("*.parquet")]:
        read = pq.read_table(path, partitioning=None)
        rows = [row for each in read.to_pylist() if (row := change(each)) is not None]
        pq.write_table(pa.Table.from_pylist(rows, read.schema), path)


def of(seq: int, /, **fields: Any) -> Callable[[dict[str, Any]], dict[str, Any]]:
    def changed(row: dict[str, Any]) -> dict[str, Any]:
        is_it = row["operation"] == "set" and row["seq"] == seq
        return row | fields if is_it else row

    return changed


@pytest.mark.parametrize("large_bytes", [0, len(LARGE_BODY)])
def test_every_message_has_its_leaf_and_the_chain_of_its_ack(
    world: BucketWorld, large_bytes: int
) -> None:
    links = every_form(world)
    world.publish()
    export(world, large_bytes=large_bytes)
    report = checked(world, LEDGER, *links)
    assert (report.problems, report.unproven) == ((), ())
    assert [(each.outcome, each.since) for each in report.acks] == [(AckOutcome.MATCHED, 2)] * 6
    sets = {row["seq"]: row for row in rows_of(world) if row["operation"] == "set"}
    assert [(seq, sets[seq]["chain"]) for seq in range(2, 8)] == links
    assert sets[7]["value"] == (LARGE_BODY if large_bytes else None)
    assert sets[1]["leaf"] is None
    assert sets[4]["value"] == b"compressed " * 50
    assert sets[4]["stored_value"] not in (None, sets[4]["value"])
    assert sets[5]["stored_headers"] == BLOCK


def sound(world: BucketWorld, store: StoreId, *links: ChainLink) -> TableChain:
    report = checked(world, store, *links)
    assert (report.problems, report.unproven, report.is_sound) == ((), (), True)
    return report


def operations(world: BucketWorld) -> list[tuple[str, int | None]]:
    return [(row["operation"], row["seq"]) for row in rows_of(world)]


def test_runs_go_on_with_the_chain_and_removed_messages_leave_their_leaves(
    world: BucketWorld,
) -> None:
    links = ledger(world, b"two", b"three")
    world.publish()
    export(world)
    links += ledger(world, b"four", b"five", b"six")
    # One that the table has, one that it never sees, and the last one.
    world.change(LEDGER, [CHANGE_DELETE_MESSAGES, [3, 5, 6]])
    world.publish()
    assert export(world).resets == 0
    report = sound(world, LEDGER, *links)
    assert [len(part.links) for part in report.parts] == [5]
    assert ("leaf", 5) in operations(world)
    assert ("leaf", 6) in operations(world)
    assert ("leaf", 3) not in operations(world)


def test_the_chain_of_a_kv_is_in_its_table_with_the_leaves_of_replaced_values(
    world: BucketWorld,
) -> None:
    world.change(RATES, entry("before", b"1"), CHAIN)
    links = []
    for key, value in (("eur", b"1"), ("usd", b"2"), ("eur", b"3"), ("gbp", b"4")):
        world.change(RATES, entry(key, value, {"by": "ada"}))
        links.append(link(world, RATES))
    world.change(RATES, [CHANGE_DELETE_ENTRIES, ["gbp"]])
    world.publish()
    export(world)
    world.change(RATES, entry("usd", b"5"), entry("usd", b"6"))
    links.append(link(world, RATES))
    world.publish()
    assert export(world).resets == 0
    report = sound(world, RATES, *links[1:])
    # Nothing of before the oldest value that stands is left.
    assert {each.outcome for each in checked(world, RATES, links[0]).acks} == {AckOutcome.MATCHED}
    assert len(report.parts) == 1
    world.change(RATES, [CHANGE_CLEAR])
    world.publish()
    export(world)
    world.change(RATES, entry("chf", b"7"))
    world.publish()
    export(world)
    sound(world, RATES, *links, link(world, RATES))


def test_what_came_and_went_between_two_exports_parts_the_chain(world: BucketWorld) -> None:
    first = ledger(world, b"two", b"three")
    world.publish()
    export(world)
    gone = ledger(world, b"four")
    world.change(LEDGER, [CHANGE_TRIM, 4])
    last = ledger(world, b"five", b"six")
    world.publish()
    export(world)
    report = checked(world, LEDGER, *first, *gone, *last)
    assert [(part.base.seq, part.told.seq) for part in report.parts] == [(1, 3), (4, 6)]
    found = {each.number: (each.outcome, each.since) for each in report.acks}
    assert found[3] == (AckOutcome.MATCHED, 2)
    # The base itself is known; it proves nothing of what was before.
    assert found[4] == (AckOutcome.MATCHED, None)
    assert found[6] == (AckOutcome.MATCHED, 5)
    beyond = checked(world, LEDGER, ChainLink(7, bytes(32)))
    assert (beyond.acks[0].outcome, beyond.is_sound) == (AckOutcome.BEYOND, False)
    before = checked(world, LEDGER, ChainLink(0, bytes(32)))
    assert before.acks[0].outcome is AckOutcome.BEFORE


def test_the_log_tells_the_chain_of_each_message_of_a_tick(world: BucketWorld) -> None:
    records = [
        world.change(LEDGER, message(1, b"before"), CHAIN, message(2, b"two"), message(3, b"3")),
        world.change(LEDGER, message(4, b"four"), message(5, b"five", {"a": "b"})),
    ]
    middle = link(world, LEDGER)
    log = world.log("s1", "i1", records)
    export(world)
    report = sound(world, LEDGER, middle)
    assert [number for number, _ in report.parts[0].links] == [2, 3, 4, 5]
    # The next run begins in the middle of the log, and the one after it reads a snapshot.
    log.put(log.prepare([world.change(LEDGER, message(6, b"six"), message(7, b"seven"))]))
    export(world)
    last = ledger(world, b"eight")
    world.publish()
    assert export(world).resets == 0
    sound(world, LEDGER, middle, *last)
    assert all(row["chain"] for row in rows_of(world) if row["seq"] in range(2, 9))


def test_the_log_of_a_kv_tells_the_chain_of_its_sets(world: BucketWorld) -> None:
    records = [
        world.change(RATES, CHAIN),
        world.change(RATES, entry("a", b"1"), entry("b", b"2"), entry("a", b"3")),
        world.change(RATES, [CHANGE_DELETE_ENTRIES, ["a"]]),
    ]
    world.log("s1", "i1", records)
    export(world)
    kept = link(world, RATES)._replace(seq=4)
    report = sound(world, RATES, kept)
    assert [number for number, _ in report.parts[0].links] == [2, 3, 4]


def test_no_row_of_the_log_is_lost_where_records_without_a_chain_follow_those_with_one(
    world: BucketWorld,
) -> None:
    told = world.change(LEDGER, CHAIN, message(1, b"one"))
    untold = world.change(LEDGER, message(2, b"two"), message(3, b"three"))
    batch = frames.decode_changes(untold.payloads[0])
    assert batch.chain is not None
    without = frames.encode_changes(*batch[:4])
    world.log("s1", "i1", [told], [untold._replace(payloads=[without])])
    assert export(world).rows == 4
    assert [seq for operation, seq in operations(world) if operation == "set"] == [1, 2, 3]


def test_a_log_that_gives_another_chain_than_it_tells_is_not_exported(world: BucketWorld) -> None:
    ledger(world, b"two")
    world.publish()
    export(world)
    honest = world.change(LEDGER, message(3, b"three"))
    record = world.change(LEDGER, message(4, b"four"))
    forged = record.payloads[0].replace(b"four", b"Four")
    world.log("s1", "i1", [honest], [record._replace(payloads=[forged])])
    nothing: Any = None
    report = exporting.export(nothing, world.url)
    [damaged] = report.damaged
    assert "does not give the chain that it tells" in damaged
    # What is before it is read in the next round.
    slots = [slot_key("s1", "i1", slot) for slot in list_logs(world.bucket)[0].slots]
    assert slots[-1] in damaged
    assert [row["seq"] for row in rows_of(world) if row["seq"] in (3, 4)] == [3]


def test_a_snapshot_whose_past_was_changed_is_not_exported(world: BucketWorld) -> None:
    """The forger has mended the chain, but the table knows what it was."""
    ledger(world, b"two", b"three")
    world.publish()
    export(world)
    forge(world, 3, b"Three")
    ledger(world, b"four")
    world.publish()
    nothing: Any = None
    report = exporting.export(nothing, world.url)
    assert "is not the one that the table has" in report.damaged[0]
    assert report.rows == 0


def test_a_box_in_a_snapshot_that_is_not_encrypted_does_not_stand_for_its_leaf(
    world: BucketWorld,
) -> None:
    ledger(world, b"two", b"three")
    execute = world.held[LEDGER].file._connection.execute
    leaf = leaf_of(3, world.time, b"three", {"salt": "s3"})
    box = Box(1, bytes(16), 1, bytes(16), leaf).packed()
    execute("UPDATE messages SET value = x'00', headers = ? WHERE seq = 3", (box,))
    world.publish()
    nothing: Any = None
    report = exporting.export(nothing, world.url)
    assert "its messages do not give its chain" in report.damaged[0]
    assert report.rows == 0


@pytest.mark.parametrize("value_bytes", [10, 900_000])
def test_a_store_with_a_wrong_chain_keeps_no_other_from_the_table(
    world: BucketWorld, value_bytes: int
) -> None:
    """Neither if both together fill a batch nor if it is larger than one."""
    others = stream("accounts")
    world.change(others, CHAIN, *[message(seq, b"other") for seq in range(1, 8186)])
    ledger(world, *[bytes(value_bytes)] * 10)
    chain = world.held[LEDGER].file.chain
    chain.go_back(chain.state._replace(value=bytes(32)))
    ledger(world, b"last")
    world.publish()
    nothing: Any = None
    report = exporting.export(nothing, world.url)
    [damaged] = report.damaged
    assert "do not give its chain" in damaged
    assert {row["store"] for row in rows_of(world)} == {others.name}


def test_a_store_that_is_made_anew_or_gets_its_chain_later_begins_a_new_one(
    world: BucketWorld,
) -> None:
    ledger(world, b"two", b"three")
    plain = stream("plain")
    world.change(plain, message(1, b"one"), message(2, b"two"))
    world.publish()
    export(world)
    world.held.pop(LEDGER).file.close()
    world.time += 5000
    world.create(LEDGER, epoch=2)
    world.change(LEDGER, CHAIN, *[message(seq, b"new %d" % seq) for seq in range(1, 6)])
    world.change(plain, CHAIN, message(3, b"three"))
    world.publish()
    # Only the one that is another store is read anew.
    assert export(world).resets == 1
    assert [part.base.seq for part in sound(world, LEDGER, link(world, LEDGER)).parts] == [0]
    assert [part.base.seq for part in sound(world, plain, link(world, plain)).parts] == [2]


CHANGED = {
    "value": (of(3, value=b"3"), "message 3 is not what it was: its columns do not give its leaf"),
    "headers": (of(3, headers=[("salt", "x")]), "message 3 is not what it was"),
    "time": (lambda row: of(3, time=row["time"].replace(year=2001))(row), "message 3 is not what"),
    "subject": (of(3, subject="a"), "message 3 is not what it was"),
    "leaf": (of(3, leaf=bytes(32)), "message 3 has another leaf than its columns give"),
    "no leaf": (of(3, leaf=None), "message 3 has no leaf in the table"),
    "chain": (of(3, chain=bytes(32)), "message 3 has another chain than the messages around it"),
    "row": (
        lambda row: None if row["seq"] == 3 else row,
        "its chain breaks between messages 2 and 4: some are missing",
    ),
    "compressed": (of(4, stored_value=b"x"), "message 4 is not what it was"),
    "shown": (of(4, value=b"other"), "message 4 is not what it was"),
    "block": (of(5, stored_headers=BLOCK + b"x"), "message 5 is not what it was"),
    "shown headers": (of(5, headers=[("user", "eve")]), "message 5 is not what it was"),
    "large": (of(7, large_bytes=1), "message 7 is not what it was"),
    "digest": (of(7, large_sha256="zz"), "message 7 is not what it was"),
    "absurd": (of(3, seq=-3), "its chain breaks between messages 2 and 4: some are missing"),
}


@pytest.mark.parametrize("what", CHANGED)
def test_a_changed_table_is_told_by_the_number_of_the_message(
    world: BucketWorld, what: str
) -> None:
    links = every_form(world)
    world.publish()
    export(world)
    change, told = CHANGED[what]
    rewrite(world, change)
    report = checked(world, LEDGER, *links)
    assert any(each.startswith(told) for each in report.problems), report.problems
    # Once, and nothing is said of those that are as they were.
    assert len(report.problems) == (2 if what == "no leaf" else 1), report.problems
    outcomes = {each.number: each.outcome for each in report.acks}
    assert outcomes[2] is AckOutcome.MATCHED
    # A told chain is no evidence: only what the values give is compared with what was kept.
    changes_values = what not in ("leaf", "chain")
    assert (outcomes[7] is AckOutcome.DIFFERS) == changes_values, outcomes


def test_a_forger_who_mends_leaves_and_chains_is_told_by_who_kept_an_ack(
    world: BucketWorld,
) -> None:
    links = ledger(world, b"two", b"three", b"four")
    world.publish()
    export(world)
    forge(world, 3, b"Three")
    ledger(world, b"five")
    location(world).folder.rename(location(world).folder.with_name("honest"))
    world.publish()
    export(world)
    assert checked(world, LEDGER).problems == ()
    found = {each.number: each.outcome for each in checked(world, LEDGER, *links).acks}
    assert found == {
        2: AckOutcome.MATCHED, 3: AckOutcome.DIFFERS, 4: AckOutcome.DIFFERS,
    }  # fmt: skip


@pytest.mark.parametrize("is_kv", [False, True])
def test_an_erasure_keeps_the_leaf_and_never_the_value(world: BucketWorld, is_kv: bool) -> None:
    links = ledger(world, b"two", b"secret three", b"four")
    world.change(RATES, CHAIN)
    for key, value in (("a", b"1"), ("secret", b"secret 2"), ("secret", b"secret 3"), ("b", b"4")):
        world.change(RATES, entry(key, value))
    world.publish()
    export(world)
    store, place = (RATES, "secret") if is_kv else (LEDGER, 3)
    epoch = world.held[store].epoch
    done = erase_rows(location(world), Sought(TenantName("acme"), {store: epoch}), place)
    assert done.erased_rows == 1
    assert done.left == []
    folder = location(world).folder
    values = [row["value"] for row in rows_of(world) if row["store"] == store.name]
    assert not any(value is not None and value.startswith(b"secret") for value in values)
    log = b"".join(path.read_bytes() for path in folder.rglob("*.json"))
    # As the greatest key of a file.
    assert (b"secret" in log) != is_kv
    sound(world, LEDGER, *links)
    sound(world, RATES, link(world, RATES))
    [left] = [row for row in rows_of(world) if row["operation"] == "leaf"][-1:]
    told = {name for name, value in left.items() if value is not None}
    assert told == {
        *("tenant", "tenant_group", "date", "store", "kind", "operation", "epoch", "revision"),
        *("seq", "time", "run", "source", "leaf", "chain"),
    }
    # The store goes on, also in the table.
    ledger(world, b"five")
    world.publish()
    assert export(world).resets == 0
    sound(world, LEDGER, *links, link(world, LEDGER))


def test_files_of_a_table_are_merged_with_their_chains(world: BucketWorld) -> None:
    links: list[ChainLink] = []
    for number in range(3):
        links += ledger(world, b"v%d" % number)
        world.publish()
        export(world)
    found = ChangesTable(location(world))
    job = MergeJob(found.location, found.layout, 1 << 20)
    merged = merge(job, found.files())
    found.replace(merged.replaced, merged.added)
    assert len(found.files()) == 1
    sound(world, LEDGER, *links)


@pytest.fixture
def earlier(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    """As long as it is not undone, exports are those of a version without chains."""
    columns = table.FILE_SCHEMA.names
    known = columns[: columns.index("leaf")]
    schema = pa.schema([table.FILE_SCHEMA.field(name) for name in known])

    with pytest.MonkeyPatch.context() as before:
        before.setattr(writing, "FILE_SCHEMA", schema)
        of_table = [each for each in table.TABLE_SCHEMA if each.name not in COLUMNS]
        before.setattr(writing, "TABLE_SCHEMA", pa.schema(of_table))
        before.setattr(table, "TABLE_SCHEMA", pa.schema(of_table))
        before.setattr(tasks, "FILE_SCHEMA", schema)
        before.setattr(image_rows, "ImageChain", lambda *_, **__: None)
        yield before


def test_a_table_of_an_earlier_version_gets_the_chain_with_the_next_export(
    world: BucketWorld, earlier: pytest.MonkeyPatch
) -> None:
    links = every_form(world)
    world.publish()
    export(world)
    assert "leaf" not in DeltaTable(location(world).uri).to_pyarrow_table().column_names
    assert checked(world, LEDGER).parts == ()
    earlier.undo()
    links += ledger(world, b"eight")
    world.publish()
    # Its messages are read anew, once: earlier rows do not tell how they were stored.
    assert export(world).resets == 1
    report = sound(world, LEDGER, *links)
    assert [len(part.links) for part in report.parts] == [7]
    links += ledger(world, b"nine")
    world.publish()
    assert export(world).resets == 0
    sound(world, LEDGER, *links)
    found = ChangesTable(location(world))
    job = MergeJob(found.location, found.layout, 1 << 20)
    merged = merge(job, found.files())
    found.replace(merged.replaced, merged.added)
    sound(world, LEDGER, *links)
    erase_rows(location(world), Sought(TenantName("acme"), {LEDGER: 1}), 3)
    sound(world, LEDGER, *links)


def verify(world: BucketWorld, *arguments: str) -> Result:
    return CliRunner().invoke(
        holdfast, ["verify", "--tenant", "acme", *arguments], prog_name="holdfast"
    )


def ack(kept: ChainLink) -> str:
    return f"--ack={kept.seq}:{kept.chain.hex()}"


def test_verify_compares_snapshot_log_and_table_and_finds_kept_acks(world: BucketWorld) -> None:
    links = ledger(world, b"two", b"three")
    world.publish()
    export(world)
    uri = location(world).url
    log = world.log("s1", "i1", [world.change(LEDGER, message(4, b"four"))])
    del log
    result = verify(world, "ledger", "--bucket", world.url, *map(ack, links), "--json")
    [row] = json.loads(result.stdout)["stores"]
    assert (result.exit_code, row["chain"], row["table"], row["problems"]) == (
        0, "sound", "sound", [],
    )  # fmt: skip
    assert row["acks"] == [
        {"seq": each.seq, "in": tier, "outcome": "matched", "since": 2}
        for tier in ("its table", "its snapshot")
        for each in links
    ]
    # The table alone suffices, and shows the same to a reader.
    result = verify(world, "--table", uri, "--all")
    assert (result.exit_code, "sound" in result.stdout) == (0, True)
    result = verify(world, "ledger", "--table", uri, ack(links[1]))
    assert (result.exit_code, "matched" in result.stdout) == (0, True)
    result = verify(world, "ledger", "--table", uri, ack(ChainLink(9, bytes(32))))
    assert (result.exit_code, "ack 9: nothing is there" in result.stderr) == (1, True)

    rewrite(world, of(3, value=b"3"))
    result = verify(world, "ledger", "--bucket", world.url, *map(ack, links))
    assert result.exit_code == 1
    assert "its table: message 3 is not what it was" in result.stderr
    assert "message 3 of its snapshot is not that of its table" in result.stderr
    assert "ack 3: its table has another chain" in result.stderr
    assert "ack 2" not in result.stderr


def test_verify_refuses_acks_that_it_cannot_ask_for(world: BucketWorld) -> None:
    ledger(world, b"two")
    world.publish()
    export(world)
    uri = location(world).url
    for arguments, told in (
        (["ledger", "--table", uri, "--ack", "3:abc"], "not a seq, a colon"),
        (["ledger", "--table", uri, "--ack", f"0:{'0' * 64}"], "not a seq, a colon"),
        (["--all", "--table", uri, "--ack", f"1:{'0' * 64}"], "--ack is of one STORE"),
        (["ledger", "--table", f"{uri}/nowhere"], "nowhere"),
        (["ledger"], "give --data, --bucket or --table"),
    ):
        result = verify(world, *arguments)
        assert result.exit_code in (1, 2), arguments
        assert told in result.stderr, result.stderr


def test_the_chain_of_encrypted_messages_is_followed_without_a_key(world: BucketWorld) -> None:
    leaf = hashlib.sha256(b"a leaf").digest()
    ledger(world, b"two")
    box = Box(1, bytes(16), 7, bytes(16), leaf).packed()
    world.change(LEDGER, [CHANGE_SET_MESSAGE, 3, b"?", box])
    links = [link(world, LEDGER), *ledger(world, b"four")]
    world.publish()
    export(world)
    report = checked(world, LEDGER, *links)
    assert (report.problems, report.unproven, report.believed) == ((), (3,), 1)
    result = verify(world, "ledger", "--bucket", world.url, "--json", *map(ack, links))
    [row] = json.loads(result.stdout)["stores"]
    assert (result.exit_code, row["table"], row["unproven"], row["problems"]) == (
        0, "links", [3], [],
    )  # fmt: skip
