"""The subjects of all streams, found by what they collide with.

A tree with a branch for each token, so that a subject is compared with those that begin alike and
not with those of a million streams. Two subjects collide if some subject matches both; either may
have wildcards.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

_ANY: Final = "*"
_REST: Final = ">"


class _Node:
    __slots__ = ("branches", "owners")

    def __init__(self) -> None:
        self.branches: dict[str, _Node] = {}
        self.owners: tuple[str, ...] = ()


class SubjectIndex:
    """Subjects, each with one owner or several."""

    def __init__(self) -> None:
        self._root = _Node()

    def add(self, subject: str, owner: str) -> None:
        """Note that `owner` has this subject."""
        node = self._root
        for token in subject.split("."):
            branch = node.branches.get(token)
            if branch is None:
                branch = node.branches[token] = _Node()
            node = branch
        if owner not in node.owners:
            node.owners += (owner,)

    def remove(self, subject: str, owner: str) -> None:
        """Forget that. Does nothing if it was not so."""
        path: list[tuple[_Node, str]] = []
        node = self._root
        for token in subject.split("."):
            path.append((node, token))
            branch = node.branches.get(token)
            if branch is None:
                return
            node = branch
        node.owners = tuple(each for each in node.owners if each != owner)
        for above, token in reversed(path):
            branch = above.branches[token]
            if branch.owners or branch.branches:
                return
            del above.branches[token]

    def colliding(self, subject: str) -> set[str]:
        """Return the owners of subjects that collide with `subject`."""
        tokens = subject.split(".")
        found: set[str] = set()
        waiting = [(self._root, 0)]
        while waiting:
            node, depth = waiting.pop()
            if depth == len(tokens):
                found.update(node.owners)
                continue
            token = tokens[depth]
            branches = node.branches
            if token == _REST:
                for branch in branches.values():
                    found.update(_owners_below(branch))
                continue
            rest = branches.get(_REST)
            if rest is not None:
                found.update(rest.owners)
            if token == _ANY:
                waiting += [
                    (branch, depth + 1) for name, branch in branches.items() if name != _REST
                ]
                continue
            waiting += [(branches[name], depth + 1) for name in (token, _ANY) if name in branches]
        return found


def _owners_below(node: _Node) -> Iterator[str]:
    waiting = [node]
    while waiting:
        each = waiting.pop()
        yield from each.owners
        waiting += each.branches.values()
