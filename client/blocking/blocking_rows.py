"""Rows that are read page by page: the results of the blocking `get_all`, `keys` and `stores`."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

from holdfast.client.blocking.background import Background

T = TypeVar("T")


class Rows(Iterator[T], Generic[T]):
    """An iterator over rows that are read as you need them; for one thread.

    It holds one page and fetches the next one meanwhile. To stop before its end, drop it, `close`
    it or use `with`. As with a generator, an error ends it.
    """

    def __init__(
        self,
        background: Background,
        pages: AsyncGenerator[Sequence[Any], None],
        row: Callable[[Any], T] | None = None,
    ) -> None:
        """`row` converts each element of a page."""
        self._background = background
        self._pages: AsyncGenerator[Sequence[Any], None] | None = pages
        self._row = row
        self._page: Iterator[T] = iter(())

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> T:
        while True:
            for row in self._page:
                return row
            pages = self._pages
            if pages is None:
                raise StopIteration
            self._pages = None
            page = self._background.run(anext(pages, None))
            if page is not None:
                self._pages = pages
                self._page = iter(page) if self._row is None else map(self._row, page)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Stop reading. Idempotent."""
        pages, self._pages = self._pages, None
        self._page = iter(())
        if pages is not None and not self._background.forked:
            self._background.run(pages.aclose())
