"""The configuration language of nats-server, read into dictionaries.

`parse` understands what tests of clients write: comments, keys with `=`, `:` or a blank, quoted and
bare words, numbers with a size suffix, lists, maps and `include`. JSON is a subset of the language,
so a configuration that was changed is written as JSON. Variables and block strings are refused.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final

Map = dict[str, Any]

_BLANK: Final = re.compile(r"(?:\s|#[^\n]*|//[^\n]*)+")
#: Between two entries of a map or a list a line end is enough.
_BETWEEN: Final = re.compile(r"(?:\s|,|;|#[^\n]*|//[^\n]*)+")
_SEPARATOR: Final = re.compile(r"[ \t]*[:=]?[ \t\r\n]*")
_QUOTED: Final = re.compile(r'"((?:[^"\\]|\\.)*)"|\'([^\']*)\'', re.DOTALL)
_BARE_KEY: Final = re.compile(r"[^\s:={}\[\],;\"']+")
_BARE_WORD: Final = re.compile(r"[^\s{}\[\],;]+")
_NUMBER: Final = re.compile(r"(-?\d+)([kmgtpe]i?b?)?", re.IGNORECASE)
_DECIMAL: Final = re.compile(r"-?\d+\.\d+")
_ESCAPES: Final = {"n": "\n", "t": "\t", "r": "\r", '"': '"', "\\": "\\"}
_TRUE: Final = ("true", "yes", "on")
_FALSE: Final = ("false", "no", "off")


class ConfigurationError(Exception):
    """A configuration that cannot be read."""


def parse(text: str, read_file: Callable[[str], str] | None = None) -> Map:
    """Return the map that a configuration is. `read_file` returns the text of an included file.

    Raises ConfigurationError, and what `read_file` raises.
    """
    parser = _Parser(text, read_file)
    parser.skip(_BETWEEN)
    # A file of JSON is one map in braces.
    result: Map = parser.value() if parser.peek() == "{" else parser.entries(end="")
    parser.skip(_BETWEEN)
    if parser.peek():
        raise ConfigurationError(f"{parser.peek()!r} at {parser.at} is not expected")
    return result


class _Parser:
    def __init__(self, text: str, read_file: Callable[[str], str] | None) -> None:
        self.at = 0
        self._text = text
        self._read_file = read_file

    def peek(self) -> str:
        return self._text[self.at : self.at + 1]

    def skip(self, pattern: re.Pattern[str]) -> None:
        if match := pattern.match(self._text, self.at):
            self.at = match.end()

    def entries(self, end: str) -> Map:
        """Return what is up to `end`, and go behind it."""
        result: Map = {}
        self.skip(_BETWEEN)
        while self.peek() != end:
            if not self.peek():
                raise ConfigurationError(f"{end!r} is missing")
            key = self._key()
            self.skip(_SEPARATOR)
            if key == "include":
                result |= self._included(self._word())
            else:
                result[key] = self.value()
            self.skip(_BETWEEN)
        self.at += len(end)
        return result

    def value(self) -> Any:
        self.skip(_BLANK)
        first = self.peek()
        if first == "{":
            self.at += 1
            return self.entries("}")
        if first == "[":
            self.at += 1
            return self._list()
        if first in ("(", "$"):
            raise ConfigurationError(f"{first!r} at {self.at} is not supported")
        if first in ('"', "'"):
            return self._word()
        return _bare_value(self._word())

    def _list(self) -> list[Any]:
        result = []
        self.skip(_BETWEEN)
        while self.peek() != "]":
            if not self.peek():
                raise ConfigurationError("']' is missing")
            result.append(self.value())
            self.skip(_BETWEEN)
        self.at += 1
        return result

    def _key(self) -> str:
        return self._quoted() if self.peek() in ('"', "'") else self._matched(_BARE_KEY)

    def _word(self) -> str:
        return self._quoted() if self.peek() in ('"', "'") else self._matched(_BARE_WORD)

    def _quoted(self) -> str:
        match = _QUOTED.match(self._text, self.at)
        if match is None:
            raise ConfigurationError(f"the quotation at {self.at} does not end")
        self.at = match.end()
        if match[1] is None:
            return str(match[2])
        return re.sub(r"\\(.)", lambda each: _ESCAPES.get(each[1], each[0]), match[1])

    def _matched(self, pattern: re.Pattern[str]) -> str:
        match = pattern.match(self._text, self.at)
        if match is None:
            raise ConfigurationError(f"{self.peek()!r} at {self.at} is not expected")
        self.at = match.end()
        return match[0]

    def _included(self, name: str) -> Map:
        if self._read_file is None:
            raise ConfigurationError(f"{name} cannot be included")
        return parse(self._read_file(name), self._read_file)


def _bare_value(word: str) -> Any:
    lower = word.lower()
    if lower in _TRUE or lower in _FALSE:
        return lower in _TRUE
    if match := _NUMBER.fullmatch(word):
        suffix = (match[2] or "").lower()
        # "1k" is a thousand, "1kb" and "1ki" are 1024.
        base = 1024 if len(suffix) > 1 else 1000
        return int(match[1]) * base ** (" kmgtpe".index(suffix[0]) if suffix else 0)
    return float(word) if _DECIMAL.fullmatch(word) else word
