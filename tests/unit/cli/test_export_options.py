"""What `holdfast export` refuses before it starts Spark: what would leave values where they must
not be, and addresses that are none."""

from __future__ import annotations

from pathlib import Path
from typing import NoReturn

import pytest
from click.testing import CliRunner

from holdfast.cli.command import holdfast
from holdfast.cli.commands import tables
from holdfast.shared_fs.bucket.bucket import open_bucket
from holdfast.shared_fs.snapshots.manifest import open_manifests


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (["--decrypt"], "--decrypt needs --table"),
        (["--decrypt", "--table", "file:///t"], "--decrypt needs --master-key-file"),
        (["--master-key-file", "k"], "are for --decrypt"),
        (["--data", "."], "are for --decrypt"),
    ],
)
def test_a_mistaken_decryption_is_refused_before_anything_is_read(
    tmp_path: Path, options: list[str], reason: str
) -> None:
    bucket = f"file://{tmp_path / 'none'}"
    result = CliRunner().invoke(holdfast, ["export", "--bucket", bucket, *options])
    assert result.exit_code == 2
    assert reason in result.stderr


@pytest.mark.parametrize("table", ["changes", "http://host/t", "s3://", "file://relative/t"])
def test_a_table_that_is_no_address_is_refused_before_spark_starts(
    tmp_path: Path, table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def started(master: str | None) -> NoReturn:
        raise AssertionError("Spark was started")

    monkeypatch.setattr(tables, "_spark", started)
    bucket = f"file://{tmp_path / 'bucket'}"
    open_manifests(open_bucket(bucket))
    result = CliRunner().invoke(holdfast, ["export", "--bucket", bucket, "--table", table])
    assert result.exit_code == 2, result.output
    assert "invalid table" in result.stderr
