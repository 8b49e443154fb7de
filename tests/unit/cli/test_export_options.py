"""`holdfast export --decrypt` refuses what would leave values where they must not be."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from holdfast.cli.command import holdfast


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
