"""The generator of the blocking API: what becomes of each kind of method, and of words."""

from __future__ import annotations

import importlib.util
import sys
import textwrap
from pathlib import Path
from types import ModuleType

import pytest

GENERATOR = Path(__file__).parents[3] / "docs" / "generate" / "blocking_api.py"


@pytest.fixture(scope="module")
def generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("blocking_api", GENERATOR)
    assert spec is not None and spec.loader is not None
    module = sys.modules["blocking_api"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def written(generator: ModuleType, original: str, bodies: str = "    pass", **how: object) -> str:
    """Return the blocking class `Stream` of an asyncio class with these members."""
    there = f"class Stream:\n{textwrap.indent(textwrap.dedent(original), '    ')}"
    own = f"class Stream:\n{textwrap.indent(textwrap.dedent(bodies), '    ')}"
    twin = generator.Twin("stream", "handles.stream", "Stream", "_stream", **how)
    source = generator.Source
    text: str = generator.BlockingClass(twin, source(there, "there"), source(own, "own")).text()
    return text


@pytest.mark.parametrize(
    ("original", "expected"),
    [
        (
            "async def head(self, *, seconds: int = 1) -> Head: ...",
            "return self._background.run(self._stream.head(seconds=seconds))",
        ),
        (
            "async def load(self, seq: int, **more: int) -> None: ...",
            "        self._background.run(self._stream.load(seq, **more))",
        ),
        (
            "async def aclose(self) -> None: ...",
            (
                "if not self._background.forked:\n"
                "            self._background.run(self._stream.aclose())"
            ),
        ),
        (
            "def subscribe(self) -> Subscription[V]: ...",
            "Subscription(self._background, self._background.do(lambda: self._stream.subscribe()))",
        ),
        (
            "def transaction(self) -> KVTransaction[V]: ...",
            "        return KVTransaction(self._background, self._stream.transaction())",
        ),
        (
            "async def reader(self) -> ValueReader[Message] | None: ...",
            "        return None if found is None else ValueReader(self._background, found)",
        ),
        (
            "async def fetch(self) -> list[Delivery[V]]: ...",
            "        return [Delivery(self._background, each) for each in found]",
        ),
        (
            "@property\ndef name(self) -> str: ...",
            "@property\n    def name(self) -> str:\n        return self._stream.name",
        ),
        ("async def __aenter__(self) -> Self:\n    return self", "def __enter__(self) -> Self:"),
        (
            "async def __aexit__(self, *error: object) -> None:\n    await self.aclose()",
            "def __exit__(self, *error: object) -> None:\n        self.close()",
        ),
    ],
)
def test_a_body_follows_from_the_signature(
    generator: ModuleType, original: str, expected: str
) -> None:
    assert expected in written(generator, original)


def test_an_async_generator_becomes_rows_of_its_pages(generator: ModuleType) -> None:
    original = """
        async def get_all(self, last: int) -> AsyncIterator[Message[V]]:
            pages = self._pages(last)
            async with contextlib.aclosing(pages):
                async for page in pages:
                    for row in page:
                        yield self._values.listed(row)
    """
    text = written(generator, original)
    assert "def get_all(self, last: int) -> Rows[Message[V]]:" in text
    assert "pages = self._stream._pages(last)" in text
    assert "return Rows(self._background, pages, self._values.listed)" in text
    with pytest.raises(generator.GenerationError, match="has no pages"):
        written(generator, "async def keys(self) -> AsyncIterator[str]:\n    yield ''")


def test_what_belongs_to_the_loop_is_done_there(generator: ModuleType) -> None:
    original = "def find(self, seq: int) -> int: ...\ndef clear(self) -> None: ..."
    text = written(generator, original, on_loop=True)
    assert "return self._do(lambda: self._stream.find(seq))" in text
    assert "        self._do(self._stream.clear)" in text
    direct = written(generator, original, on_loop=True, anywhere=frozenset({"find"}))
    assert "return self._stream.find(seq)" in direct


def test_a_body_by_hand_keeps_the_signature_and_the_words_of_the_original(
    generator: ModuleType,
) -> None:
    original = 'async def append(self, value: bytes) -> Ack:\n    """Await it with `aclose`."""'
    text = written(
        generator, original.replace("Await", "End"), "def append(self):\n    return 1 # x"
    )
    assert 'def append(self, value: bytes) -> Ack:\n        """End it with `close`."""' in text
    assert "        return 1 # x" in text


def test_docstrings_have_the_words_of_blocking_code_and_are_filled_again(
    generator: ModuleType,
) -> None:
    text = "Follow it:\n\n- an\n  async iterator, ended by `aclose`\n\n    async for x in await y:"
    expected = "Follow it:\n\n- an iterator, ended by `close`\n\n    for x in y:"
    assert generator.in_blocking_words(text, 80) == expected
    with pytest.raises(generator.GenerationError, match="'tasks' in a docstring"):
        generator.in_blocking_words("It belongs to all tasks.", 80)
