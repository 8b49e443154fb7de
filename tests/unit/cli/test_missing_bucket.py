"""Commands and jobs that read a bucket or a data folder never make one: a mistyped address is an
error."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest
from click.testing import CliRunner, Result
from pyspark.errors import AnalysisException

from holdfast.cli.command import holdfast
from holdfast.protocol.errors import InvalidArgumentError
from holdfast.shared_fs.bucket.bucket import open_bucket
from holdfast.shared_fs.bucket.bucket_errors import NoBucketError
from holdfast.shared_fs.disk.disk import Disk
from holdfast.shared_fs.disk.layout import open_layout
from holdfast.shared_fs.snapshots.existing_bucket import existing_bucket
from holdfast.shared_fs.snapshots.manifest import open_manifests
from holdfast.spark.replay import import_table
from holdfast.spark.source.snapshot_rows import opened_bucket

COMMANDS = {
    "verify": ["verify", "--all"],
    "verify of all tenants": ["verify", "--all-tenants"],
    "collect": ["collect"],
    "collect --dry-run": ["collect", "--dry-run"],
    "rebuild": ["rebuild", "--yes", "--data"],
    "export": ["export"],
}


def run(*arguments: str) -> Result:
    return CliRunner().invoke(holdfast, list(arguments), prog_name="holdfast")


def everything_in(folder: Path) -> dict[Path, bytes | None]:
    return {
        path: path.read_bytes() if path.is_file() else None for path in sorted(folder.rglob("*"))
    }


@pytest.mark.parametrize("found", ["nothing", "an empty folder", "another's folder"])
@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_that_reads_a_bucket_makes_none(command: str, found: str, tmp_path: Path) -> None:
    mistyped = tmp_path / "bucket"
    if found != "nothing":
        mistyped.mkdir()
    if found == "another's folder":
        (mistyped / "photo.jpg").write_bytes(b"x")
    before = everything_in(tmp_path)
    arguments = list(COMMANDS[command])
    if arguments[-1] == "--data":
        arguments.append(str(tmp_path / "new"))
    result = run(*arguments, "--bucket", f"file://{mistyped}")
    assert result.exit_code == 1
    assert result.stdout == ""
    assert result.stderr.startswith("Error: no holdfast bucket here: file://")
    assert "Try: " in result.stderr
    assert "free space" not in result.stderr
    assert everything_in(tmp_path) == before


def test_a_bucket_that_a_server_has_opened_exists(tmp_path: Path) -> None:
    url = f"file://{tmp_path / 'bucket'}"
    made = open_bucket(url)
    # The folder is there, but no server has marked it yet.
    with pytest.raises(NoBucketError):
        existing_bucket(url)
    open_manifests(made)
    before = everything_in(tmp_path)
    existing_bucket(url).close()
    result = run("verify", "--all", "--bucket", url)
    assert (result.exit_code, result.stderr) == (0, "\n0 stores, 0 of them wrong\n")
    assert run("collect", "--dry-run", "--bucket", url).exit_code == 0
    assert everything_in(tmp_path) == before


def test_the_source_of_spark_makes_no_bucket(tmp_path: Path) -> None:
    with pytest.raises(NoBucketError), opened_bucket(f"file://{tmp_path / 'bucket'}"):
        pass
    assert everything_in(tmp_path) == {}


def test_an_import_of_nothing_says_so_and_makes_nothing(tmp_path: Path) -> None:
    class Reads:
        @property
        def read(self) -> Reads:
            return self

        def parquet(self, source: str) -> None:
            raise AnalysisException("[PATH_NOT_FOUND] Path does not exist.\nand a plan")

    source = f"file://{tmp_path / 'table'}"
    with pytest.raises(
        InvalidArgumentError, match=r"no table and no Parquet files at file:.*exist\.$"
    ):
        import_table(cast("Any", Reads()), source, cast("Any", None))
    assert everything_in(tmp_path) == {}


@pytest.mark.parametrize(
    ("arguments", "starts_spark"),
    [
        (("../x y",), False),
        (("{folder}/none",), False),
        (("{folder}", "--time", "yesterday"), False),
        (("{folder}", "--version", "3"), False),
        # Somebody else knows what is there.
        (("hdfs://host/none",), True),
        (("{folder}/none/*.parquet",), True),
        (("{folder}/none", "--master", "spark://host:7077"), True),
        (("{folder}",), True),
    ],
)
def test_an_import_looks_at_its_source_before_spark_starts(
    arguments: tuple[str, ...],
    starts_spark: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    started = []

    def start(*arguments: Any, **options: Any) -> None:
        started.append(options)
        raise InvalidArgumentError(argument="session", reason="this is as far as it goes")

    monkeypatch.setattr("holdfast.spark.session.session", start)
    for name in ("HADOOP_CONF_DIR", "PYSPARK_SUBMIT_ARGS", "SPARK_REMOTE"):
        monkeypatch.delenv(name, raising=False)
    result = run("import", *[each.format(folder=tmp_path) for each in arguments])
    assert result.exit_code != 0
    assert len(result.stderr.splitlines()) == 1 and "Try: " in result.stderr
    assert bool(started) == starts_spark


def test_a_table_is_not_imported_as_its_parquet_files(tmp_path: Path) -> None:
    (tmp_path / "_delta_log").mkdir()
    result = run("import", str(tmp_path))
    assert result.exit_code != 0
    assert f"is a table: write file://{tmp_path}" in result.stderr


def test_verify_wants_data_that_is_holdfast_s(tmp_path: Path) -> None:
    result = run("verify", "--all", "--data", str(tmp_path))
    assert result.exit_code == 1
    assert result.stderr.startswith("Error: no holdfast data here: ")
    assert everything_in(tmp_path) == {}
    open_layout(tmp_path, Disk())
    assert run("verify", "--all", "--data", str(tmp_path)).exit_code == 0


@pytest.mark.parametrize("command", ["backup", "verify"])
@pytest.mark.parametrize("chosen", [[], ["--all", "--all-tenants"], ["notes", "--all"]])
def test_stores_are_chosen_in_one_way(command: str, chosen: list[str]) -> None:
    result = run(command, *chosen)
    assert result.exit_code == 2
    assert "name stores, or give --all or --all-tenants" in result.stderr
