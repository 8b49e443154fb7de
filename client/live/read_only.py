"""Read-only values for live replicas.

`live["votes"]["bob"] = 2` would change an object that was decoded for this one read, and would be
lost silently. So dictionaries and lists, however nested, are returned as subclasses that refuse
changes. They compare, iterate and encode as plain ones. Copies of them (`dict(...)`, `{**...}`,
`copy.deepcopy`) can be changed."""

from __future__ import annotations

import copy
from typing import Any, NoReturn


def read_only(value: Any) -> Any:
    """Return a value with its dictionaries and lists read-only, all the way down."""
    if type(value) is dict:
        return ReadOnlyDict({key: read_only(each) for key, each in value.items()})
    if type(value) is list:
        return ReadOnlyList(map(read_only, value))
    return value


def _refuse(self: object, *_: object, **__: object) -> NoReturn:
    raise TypeError(
        "a value of a live copy is read-only: change a copy of it, and assign that"
        " (live[key] = {**live[key], ...})"
    )


class ReadOnlyDict(dict[Any, Any]):
    """A dictionary that refuses changes."""

    __slots__ = ()
    __setitem__ = __delitem__ = __ior__ = _refuse
    clear = pop = popitem = setdefault = update = _refuse

    def __copy__(self) -> dict[Any, Any]:
        return dict(self)

    def __deepcopy__(self, memo: dict[int, Any]) -> dict[Any, Any]:
        return {key: copy.deepcopy(each, memo) for key, each in self.items()}

    def __reduce__(self) -> tuple[Any, ...]:
        return dict, (list(self.items()),)


class ReadOnlyList(list[Any]):
    """A list that refuses changes."""

    __slots__ = ()
    __setitem__ = __delitem__ = __iadd__ = __imul__ = _refuse
    append = clear = extend = insert = pop = remove = reverse = sort = _refuse

    def __copy__(self) -> list[Any]:
        return list(self)

    def __deepcopy__(self, memo: dict[int, Any]) -> list[Any]:
        return [copy.deepcopy(each, memo) for each in self]

    def __reduce__(self) -> tuple[Any, ...]:
        return list, (tuple(self),)
