"""An attribute that is made when it is first needed."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar, overload

T = TypeVar("T")


class made_once(Generic[T]):
    """`functools.cached_property` without its lock.

    On Python 3.11 that lock is one for all instances of the class, held while the value is made.
    Two threads that open two files would wait for each other, for ever if each file's connection
    needs what the other is just making.
    """

    def __init__(self, make: Callable[[Any], T]) -> None:
        self._make = make
        self.__doc__ = make.__doc__

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    @overload
    def __get__(self, instance: None, owner: type) -> Self: ...
    @overload
    def __get__(self, instance: object, owner: type) -> T: ...
    def __get__(self, instance: object | None, owner: type) -> Self | T:
        if instance is None:
            return self
        # From now on the attribute is found in the instance: Python asks here only if it is not.
        value = instance.__dict__[self._name] = self._make(instance)
        return value

    if TYPE_CHECKING:

        def __set__(self, instance: object, value: T) -> None: ...
