"""Which stores the options of a write name."""

from __future__ import annotations

import pytest

from holdfast.protocol.errors import InvalidArgumentError, InvalidNameError
from holdfast.protocol.names import StoreKind
from holdfast.spark.options import write_options

NATS = {"nats": "nats://127.0.0.1:1"}


@pytest.mark.parametrize(
    ("options", "kind", "store"),
    [
        ({}, StoreKind.STREAM, None),
        ({"stream": "a"}, StoreKind.STREAM, "a"),
        ({"kv": "a"}, StoreKind.KV, "a"),
        ({"kv": "a", "kind": "kv"}, StoreKind.KV, "a"),
        ({"kind": "kv"}, StoreKind.KV, None),
    ],
)
def test_the_options_name_the_stores(
    options: dict[str, str], kind: StoreKind, store: str | None
) -> None:
    found = write_options({**NATS, **options})
    assert (found.kind, found.store) == (kind, store)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"kv": "a", "stream": "a"}, "either kv or stream"),
        ({"kv": "a", "kind": "stream"}, "must be kv"),
        ({"kind": "table"}, "must be stream or kv"),
        ({"kvs": "a"}, "did you mean 'kv'"),
        ({"start_seq": "1"}, "not an option for writing"),
    ],
)
def test_options_that_contradict_each_other_are_refused(
    options: dict[str, str], reason: str
) -> None:
    with pytest.raises(InvalidArgumentError, match=reason):
        write_options({**NATS, **options})


def test_a_store_must_have_a_name() -> None:
    with pytest.raises(InvalidNameError):
        write_options({**NATS, "kv": "a..b"})
