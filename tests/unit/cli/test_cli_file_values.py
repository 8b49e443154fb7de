"""The bar of a file on its way: on a terminal, and of what was read."""

from __future__ import annotations

import io
import os
import sys
from pathlib import Path

import pytest

from holdfast.cli.stores.file_values import opened


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_bar_on_a_terminal_says_how_much_of_a_file_was_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    path = tmp_path / "film"
    path.write_bytes(bytes(4000))
    with opened(path) as file:
        assert file.read(1000) == bytes(1000)
        file.seek(0)
        assert file.read() == bytes(4000)
    assert "film" in terminal.getvalue()
    assert "4.0/4.0 kB" in terminal.getvalue()


def test_elsewhere_there_is_no_bar(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "film"
    os.mkfifo(path)
    holder = os.open(path, os.O_RDWR)
    os.write(holder, b"abc")
    with opened(path) as file:
        os.close(holder)
        assert (file.read(), file.seekable()) == (b"abc", False)
    assert capsys.readouterr().err == ""
