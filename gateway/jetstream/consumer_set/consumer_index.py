"""Which consumers want the messages of a subject.

Most filters are literal, and subjects come again and again: so literal filters are looked up, and
what was found for a subject is kept until a consumer comes or goes.
"""

from __future__ import annotations

from typing import Final

from holdfast.gateway.jetstream.api.names import has_wildcards, is_subset
from holdfast.gateway.jetstream.consumer_set.served_consumer import ServedConsumer

#: Subjects whose consumers are kept; a stream may have millions.
_MAX_KEPT: Final = 4096


class ConsumerIndex:
    """The consumers of one stream by their filters."""

    def __init__(self) -> None:
        self._all: dict[str, ServedConsumer] = {}
        self._literal: dict[str, dict[str, ServedConsumer]] = {}
        self._patterns: dict[str, tuple[ServedConsumer, tuple[str, ...]]] = {}
        self._kept: dict[str, tuple[ServedConsumer, ...]] = {}

    def add(self, consumer: ServedConsumer) -> None:
        """Add a consumer, or change its filters."""
        self.remove(consumer.name)
        filters = consumer.config.filters
        if not filters:
            self._all[consumer.name] = consumer
            return
        patterns = tuple(each for each in filters if has_wildcards(each))
        if patterns:
            self._patterns[consumer.name] = consumer, patterns
        for each in filters:
            if each not in patterns:
                self._literal.setdefault(each, {})[consumer.name] = consumer

    def remove(self, name: str) -> None:
        """Remove a consumer."""
        self._kept.clear()
        self._all.pop(name, None)
        self._patterns.pop(name, None)
        for subject in [each for each, found in self._literal.items() if name in found]:
            del self._literal[subject][name]
            if not self._literal[subject]:
                del self._literal[subject]

    def of(self, subject: str) -> tuple[ServedConsumer, ...]:
        """Return the consumers that want messages of a subject."""
        found = self._kept.get(subject)
        if found is None:
            if len(self._kept) >= _MAX_KEPT:
                self._kept.clear()
            found = self._kept[subject] = self._found(subject)
        return found

    def _found(self, subject: str) -> tuple[ServedConsumer, ...]:
        found = self._all | self._literal.get(subject, {})
        for name, (consumer, patterns) in self._patterns.items():
            if any(is_subset(subject, each) for each in patterns):
                found[name] = consumer
        return tuple(found.values())
