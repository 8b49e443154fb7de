"""Names of streams and consumers, and subjects: what is allowed, and which ones meet.

The rules are nats-server's. A subject is tokens joined by dots; `*` stands for one token, a last
`>` for one or more. A *literal* subject has no wildcards. What a filter matches is the business of
`protocol/subject_filters.py`, which the stores use too; names that the stores refuse are allowed
here as far as nats-server allows them.
"""

from __future__ import annotations

import secrets
import string
from typing import Final

from holdfast.protocol import subject_filters

#: nats-server's bound, which clients do not check.
MAX_NAME_LENGTH: Final = 255
#: As long as those that nats-server makes.
_MADE_NAME_LENGTH: Final = 8
_FORBIDDEN_IN_NAMES: Final = frozenset(" \t\r\n\f.*>\\/")
_FORBIDDEN_IN_SUBJECTS: Final = frozenset(" \t\r\n\f\0\N{REPLACEMENT CHARACTER}")
_LETTERS: Final = string.ascii_letters + string.digits


def is_name(text: str) -> bool:
    """Return whether a stream or consumer may have this name, but for its length."""
    return bool(text) and _FORBIDDEN_IN_NAMES.isdisjoint(text)


def made_name() -> str:
    """Return a new random name for a consumer whose client gave none."""
    return "".join(secrets.choice(_LETTERS) for _ in range(_MADE_NAME_LENGTH))


def is_subject(text: str) -> bool:
    """Return whether it is a subject, with or without wildcards."""
    if not text or not _FORBIDDEN_IN_SUBJECTS.isdisjoint(text):
        return False
    tokens = text.split(".")
    return "" not in tokens and ">" not in tokens[:-1]


def has_wildcards(subject: str) -> bool:
    """Return whether a token of the subject is a wildcard."""
    return not subject_filters.is_literal(subject)


def is_literal(text: str) -> bool:
    """Return whether it is a subject without wildcards."""
    return is_subject(text) and not has_wildcards(text)


def is_subset(subject: str, of: str) -> bool:
    """Return whether every subject that `subject` matches is matched by `of` too."""
    if subject == of or of == ">":
        return True
    inner, outer = subject.split("."), of.split(".")
    for index, expected in enumerate(outer):
        if index >= len(inner):
            return False
        if expected == ">":
            return True
        token = inner[index]
        if token == ">" or (token != expected and expected != "*"):
            return False
    return len(inner) == len(outer)
