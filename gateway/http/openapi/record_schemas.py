"""JSON schemas of records, made of their types: a field that is added is in the schema at once.

A record is a NamedTuple or a dataclass whose JSON has all of its fields.
"""

from __future__ import annotations

import types
from collections.abc import Mapping, Sequence
from dataclasses import is_dataclass
from enum import Enum
from typing import Any, Union, get_args, get_origin, get_type_hints

from holdfast.gateway.http.openapi.elements import Json

_PLAIN: Mapping[type, Json] = {
    str: {"type": "string"},
    bool: {"type": "boolean"},
    int: {"type": "integer"},
    float: {"type": "number"},
    # As hexadecimal digits.
    bytes: {"type": "string"},
}


def fields_of(record: type) -> Json:
    """Return the schemas of a record's fields, by name. Raises TypeError if one has none."""
    return {name: schema_of(hint) for name, hint in get_type_hints(record).items()}


def record_schema(*records: type, without: Sequence[str] = (), **more: Json) -> Json:
    """Return the schema of an object with the fields of some records, all of them required."""
    fields = {name: each for record in records for name, each in fields_of(record).items()}
    fields = {name: each for name, each in fields.items() if name not in without} | more
    return {"type": "object", "required": list(fields), "properties": fields}


def schema_of(hint: Any) -> Json:
    """Return the schema of a type. Raises TypeError if it has none."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return _nullable([each for each in arguments if each is not types.NoneType])
    if origin is not None and issubclass(origin, Mapping):
        return {"type": "object", "additionalProperties": schema_of(arguments[1])}
    if origin is not None and issubclass(origin, Sequence):
        return {"type": "array", "items": schema_of(arguments[0])}
    if hint in _PLAIN:
        return dict(_PLAIN[hint])
    if isinstance(hint, type) and issubclass(hint, Enum):
        return {"enum": [each.value for each in hint]}
    if isinstance(hint, type) and (is_dataclass(hint) or hasattr(hint, "_fields")):
        return record_schema(hint)
    raise TypeError(hint)


def _nullable(hints: Sequence[Any]) -> Json:
    [hint] = hints
    found = schema_of(hint)
    if "type" in found:
        return {**found, "type": [found["type"], "null"]}
    return {"anyOf": [found, {"type": "null"}]}
