"""The examples of the documents, as programs that can be run.

Under one `##` heading the ```` ```python ```` blocks are one program, in order: they share their
names and an event loop, and may `await` at the top level, as in `python -m asyncio`. `hf` is a
client there, of a tenant that nobody else has. A ```` ```text ```` block right behind one of them
is what it prints. A block that begins with the name of a file is a program of its own, with
arguments: other tests run those."""

from __future__ import annotations

import ast
import asyncio
import contextlib
import inspect
import io
import itertools
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from holdfast.client import connect

ROOT = Path(__file__).parents[2]
DOCUMENTS = (
    "README.md",
    *(f"docs/{name}.md" for name in ("guide", "coming-from", "forks", "chain", "ephemeral")),
)
#: What the documents say where the cluster is, and whose stores are used.
_NATS, _TENANT = "nats://127.0.0.1:4222", 'tenant="acme"'

_FILE_NAME = re.compile(r"# \w+\.py$", re.MULTILINE)
_FENCE = re.compile(r"^```(\w*)\n(.*?)^```\n", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Example:
    """One block, where it begins, and what it prints; None: that is not said."""

    source: str
    line: int
    output: str | None


@dataclass(frozen=True)
class Program:
    """The blocks under one heading."""

    document: str
    title: str
    examples: tuple[Example, ...]

    def __str__(self) -> str:
        return f"{self.document}: {self.title}"

    def run(self, nats: str, tenant: str) -> None:
        """Run it in `tenant`, and compare what it prints."""

        async def begin() -> Any:
            return await connect(nats, tenant=tenant)

        with asyncio.Runner() as runner:
            names: dict[str, Any] = {"__name__": "__main__", "asyncio": asyncio}
            client = names["hf"] = runner.run(begin())
            try:
                for example in self.examples:
                    self._run(example, runner, names, nats, tenant)
            finally:
                runner.run(client.close())

    def _run(
        self,
        example: Example,
        runner: asyncio.Runner,
        names: dict[str, Any],
        nats: str,
        tenant: str,
    ) -> None:
        source = example.source.replace(_NATS, nats).replace(_TENANT, f'tenant="{tenant}"')
        path = ROOT / self.document
        # So that a traceback names the line of the document.
        tree = ast.increment_lineno(ast.parse(source), example.line - 1)
        code = compile(tree, path, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)

        async def run() -> None:
            async with asyncio.timeout(30):
                await eval(code, names)

        with contextlib.redirect_stdout(io.StringIO()) as printed:
            if code.co_flags & inspect.CO_COROUTINE:
                runner.run(run())
            else:
                eval(code, names)
        if example.output is not None:
            where = f"{self.document}:{example.line}"
            assert printed.getvalue() == example.output, f"{where} prints\n{printed.getvalue()}"


def programs() -> list[Program]:
    """Return the programs of all documents."""
    return [each for document in DOCUMENTS for each in _programs(document)]


def _programs(document: str) -> list[Program]:
    text = (ROOT / document).read_text()
    found = []
    for section in re.finditer(r"^## (.*)\n(?:(?!^## ).*\n)*", text, re.MULTILINE):
        examples = []
        for block, after in itertools.pairwise([*_FENCE.finditer(text, *section.span()), None]):
            if block is None or _FILE_NAME.match(block[2]):
                continue
            if block[1] == "python":
                output = None
                if after is not None and after[1] == "text":
                    adjoins = not text[block.end() : after.start()].strip()
                    output = after[2] if adjoins else None
                line = text.count("\n", 0, block.start(2)) + 1
                examples.append(Example(block[2], line, output))
        if examples:
            found.append(Program(document, section[1], tuple(examples)))
    return found
