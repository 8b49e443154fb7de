"""Bodies of requests: JSON from strangers into checked fields.

A schema maps the names of fields to readers, which check one value each. What is no JSON, has a
field that the schema does not know, or a value of another type is the error 10025, as with
nats-server's strict mode. As there, names are found whatever their case, null leaves a field out,
and of a name that comes twice the last counts.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Any, Final

from holdfast.gateway.jetstream.api import errors
from holdfast.gateway.jetstream.api.times import MAX_INT64, parse_time

#: Checks a value that stands at a path, and returns it as it is kept.
Reader = Callable[[Any, str], Any]
Schema = Mapping[str, Reader]

_MAX_INT32: Final = (1 << 31) - 1
_KINDS: Final = {
    str: "string",
    bool: "bool",
    int: "number",
    float: "number",
    list: "array",
    dict: "object",
}


def _no_constant(name: str) -> Any:
    raise ValueError(f"invalid character {name[0]!r} looking for beginning of value")


#: `json.loads` with an argument makes one for each call.
_DECODER: Final = json.JSONDecoder(parse_constant=_no_constant)


def parse(body: bytes) -> Any:
    """Return the value of a JSON text. Raises ApiError 10025."""
    try:
        return _DECODER.decode(body.decode(errors="replace"))
    except json.JSONDecodeError as error:
        raise errors.invalid_json(f"{error.msg} at offset {error.pos}") from None
    except RecursionError:
        raise errors.invalid_json("exceeded max depth") from None
    except ValueError as error:
        # An integer with more digits than Python reads.
        raise errors.invalid_json(f"{error!s:.80}") from None


def parse_object(body: bytes) -> dict[str, Any]:
    """Return the object that a body is; an empty body is an empty one. Raises ApiError 10025."""
    if not body or body.isspace():
        return {}
    value = parse(body)
    if value is None:
        return {}
    if type(value) is not dict:
        raise _wrong(value, "", "object")
    return value


def is_object(body: bytes) -> bool:
    """Return whether a body begins like JSON. Where JSON may come, all else counts as none."""
    return body.lstrip(b" \t\r\n")[:1] in (b"{", b"[")


def is_empty(body: bytes) -> bool:
    """Return whether a body is what verbs without a request accept: nothing, or `{}`."""
    if not body or body == b"{}":
        return True
    try:
        return bool(parse(body) == {})
    except errors.ApiError:
        return False


def read(schema: Schema, value: Any, path: str = "", *, strict: bool = True) -> dict[str, Any]:
    """Return the fields of an object, each checked. Raises ApiError 10025.

    With `strict` false, unknown fields are skipped.
    """
    if type(value) is not dict:
        raise _wrong(value, path, "object")
    fields = {}
    for name, each in value.items():
        reader = schema.get(name)
        if reader is None:
            name = name.lower()
            reader = schema.get(name)
        if reader is None:
            if strict:
                raise errors.invalid_json(f"json: unknown field {json.dumps(name[:80])}")
        elif each is not None:
            fields[name] = reader(each, f"{path}.{name}" if path else name)
    return fields


def text(value: Any, path: str) -> str:
    """Text. Half of a surrogate pair, which no UTF-8 has, becomes a replacement character."""
    if type(value) is not str:
        raise _wrong(value, path, "string")
    if value.isascii():
        return value
    return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def boolean(value: Any, path: str) -> bool:
    if type(value) is not bool:
        raise _wrong(value, path, "bool")
    return value


def int64(value: Any, path: str) -> int:
    return _integer(value, path, "int64", -MAX_INT64 - 1, MAX_INT64)


def int32(value: Any, path: str) -> int:
    return _integer(value, path, "int32", -_MAX_INT32 - 1, _MAX_INT32)


def uint64(value: Any, path: str) -> int:
    return _integer(value, path, "uint64", 0, 2 * MAX_INT64 + 1)


def time(value: Any, path: str) -> int:
    """A time, kept as nanoseconds since 1970."""
    try:
        return parse_time(text(value, path))
    except ValueError as error:
        raise errors.invalid_json(str(error)) from None


def texts(value: Any, path: str) -> tuple[str, ...]:
    return tuple(text(each, f"{path}.{index}") for index, each in enumerate(_list(value, path)))


def durations(value: Any, path: str) -> tuple[int, ...]:
    return tuple(int64(each, f"{path}.{index}") for index, each in enumerate(_list(value, path)))


def text_map(value: Any, path: str) -> dict[str, str]:
    if type(value) is not dict:
        raise _wrong(value, path, "map")
    return {
        text(name, path): text("" if each is None else each, f"{path}.{name:.40}")
        for name, each in value.items()
    }


def word(
    kind: type[StrEnum], aliases: Mapping[str, StrEnum] | None = None, *, ignore_case: bool = False
) -> Reader:
    """Return a reader of the words of an enum; `aliases` are further words."""
    words = {each.value: each for each in kind} | dict(aliases or {})

    def reader(value: Any, path: str) -> Any:
        known = value.lower() if ignore_case and type(value) is str else value
        found = words.get(known) if type(value) is str else None
        if found is None:
            raise errors.invalid_json(f"can not unmarshal {json.dumps(value)[:80]} into {path}")
        return found

    return reader


def nested(schema: Schema, make: Callable[..., Any]) -> Reader:
    """Return a reader of an object, from whose fields `make` makes a value."""
    return lambda value, path: make(**read(schema, value, path))


def _list(value: Any, path: str) -> list[Any]:
    if type(value) is not list:
        raise _wrong(value, path, "array")
    return value


def _integer(value: Any, path: str, kind: str, lowest: int, highest: int) -> int:
    if type(value) is not int or not lowest <= value <= highest:
        raise _wrong(value, path, kind)
    return value


def _wrong(value: Any, path: str, kind: str) -> errors.ApiError:
    found = _KINDS.get(type(value), "null")
    if found == "number" and kind not in ("string", "bool"):
        found = f"number {value!r:.40}"
    where = f"field {path}" if path else "a request"
    return errors.invalid_json(f"json: cannot unmarshal {found} into {where} of type {kind}")
