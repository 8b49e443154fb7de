"""What text may stand in a line of NATS's protocol. Pure.

Clients choose inboxes, deliver subjects and the subjects they publish to, so any of them may try to
add a field or a line to what the gateway sends. nats-server itself takes more bytes for subjects
than are let through here: see `protocol/bus/nats_parser.py`.
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Sequence
from typing import Final

from holdfast.protocol.errors import InvalidArgumentError
from holdfast.protocol.limits import MAX_DELIVERY_SUBJECT_CHARACTERS, MAX_PORT_SUBJECTS_BYTES

#: The start of the subjects of acks.
ACKS: Final = "$JS.ACK."
#: Inboxes and subjects that were found to be right are remembered: many deliveries have the same.
_TEXTS_KEPT: Final = 1024


def is_field(text: str) -> bool:
    """Tell whether `text` is one field of a line: printable, and without spaces. Only characters
    that print count as such in Unicode, so no blank of another script passes."""
    return text.isprintable() and " " not in text and bool(text)


def is_wire_subject(text: str) -> bool:
    """Tell whether a message may have `text` as its subject: tokens, which may be wildcards."""
    return is_field(text) and ".." not in text and text[0] != "." and text[-1] != "."


def check_subscription(subject: str, queue: str) -> None:
    """Raise InvalidArgumentError unless a client can subscribe to this. nats-server closes the
    connection for a line that is too long, and would close each later one, which subscribes anew.
    """
    if not is_wire_subject(subject) or len(subject.encode()) > MAX_PORT_SUBJECTS_BYTES:
        raise _invalid("subject", subject)
    if queue and not is_field(queue):
        raise _invalid("queue", queue)


def is_reply_subject(text: str) -> bool:
    """Tell whether `text` may be answered to: a subject without wildcards."""
    return is_wire_subject(text) and "*" not in text and ">" not in text


def answerable(field: bytes) -> str:
    """Return the text of a reply subject; "" if no client can answer to it. A longer line than it
    may send has room for a longer reply subject than it may publish to."""
    text = decoded(field)
    return text if len(field) <= MAX_PORT_SUBJECTS_BYTES and is_reply_subject(text) else ""


def all_answerable(fields: Sequence[bytes]) -> list[str] | None:
    """Return the texts of reply subjects, of one at least, as `answerable` does for each; None if
    no client can answer to one of them. Looks at all in one piece, which takes a tenth of the
    time."""
    text = decoded(b" ".join(fields))
    texts = text.split(" ")
    if (
        len(texts) != len(fields)
        or max(map(len, fields)) > MAX_PORT_SUBJECTS_BYTES
        or not text.isprintable()
        or "*" in text
        or ">" in text
    ):
        return None
    # Between dots, so that an empty token, also the first or the last, shows as two of them.
    return None if ".." in f".{text.replace(' ', '. .')}." else texts


def decoded(field: bytes) -> str:
    """Return the text of a field; "" if it is not UTF-8."""
    try:
        return field.decode()
    except UnicodeDecodeError:
        return ""


def subject_fields(subject: str, reply: str) -> bytes:
    """Return the fields for a message's subject and reply subject, if it has one, in the line of a
    client. Raises InvalidArgumentError."""
    if not is_wire_subject(subject):
        raise _invalid("subject", subject)
    if reply and not is_field(reply):
        raise _invalid("reply", reply)
    fields = (f"{subject} {reply}" if reply else subject).encode()
    if len(fields) > MAX_PORT_SUBJECTS_BYTES:
        raise _invalid("subject", subject)
    return fields


@functools.lru_cache(_TEXTS_KEPT)
def _is_inbox(text: str) -> bool:
    return is_reply_subject(text) and len(text) <= MAX_DELIVERY_SUBJECT_CHARACTERS


@functools.lru_cache(_TEXTS_KEPT)
def _is_delivered_subject(text: str) -> bool:
    return is_wire_subject(text) and len(text) <= MAX_DELIVERY_SUBJECT_CHARACTERS


def delivery_fields(inbox: str, reply: str, subject: str, groups: Collection[str]) -> bytes:
    """Return the fields in the line of a leafnode, up to the sizes.

    nats-server cuts `@<subject>` off a reply subject below `$JS.ACK`, and gives the message that
    subject. Raises InvalidArgumentError.
    """
    if not _is_inbox(inbox):
        raise _invalid("inbox", inbox)
    if subject:
        if not _is_delivered_subject(subject):
            raise _invalid("subject", subject)
        if not reply.startswith(ACKS):
            raise _invalid("reply", reply)
    if reply:
        if not is_field(reply) or len(reply) > MAX_DELIVERY_SUBJECT_CHARACTERS:
            raise _invalid("reply", reply)
        if not groups:
            return (f"{inbox} {reply}@{subject}" if subject else f"{inbox} {reply}").encode()
        if subject:
            reply = f"{reply}@{subject}"
        return f"{inbox} + {reply} {' '.join(groups)}".encode()
    return f"{inbox} | {' '.join(groups)}".encode() if groups else inbox.encode()


def _invalid(argument: str, text: str) -> InvalidArgumentError:
    reason = f"NATS cannot carry a message with {text[:100]!r} ({len(text)} characters)"
    return InvalidArgumentError(argument=argument, reason=reason)
