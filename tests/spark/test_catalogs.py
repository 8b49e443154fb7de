"""Readers and catalogs that are not ours: polars, pyarrow, DuckDB, and Iceberg in a SQL catalog."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable

from holdfast.shared_fs.archive.table_location import TableLocation
from holdfast.spark.export.compaction import MergeJob, merge
from holdfast.spark.rows.batches import BatchMaker
from holdfast.spark.rows.gathering import Gathering
from holdfast.spark.rows.image_rows import StoreImage
from holdfast.spark.tables.table import FILE_SCHEMA, ChangesTable
from holdfast.spark.tables.watermarks import Watermark, next_version, write_marks
from holdfast.spark.tables.writing import FILE_BYTES, TableWriter
from tests.support.bucket_world import BucketWorld, message, stream
from tests.support.command_line import parsed
from tests.support.documents import ROOT

PAGE = (ROOT / "docs" / "deploy" / "spark.md").read_text()
ORDERS, CHATS = stream("orders"), stream("chats", tenant="bolt")


class Table:
    """A table that gets the changes of two stores, as an export writes them."""

    def __init__(self, folder: Path) -> None:
        (folder / "stores").mkdir()
        self.world = BucketWorld(folder / "stores", f"file://{folder}/bucket")
        self.location = TableLocation(f"file://{folder}/table")
        self._marks: dict[Any, Watermark] = {}
        self._folder = folder
        self._seq = 0

    def export(self, count: int) -> None:
        table = ChangesTable(self.location)
        table.create()
        version = next_version(table.export_version)
        seqs = range(self._seq + 1, self._seq + count + 1)
        self._seq += count
        with TableWriter(self.location, f"run-{version}", table.layout) as writer:
            for store in sorted((ORDERS, CHATS), key=lambda each: table.layout.order(each.tenant)):
                self.world.change(store, *[message(seq, b"value %d" % seq) for seq in seqs])
                file = self.world.held[store].file
                file.checkpoint()
                image = StoreImage(store, Path(file.path))
                reading = image.reading(self._marks.get(store))
                gathering = Gathering(BatchMaker(FILE_SCHEMA))
                for piece in image.pieces(reading, version >> 32, "a snapshot"):
                    for batch in gathering.add(piece):
                        writer.write(*batch)
                for batch in gathering.rest():
                    writer.write(*batch)
                self._marks[store] = image.watermark()
                image.close()
            files = writer.finish()
        marks = write_marks(self._folder / "marks", self._marks)
        table.append(version, files, marks, {})

    def compact(self) -> None:
        table = ChangesTable(self.location)
        merged = merge(MergeJob(self.location, table.layout, FILE_BYTES), table.files())
        table.replace(merged.replaced, merged.added)


@pytest.fixture
def table(tmp_path: Path) -> Iterator[Table]:
    made = Table(tmp_path)
    yield made
    made.world.close()


def test_foreign_readers_of_delta_find_every_row_and_skip_by_columns(table: Table) -> None:
    polars = pytest.importorskip("polars")
    table.export(30)
    table.export(20)
    table.compact()
    table.export(5)
    uri = table.location.uri
    dataset = DeltaTable(uri).to_pyarrow_dataset()
    wanted = [("acme", seq, b"value %d" % seq) for seq in range(51, 56)]
    columns = ["tenant", "seq", "value"]

    lazy = polars.scan_delta(uri)
    newest = lazy.filter((polars.col("tenant") == "acme") & (polars.col("seq") > 50))
    by_polars = newest.select(columns).sort("seq").collect().rows()
    found = dataset.to_table(
        columns, filter=(pc.field("tenant") == "acme") & (pc.field("seq") > 50)
    )
    by_pyarrow = [tuple(row.values()) for row in found.sort_by("seq").to_pylist()]
    query = "SELECT tenant, seq, value FROM dataset WHERE tenant = 'acme' AND seq > 50 ORDER BY seq"
    by_duckdb = duckdb.sql(query).fetchall()
    assert by_polars == by_pyarrow == by_duckdb == wanted
    assert lazy.select(polars.len()).collect().item() == dataset.count_rows() == 110


def test_the_recipe_keeps_an_iceberg_table_up_also_after_a_compaction(
    table: Table, tmp_path: Path
) -> None:
    pytest.importorskip("pyiceberg")
    section = PAGE[PAGE.index("### Iceberg") :]
    [recipe] = re.findall(r"^```python\n(.*?)^```", section, re.MULTILINE | re.DOTALL)[:1]
    names = {
        "table": table.location.url,
        "catalog_uri": f"sqlite:///{tmp_path}/catalog.db",
        "warehouse": f"file://{tmp_path}/warehouse",
    }

    def keep_up() -> Any:
        exec(recipe, names)  # noqa: S102
        return names["catalog"].load_table("holdfast.changes")

    table.export(3)
    iceberg = keep_up()
    assert iceberg.scan().to_arrow().num_rows == 6
    table.export(4)
    iceberg = keep_up()
    found = iceberg.scan(row_filter="tenant = 'bolt' AND seq >= 3").to_arrow().sort_by("seq")
    assert found.select(["store", "seq", "value"]).to_pylist() == [
        {"store": "chats", "seq": seq, "value": b"value %d" % seq} for seq in range(3, 8)
    ]
    before = set(iceberg.inspect.files()["file_path"].to_pylist())
    table.compact()
    iceberg = keep_up()
    after = set(iceberg.inspect.files()["file_path"].to_pylist())
    assert not after & before and len(after) < len(before)
    assert iceberg.scan().to_arrow().num_rows == 14
    # With nothing new it commits nothing.
    assert len(keep_up().history()) == len(iceberg.history())


def test_the_dag_and_the_commands_of_the_page_are_such() -> None:
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    for block in blocks:
        compile(block, "spark.md", "exec")
    commands = re.findall(r"^\$ (holdfast .+)$", PAGE, re.MULTILINE)
    commands += re.findall(r'bash_command="(holdfast [^"]+)"', PAGE)
    assert len(commands) == 4
    for command in commands:
        options = parsed(shlex.split(command)[1:], {})
        assert options["bucket"] == "s3://acme/holdfast"
