"""Who subscribes to what in a NATS account, as a leafnode connection is told. Pure.

`Interest` keeps the table of the current connection, gathers that of the next one while it begins,
and says whose watched interest changed. What cannot be the inbox or the deliver subject of anybody
is not kept: an account may have many such subjects. holdfast's own subjects are among them, except
those by which gateways see each other (`<prefix>.<tenant>.js.`).

Invariant: `has(subject)` is what it would be with a table built from the present subscriptions
alone, in whatever order they came and went.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final

from holdfast.gateway.jetstream.wire.ports import InterestWatch
from holdfast.protocol.limits import MAX_INTEREST_SUBJECTS

#: Loop detection, replies across gateways of NATS, and subjects of services: nobody waits there for
#: a delivery.
_OF_NATS: Final = ("$LDS.", "_GR_.", "$GR.", "$GNR.", "$SYS.", "$SRV.", "$JS.")
_NO_GROUPS: Final[frozenset[str]] = frozenset()
#: Whether a subject has subscriptions, whether plain ones, and its queue groups.
_Who = tuple[bool, bool, frozenset[str]]


class SubjectWatch(InterestWatch):
    """Whoever wants to know of one subject. `Interest.apply` returns those with news."""

    __slots__ = ("_interest", "callback", "closed", "subject", "who")

    def __init__(
        self, interest: Interest, subject: str, callback: Callable[[bool], None], who: _Who
    ) -> None:
        self._interest = interest
        self.subject = subject
        self.callback = callback
        #: As it was told last.
        self.who = who
        self.closed = False

    @property
    def interested(self) -> bool:
        """Whether anybody subscribes."""
        return self.who[0]

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            self._interest._forget(self)


class _Node:
    """A token of the patterns that begin alike, and the queue groups of the one that ends here;
    "" stands for subscriptions outside of groups."""

    __slots__ = ("children", "groups")

    def __init__(self) -> None:
        self.children: dict[str, _Node] = {}
        self.groups: set[str] = set()


class InterestTable:
    """The subscriptions of an account."""

    def __init__(self) -> None:
        #: Subjects without wildcards that have plain subscriptions, and the groups of those that
        #: have groups.
        self._plain: set[str] = set()
        self._groups: dict[str, set[str]] = {}
        #: Patterns of plain subscriptions, and those of queue groups.
        self._plain_patterns = _Node()
        self._group_patterns = _Node()
        self._count = 0
        #: More subjects came than are kept.
        self.overflowed = False

    def add(self, subject: str, group: str) -> None:
        """Note a subscription; a second one of the same subject and group changes nothing."""
        if self._count >= MAX_INTEREST_SUBJECTS:
            self.overflowed = True
            return
        known: set[str]
        if has_wildcard(subject):
            node = self._group_patterns if group else self._plain_patterns
            for token in subject.split("."):
                node = node.children.setdefault(token, _Node())
            known, name = node.groups, group
        elif group:
            known, name = self._groups.setdefault(subject, set()), group
        else:
            known, name = self._plain, subject
        if name not in known:
            known.add(name)
            self._count += 1

    def remove(self, subject: str, group: str) -> None:
        """Forget a subscription, if it is known."""
        if has_wildcard(subject):
            root = self._group_patterns if group else self._plain_patterns
            self._count -= _remove_pattern(root, subject, group)
            return
        known, name = (self._groups.get(subject), group) if group else (self._plain, subject)
        if known is not None and name in known:
            known.discard(name)
            self._count -= 1
            if group and not known:
                del self._groups[subject]

    def has_plain(self, subject: str) -> bool:
        """Tell whether `subject` has a subscription outside of groups, other than one of `>`."""
        if self.overflowed or subject in self._plain:
            return True
        return any(not all_subjects for all_subjects, _ in _matching(self._plain_patterns, subject))

    def has(self, subject: str) -> bool:
        """Tell whether `subject` has a subscription other than one of `>`."""
        if self.has_plain(subject) or subject in self._groups:
            return True
        return any(not all_subjects for all_subjects, _ in _matching(self._group_patterns, subject))

    def who(self, subject: str) -> _Who:
        """Return all of that."""
        return self.has(subject), self.has_plain(subject), self.groups(subject)

    def groups(self, subject: str) -> frozenset[str]:
        """Return the queue groups that subscribe to `subject`, by whatever pattern."""
        exact = self._groups.get(subject)
        if not self._group_patterns.children:
            return frozenset(exact) if exact else _NO_GROUPS
        return frozenset(exact or ()).union(
            *(groups for _, groups in _matching(self._group_patterns, subject))
        )


class Interest:
    """The interest of an account over one connection after another, and who watches it.

    `prefix` is that of holdfast's own subjects.
    """

    def __init__(self, prefix: str) -> None:
        self._own = f"{prefix}."
        self._table = InterestTable()
        #: That of a connection that begins; None once all of it is known.
        self._next: InterestTable | None = None
        self._watchers: dict[str, list[SubjectWatch]] = {}
        #: Watched subjects by their tokens, to find those that a pattern covers. Ends in "".
        self._watched = _Node()

    @property
    def overflowed(self) -> bool:
        """Whether all subjects count as having interest, because there are too many."""
        return self._table.overflowed

    def has(self, subject: str) -> bool:
        """See InterestTable.has."""
        return self._table.has(subject)

    def has_plain(self, subject: str) -> bool:
        """See InterestTable.has_plain."""
        return self._table.has_plain(subject)

    def groups(self, subject: str) -> frozenset[str]:
        """See InterestTable.groups."""
        return self._table.groups(subject)

    def concerns(self, subject: str) -> bool:
        """Tell whether interest in `subject` is kept."""
        if subject.startswith(self._own):
            return subject[len(self._own) :].partition(".")[2].startswith("js.")
        return not subject.startswith(_OF_NATS)

    def apply(self, began: bool, subject: str, group: str) -> list[SubjectWatch]:
        """Note that interest began or ended, and return the watchers to tell, whose `interested` is
        the news."""
        if not self.concerns(subject):
            return []
        table = self._table if self._next is None else self._next
        overflowed = table.overflowed
        (table.add if began else table.remove)(subject, group)
        if self._next is not None or not self._watchers:
            return []
        if table.overflowed and not overflowed:
            return self._changed(list(self._watchers))
        if subject == ">":
            return []
        if not has_wildcard(subject):
            return self._changed([subject])
        return self._changed(_covered(self._watched, subject.split(".")))

    def begin(self) -> None:
        """Begin the table of a new connection. The former one counts until `complete`."""
        self._next = InterestTable()

    def complete(self) -> list[SubjectWatch]:
        """Use the table of the new connection, and return the watchers to tell."""
        if self._next is not None:
            self._table, self._next = self._next, None
        return self._changed(list(self._watchers))

    def watch(self, subject: str, callback: Callable[[bool], None]) -> SubjectWatch:
        """Return a watcher of `subject`, which `apply` returns when its interest changes."""
        watcher = SubjectWatch(self, subject, callback, self._table.who(subject))
        if subject not in self._watchers:
            node = self._watched
            for token in (*subject.split("."), ""):
                node = node.children.setdefault(token, _Node())
            node.groups.add("")
        self._watchers.setdefault(subject, []).append(watcher)
        return watcher

    def _forget(self, watcher: SubjectWatch) -> None:
        of_subject = self._watchers[watcher.subject]
        of_subject.remove(watcher)
        if not of_subject:
            del self._watchers[watcher.subject]
            _remove_pattern(self._watched, f"{watcher.subject}.", "")

    def _changed(self, subjects: Iterable[str]) -> list[SubjectWatch]:
        changed = []
        for subject in subjects:
            of_subject = self._watchers.get(subject)
            if not of_subject:
                continue
            who = self._table.who(subject)
            for watcher in of_subject:
                if watcher.who != who:
                    watcher.who = who
                    changed.append(watcher)
        return changed


def has_wildcard(subject: str) -> bool:
    """Tell whether a subscription's subject matches others than itself."""
    if "*" not in subject and ">" not in subject:
        return False
    return subject == ">" or subject.endswith(".>") or "*" in subject.split(".")


