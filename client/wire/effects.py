"""The effects of the coalescer, which the link carries out."""

from __future__ import annotations

from typing import NamedTuple

from holdfast.client.wire.store_queue import StoreKey


class SendFrame(NamedTuple):
    """Publish `payload` to `server`; replies carry `number`."""

    server: str
    number: int
    payload: bytes


class Resolve(NamedTuple):
    """Ask the coordinator who owns `stores`, in one request."""

    stores: list[StoreKey]


class Suspect(NamedTuple):
    """Tell the coordinator that nobody answers for this incarnation."""

    server: str
    incarnation: str


Effect = SendFrame | Resolve | Suspect
