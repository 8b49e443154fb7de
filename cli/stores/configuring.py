"""`holdfast stream config` and `holdfast kv config`: show the limits of a store, or change them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import asdict
from typing import Any, Final

import click

from holdfast.cli.render import JsonObject, print_fields, print_json
from holdfast.cli.settings import Settings
from holdfast.client import KV, Stream
from holdfast.protocol.errors import InvalidArgumentError
from holdfast.protocol.messages import Durability
from holdfast.protocol.names import StoreKind
from holdfast.protocol.store_config import (
    DEFAULT_CONFIG,
    OF_KVS,
    OF_STREAMS,
    Discard,
    StoreConfig,
    ttl_ms,
)

_NONE: Final = "none"


def _whole_number(text: str) -> Any:
    return _parse(int, text)


def _number(text: str) -> Any:
    return _parse(float, text)


def _parse(number: Callable[[str], int | float], text: str) -> Any:
    if text == _NONE:
        return _NONE
    try:
        return number(text)
    except ValueError:
        raise click.BadParameter(f"{text!r} is neither a number nor {_NONE!r}") from None


def parse_ttl(text: str) -> float:
    """Parse a ttl in seconds (the type of a click option)."""
    try:
        ttl_ms(seconds := float(text))
    except (ValueError, InvalidArgumentError):
        raise click.BadParameter(f"{text!r} is not a number of seconds above 0") from None
    return seconds


_OPTIONS: Final[dict[str, dict[str, Any]]] = {
    "max_messages": {
        "type": _whole_number,
        "metavar": "COUNT",
        "help": "Keep at most this many messages or keys.",
    },
    "max_bytes": {
        "type": _whole_number,
        "metavar": "BYTES",
        "help": "Keep at most this many bytes in total.",
    },
    "max_age_seconds": {
        "type": _number,
        "metavar": "SECONDS",
        "help": "Remove messages or keys this long after they were set.",
    },
    "max_message_bytes": {
        "type": _whole_number,
        "metavar": "BYTES",
        "help": "Refuse a larger message or entry.",
    },
    "max_messages_per_second": {
        "type": _number,
        "metavar": "COUNT",
        "help": "Refuse writes beyond this rate.",
    },
    "max_bytes_per_second": {
        "type": _number,
        "metavar": "BYTES",
        "help": "Refuse writes beyond this rate.",
    },
    "discard": {
        "type": click.Choice([word.value for word in Discard]),
        "help": "When the store is full, remove old messages or refuse new ones.",
    },
    "durability": {
        "type": click.Choice([level.word for level in Durability]),
        "help": "The level of writes that do not ask for one; default: the server's.",
    },
    "dedupe_window_seconds": {
        "type": _number,
        "metavar": "SECONDS",
        "help": "Remember a msg_id this long; 0: not at all.",
    },
    "archive_after_seconds": {
        "type": _number,
        "metavar": "SECONDS",
        "help": "Keep messages older than this in the archive alone.",
    },
    "max_messages_per_subject": {
        "type": _whole_number,
        "metavar": "COUNT",
        "help": "Keep at most this many messages of one subject.",
    },
    "discard_new_per_subject": {
        "type": bool,
        "metavar": "BOOLEAN",
        "help": "Refuse messages above that, instead of removing old ones.",
    },
    "subject_marker_seconds": {
        "type": _number,
        "metavar": "SECONDS",
        "help": "Mark a subject this long when its last message expires.",
    },
    "first_seq": {
        "type": _whole_number,
        "metavar": "SEQ",
        "help": "The first seq, of a stream that has had no message.",
    },
    "deny_delete": {
        "type": bool,
        "metavar": "BOOLEAN",
        "help": "Refuse to delete or replace messages.",
    },
    "deny_purge": {
        "type": bool,
        "metavar": "BOOLEAN",
        "help": "Refuse to trim or purge messages.",
    },
    "sealed": {
        "type": bool,
        "metavar": "BOOLEAN",
        "help": "Refuse every change of messages.",
    },
    "serving_epoch": {
        "type": _whole_number,
        "metavar": "NUMBER",
        "help": "Whose writes are taken; it only grows. A gateway sets it.",
    },
    "history": {
        "type": _whole_number,
        "metavar": "COUNT",
        "help": "Keep this many values of each key, its present one included.",
    },
    "chain": {
        "type": bool,
        "metavar": "BOOLEAN",
        "help": "Keep a chain of hashes. It cannot be ended again.",
    },
    "ephemeral": {
        "type": bool,
        "metavar": "BOOLEAN",
        "help": "Keep an empty store in its owner's memory alone, from now on.",
    },
    "description": {"metavar": "TEXT", "help": "What the store is for."},
}


def config_options(kind: StoreKind) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return a decorator that gives a command the options for the limits of a store."""

    def add(command: Callable[..., Any]) -> Callable[..., Any]:
        for name, options in reversed(_OPTIONS.items()):
            if name not in (OF_KVS if kind is StoreKind.STREAM else OF_STREAMS):
                command = click.option(f"--{name.replace('_', '-')}", **options)(command)
        return command

    return add


def show_config(settings: Settings, kind: StoreKind, name: str, wanted: dict[str, Any]) -> None:
    """Change the settings in `wanted`, if there are any, and show the configuration."""
    changes = {
        each: None if value == _NONE and each != "description" else value
        for each, value in wanted.items()
        if value is not None
    }

    async def ask() -> StoreConfig:
        async with settings.connect() as client:
            store: Stream | KV
            store = client.stream(name) if kind is StoreKind.STREAM else client.kv(name)
            if changes:
                return await store.configure(**changes)
            return await store.config()

    found = asyncio.run(ask())
    if settings.json:
        print_json(config_json(name, found))
    else:
        shown = {
            each: "-" if value in (None, "") else value for each, value in _rows(found).items()
        }
        print_fields({kind.word: name, **shown})


def config_json(name: str, config: StoreConfig) -> JsonObject:
    """Return a whole configuration as JSON."""
    return {"name": name, **_rows(config)}


def _rows(config: StoreConfig) -> JsonObject:
    rows = asdict(DEFAULT_CONFIG) | asdict(config)
    return rows | {"discard": config.discard.value, "durability": config.durability.word}
