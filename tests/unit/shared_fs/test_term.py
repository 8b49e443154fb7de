"""Terms: claimed once, fenced for ever, and not brought back by a write that hung."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.protocol.errors import DeposedError
from holdfast.shared_fs.authority.term import TermFile, TermTakenError
from holdfast.shared_fs.disk.disk import Disk


class NoLinks(Disk):
    """A file system without hard links, where a new file may replace another that is as new."""

    def write_durably(self, path: Path, content: bytes, *, new: bool = False) -> None:
        super().write_durably(path, content)


def terms(folder: Path, who: str = "", disk: Disk | None = None) -> TermFile:
    return TermFile(disk or Disk(), folder / "term", who)


def is_deposed(term: TermFile) -> bool:
    try:
        term.check()
    except DeposedError:
        return True
    return False


def test_of_several_that_succeed_the_same_term_one_does(tmp_path: Path) -> None:
    first, second, third = terms(tmp_path), terms(tmp_path), terms(tmp_path)
    assert first.begin() == 1
    assert second.succeed(1) == 2
    with pytest.raises(TermTakenError):
        third.succeed(1)
    assert is_deposed(first) and not is_deposed(second)
    assert third.succeed(2) == 3
    assert is_deposed(second) and not is_deposed(third)


def test_one_that_claimed_a_term_and_stopped_is_passed_over_and_never_acts(tmp_path: Path) -> None:
    stopped, heir = terms(tmp_path), terms(tmp_path)
    assert stopped._claimed(1)
    with pytest.raises(TermTakenError):
        heir.succeed(0)
    assert heir.succeed(1) == 2
    # It wakes, and does the rest of what it had begun.
    assert stopped._begin(1, known=()) == 1
    assert (tmp_path / "term").read_bytes() == b"%020d\n" % 1
    assert is_deposed(stopped)
    assert not is_deposed(heir), "a late write of a lower number deposes nobody"
    assert terms(tmp_path).begin() == 3


def test_a_coordinator_of_an_earlier_version_deposes_and_is_deposed_by_the_number(
    tmp_path: Path,
) -> None:
    mine, number = terms(tmp_path), tmp_path / "term"
    assert mine.begin() == 1
    # It knows of no claims.
    number.write_bytes(b"%020d\n" % 2)
    assert is_deposed(mine)
    assert terms(tmp_path).succeed(2) == 3
    assert number.read_bytes() == b"%020d\n" % 3


def test_claims_that_were_fenced_are_removed_with_the_next_term(tmp_path: Path) -> None:
    deposed = terms(tmp_path)
    deposed.begin()
    for term in (2, 3, 4):
        assert terms(tmp_path).begin() == term
        assert sorted(path.name for path in tmp_path.glob("term.*")) == [
            f"term.{term - 1}",
            f"term.{term}",
        ]
    assert is_deposed(deposed), "a missing claim counts as fenced"


def test_without_links_a_claim_that_is_replaced_is_the_other_one_s(tmp_path: Path) -> None:
    first, second = (terms(tmp_path, who, NoLinks()) for who in ("one", "two"))
    assert first._claimed(1) and second._claimed(1)
    first._begin(1, known=())
    second._begin(1, known=())
    assert is_deposed(first) and not is_deposed(second)


def test_a_torn_claim_counts_as_fenced(tmp_path: Path) -> None:
    mine = terms(tmp_path)
    mine.begin()
    claim = tmp_path / "term.1"
    claim.write_bytes(claim.read_bytes()[:-9])
    assert is_deposed(mine)