def _remove_pattern(root: _Node, subject: str, group: str) -> bool:
    """Remove a pattern's group, and the nodes that nothing needs any more; tell whether it was
    there."""
    node, path = root, []
    for token in subject.split("."):
        path.append((node, token))
        child = node.children.get(token)
        if child is None:
            return False
        node = child
    if group not in node.groups:
        return False
    node.groups.discard(group)
    for parent, token in reversed(path):
        child = parent.children[token]
        if child.children or child.groups:
            break
        del parent.children[token]
    return True


def _matching(root: _Node, subject: str) -> Iterator[tuple[bool, set[str]]]:
    """Yield of each pattern that matches whether it is `>`, and its groups."""
    if not root.children:
        return
    tokens = subject.split(".")
    count = len(tokens)
    stack = [(root, 0)]
    while stack:
        node, depth = stack.pop()
        if depth == count:
            if node.groups:
                yield False, node.groups
            continue
        children = node.children
        if (rest := children.get(">")) is not None and rest.groups:
            yield node is root, rest.groups
        if (any_token := children.get("*")) is not None:
            stack.append((any_token, depth + 1))
        same = children.get(tokens[depth])
        if same is not None and same is not any_token and same is not rest:
            stack.append((same, depth + 1))


def _covered(watched: _Node, pattern: list[str]) -> list[str]:
    """Return the watched subjects that `pattern` covers."""
    found: list[str] = []
    rest = pattern[-1] == ">"
    fixed = len(pattern) - rest
    stack: list[tuple[_Node, int, tuple[str, ...]]] = [(watched, 0, ())]
    while stack:
        node, depth, tokens = stack.pop()
        if "" in node.children and (depth > fixed if rest else depth == fixed):
            found.append(".".join(tokens))
        wanted = pattern[depth] if depth < fixed else "*"
        if depth >= fixed and not rest:
            continue
        for token in node.children if wanted == "*" else (wanted,):
            child = node.children.get(token) if token else None
            if child is not None:
                stack.append((child, depth + 1, (*tokens, token)))
    return found
