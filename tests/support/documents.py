"""What tests read in the documents: tables, sections, blocks, and the shape of JSON."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]


def read(name: str) -> str:
    """Return the text of a page of `docs`."""
    return (ROOT / "docs" / name).read_text()


def tables(document: str) -> Iterator[tuple[list[str], list[list[str]]]]:
    """Yield the header and the rows of each table."""
    for block in re.findall(r"(?:^\|.*\|\n)+", document, re.MULTILINE):
        header, _, *rows = [
            [cell.strip() for cell in line.strip().removeprefix("|").removesuffix("|").split("|")]
            for line in block.splitlines()
        ]
        yield header, rows


def table(document: str, *header: str) -> list[list[str]]:
    """Return the rows of the one table whose header begins with `header`; their first cells without
    backticks."""
    [rows] = [rows for found, rows in tables(document) if tuple(found[: len(header)]) == header]
    return [[bare(row[0]), *row[1:]] for row in rows]


def bare(cell: str) -> str:
    """Return a cell without the backticks around it."""
    return cell[1:-1] if re.fullmatch(r"`[^`]*`", cell) else cell


def fenced(document: str, language: str) -> list[str]:
    """Return the blocks of code of a language."""
    return re.findall(rf"^```{language}\n(.*?)^```$", document, re.MULTILINE | re.DOTALL)


def documented_json(document: str) -> Any:
    """Return the one JSON example."""
    [example] = fenced(document, "json")
    return json.loads(example)


def shape(value: Any, *, leave_out: tuple[str, ...] = ()) -> Any:
    """Return the keys of objects, all the way down; of a list or tuple, those of its first one."""
    if isinstance(value, dict):
        kept = {key: one for key, one in value.items() if key not in leave_out}
        return {key: shape(one, leave_out=leave_out) for key, one in kept.items()}
    if isinstance(value, list | tuple):
        return [shape(one, leave_out=leave_out) for one in value[:1]]
    return None
