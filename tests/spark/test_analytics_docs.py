"""docs/analytics.md: its recipes run, and its table is the table. The report of docs/tutorial.md
runs too."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.functions import expr

from holdfast.protocol.limits import MAX_CHANGE_LOG_ROWS
from holdfast.shared_fs.archive.table_location import default_table
from holdfast.spark.export.export import export
from holdfast.spark.rows import rows
from holdfast.spark.state import read_table
from holdfast.spark.tables.table import TABLE_SCHEMA
from tests.support.bucket_world import BucketWorld, entry, kv, message, stream
from tests.support.chained_world import CHAIN as CHAINED
from tests.support.chained_world import RATES, every_form

DOCUMENT = (Path(__file__).parents[2] / "docs" / "analytics.md").read_text()
CHAIN = (Path(__file__).parents[2] / "docs" / "chain.md").read_text()
TUTORIAL = (Path(__file__).parents[2] / "docs" / "tutorial.md").read_text()
TYPES = {
    pa.string(): "string",
    pa.date32(): "date",
    pa.int64(): "bigint",
    pa.timestamp("us", tz="UTC"): "timestamp",
    pa.map_(pa.string(), pa.string()): "map<string, string>",
    pa.binary(): "binary",
}


def test_the_columns_and_operations_are_those_of_the_table() -> None:
    section = DOCUMENT[DOCUMENT.index("## The table") : DOCUMENT.index("## What an export")]
    columns = re.findall(r"^\| `(\w+)` \| ([a-z<>, ]+) \|", section, re.MULTILINE)
    expected = [(field.name, TYPES[field.type]) for field in TABLE_SCHEMA]
    assert columns[: len(expected)] == expected
    operations = re.findall(r"^\| `(\w+)` \| [^|]*\|$", section, re.MULTILINE)[-9:]
    assert operations == [
        *(rows.SET, rows.DELETE, rows.TRIM, rows.CLEAR, rows.RESET, rows.DROP, rows.CONFIGURE),
        *(rows.LEAF, rows.BASE),
    ]
    assert f"{MAX_CHANGE_LOG_ROWS:,} deletes" in re.sub(r"\s+", " ", section)


def test_the_recipes_run(
    spark: SparkSession, world: BucketWorld, capsys: pytest.CaptureFixture[str]
) -> None:
    patches = stream("project.42.patches")
    world.change(patches, message(1, b'{"user": "ada"}'), message(2, b'{"user": "bob"}'))
    world.change(kv("settings"), entry("theme", b"dark"))
    every_form(world)
    for key in ("eur", "usd", "eur"):
        world.change(RATES, CHAINED, entry(key, b"1", {"by": "ada", "At": "1"}))
    world.publish()
    # The first recipe exports it.
    names: dict[str, Any] = {"bucket": world.url, "table": default_table(world.url)}
    recipes = re.findall(r"^```python\n(.*?)^```", DOCUMENT, re.MULTILINE | re.DOTALL)
    assert len(recipes) >= 6
    for recipe in recipes:
        if "nats" not in recipe:
            exec(recipe, names)  # noqa: S102
    printed = capsys.readouterr().out
    assert "ada" in printed and "project.42.patches" in printed
    assert names["wrong"].count() == 0
    assert spark.table("links").where("operation = 'set'").count() == 6 + 2
    [recipe] = [each for each in recipes if "TEMP VIEW links" in each]
    honest = read_table(spark, default_table(world.url))
    for column, wrong_leaf in (("value", True), ("leaf", True), ("chain", False)):
        forged = f"CASE WHEN seq = 3 AND operation = 'set' THEN X'00' ELSE {column} END"
        changed = honest.withColumn(column, expr(forged))
        names["read_table"] = lambda *_, found=changed: found
        exec(recipe, names)  # noqa: S102
        [first, *_] = names["wrong"].orderBy("number").collect()
        assert (first.number, first.leaf_is_right) == (3, not wrong_leaf), column
    names["read_table"] = lambda *_: honest.where("seq != 3 OR seq IS NULL")
    exec(recipe, names)  # noqa: S102
    assert [(row.number, row.chain_is_right) for row in names["wrong"].collect()] == [(4, False)]



def test_a_stream_in_a_table_is_checked_without_holdfast(
    spark: SparkSession, world: BucketWorld, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    links = every_form(world)
    world.publish()
    export(spark, world.url)
    [script] = re.findall(
        r"^```python\n(# check_table\.py\n.*?)^```", CHAIN, re.MULTILINE | re.DOTALL
    )

    def told(seq: int, chain: bytes) -> str:
        arguments = [default_table(world.url), "acme", "ledger", str(seq), chain.hex()]
        monkeypatch.setattr("sys.argv", ["check_table.py", *arguments])
        exec(script, {})  # noqa: S102
        return capsys.readouterr().out

    for seq, chain in links:
        assert told(seq, chain) == f"2 to {seq}: unchanged\n"
        assert told(seq, bytes(32)) == f"2 to {seq}: NOT what it was\n"


def test_the_report_of_the_tutorial_counts_the_edits(
    spark: SparkSession,
    world: BucketWorld,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    users = ["ada", "ada", "bob", "ada", "bob"]
    edits = [message(seq, b"[]", {"user": user}) for seq, user in enumerate(users, start=1)]
    world.change(stream("docs.plan.edits"), *edits)
    world.change(stream("docs.plan.chat"), message(1, b"hello", {"user": "ada"}))
    world.publish()
    export(spark, world.url)
    [report] = re.findall(
        r"^```python\n(# report\.py\n.*?)^```", TUTORIAL, re.MULTILINE | re.DOTALL
    )
    [printed] = re.findall(r"^```text\n(.*?)^```", TUTORIAL, re.MULTILINE | re.DOTALL)
    monkeypatch.setattr("sys.argv", ["report.py", default_table(world.url)])
    exec(report, {})  # noqa: S102
    assert capsys.readouterr().out == printed
