"""The options of `format("holdfast")`, checked. Pure.

Reading and writing:

    nats        the NATS URL of the cluster; several are joined by commas
    tenant      the tenant (default: `default`)
    prefix      the subject prefix of the cluster (default: `hf`)
    nats_token, inbox_prefix    as in `connect`
    nats_credentials, nats_nkey, tls_ca, tls_cert, tls_key    as in `connect`: files, at the same
                path on every machine

Reading:

    bucket      read the newest snapshots in this bucket instead of the live cluster, without `nats`
    stream      names of streams, joined by commas; `*` matches one token, a final `>` one or more.
                Without `stream` and `kv` it is `>`
    kv          the same for key-value stores; batch only
    start_seq, end_seq    of each stream, inclusive
    start_time  messages appended from then on: milliseconds since the epoch, or ISO 8601 with a
                zone
    rows_per_partition    the approximate number of rows of a task
    pushdown    `true`: filters restrict what is read; see `source.py`
    value_schema    columns of values, as in `user string, amount double`; see `typed_values.py`
    value_format    `json` (the default) or `msgpack`
    maxRowsPerTrigger     the most rows in a micro-batch
    failOnDataLoss        `false`: continue if messages were removed before they were read

Writing:

    stream      the one stream for all rows
    kv          the one kv for all rows
    kind        `stream` (the default) or `kv`: without the two above, the column `store` names the
                store of each row, and this says what all of them are
    query       the identity of what is written, across runs; see `sink.py`
    durability  of the appends, as in `append`

Any other option is refused: a mistyped one would be ignored, and the query would read or write
something else than what was meant.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Final

from holdfast.protocol.access.own_token import OwnToken, own_token
from holdfast.protocol.bus.login import NatsLogin, TlsFiles
from holdfast.protocol.errors import InvalidArgumentError
from holdfast.protocol.messages import Durability
from holdfast.protocol.names import StoreKind, check_store, check_tenant
from holdfast.protocol.subjects import DEFAULT_PREFIX, Inboxes

DEFAULT_TENANT: Final = "default"
DEFAULT_ROWS_PER_PARTITION: Final = 250_000
_BOTH: Final = frozenset(
    (
        *("nats", "tenant", "prefix", "stream", "inbox_prefix"),
        *("nats_token", "nats_credentials", "nats_nkey", "tls_ca", "tls_cert", "tls_key"),
    )
)
#: The options for reading, and for writing.
READ_NAMES: Final = _BOTH | {
    *("bucket", "kv", "start_seq", "end_seq", "start_time", "rows_per_partition", "pushdown"),
    *("maxRowsPerTrigger", "failOnDataLoss", "value_schema", "value_format"),
}
WRITE_NAMES: Final = _BOTH | {"kv", "kind", "query", "durability"}
#: Spark passes these of a streaming query on to the source and the sink.
_OF_SPARK: Final = frozenset(["checkpointlocation", "queryname"])
_INTEGER: Final = re.compile(r"[0-9]{1,18}")
_ANY: Final = "[^.]+"
_REST: Final = ".+"


@dataclass(frozen=True, slots=True)
class NamePattern:
    """A pattern for names of stores."""

    text: str

    def __post_init__(self) -> None:
        for one in self._parts:
            tokens = one.split(".")
            for index, token in enumerate(tokens):
                if token == "*" or (token == ">" and index == len(tokens) - 1):
                    continue
                check_store(token)

    @property
    def _parts(self) -> list[str]:
        return [part.strip() for part in self.text.split(",")]

    @property
    def prefixes(self) -> list[str]:
        """Prefixes that cover the name of every store that matches. None of them begins
        with another."""
        starts = sorted({re.split(r"[*>]", part)[0] for part in self._parts})
        return [
            start
            for start in starts
            if not any(start != other and start.startswith(other) for other in starts)
        ]

    def matches(self, name: str) -> bool:
        return any(re.fullmatch(_expression(part), name) for part in self._parts)


def _expression(part: str) -> str:
    tokens = part.split(".")
    known = {"*": _ANY, ">": _REST}
    return r"\.".join(known.get(token, re.escape(token)) for token in tokens)


@dataclass(frozen=True, slots=True)
class Connection:
    """How a task reaches the cluster."""

    #: It may contain a password.
    nats: str = field(repr=False)
    tenant: str
    prefix: str = DEFAULT_PREFIX
    login: NatsLogin = field(default_factory=NatsLogin)
    inbox_prefix: str | None = None

    @property
    def inboxes(self) -> Inboxes:
        inboxes = Inboxes.parse(self.inbox_prefix, self.tenant, self.prefix)
        token = self.token
        return inboxes if token is None else token.inboxes(inboxes)

    @property
    def token(self) -> OwnToken | None:
        """The token of this job: the option `nats_token`, or what the environment has."""
        return own_token(self.login.options.get("token"))


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """What to read. Exactly one of `connection` and `bucket` is set."""

    tenant: str
    connection: Connection | None
    bucket: str | None
    streams: NamePattern | None
    kvs: NamePattern | None
    start_seq: int = 1
    end_seq: int | None = None
    start_time: int | None = None
    rows_per_partition: int = DEFAULT_ROWS_PER_PARTITION
    pushdown: bool = False
    max_rows_per_trigger: int | None = None
    fail_on_data_loss: bool = True
    value_format: str = "json"

    @property
    def patterns(self) -> list[tuple[StoreKind, NamePattern]]:
        both = ((StoreKind.STREAM, self.streams), (StoreKind.KV, self.kvs))
        return [(kind, pattern) for kind, pattern in both if pattern is not None]


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """Where to write rows."""

    connection: Connection
    kind: StoreKind
    #: The one store for all rows; None if the column `store` names that of each.
    store: str | None
    query: str | None
    durability: Durability


def read_options(options: Mapping[str, str]) -> ReadOptions:
    """Raises InvalidArgumentError, InvalidNameError."""
    check_names(options, READ_NAMES, "reading")
    tenant = _tenant(options)
    nats, bucket = options.get("nats"), options.get("bucket")
    if (nats is None) == (bucket is None):
        raise InvalidArgumentError(
            argument="nats", reason="set either nats, to read the live cluster, or bucket"
        )
    stream, kv = options.get("stream"), options.get("kv")
    if stream is None and kv is None:
        stream = ">"
    start_seq = number(options, "start_seq")
    if stream is None:
        for name in ("start_seq", "end_seq", "start_time"):
            if name in options:
                raise InvalidArgumentError(argument=name, reason="only streams have seqs")
    return ReadOptions(
        tenant=tenant,
        connection=None if nats is None else _connection(options),
        bucket=bucket,
        streams=None if stream is None else NamePattern(stream),
        kvs=None if kv is None else NamePattern(kv),
        start_seq=1 if start_seq is None else start_seq,
        end_seq=number(options, "end_seq", least=0),
        start_time=_time_ms(options.get("start_time")),
        rows_per_partition=number(options, "rows_per_partition") or DEFAULT_ROWS_PER_PARTITION,
        pushdown=flag(options, "pushdown", False),
        max_rows_per_trigger=number(options, "maxRowsPerTrigger"),
        fail_on_data_loss=flag(options, "failOnDataLoss", True),
        value_format=value_format(options),
    )


def write_options(options: Mapping[str, str]) -> WriteOptions:
    """Raises InvalidArgumentError, InvalidNameError."""
    check_names(options, WRITE_NAMES, "writing")
    kind, store = _written(options)
    word = options.get("durability", Durability.DEFAULT.word)
    try:
        durability = Durability[word.upper()]
    except KeyError as error:
        words = ", ".join(level.word for level in Durability)
        raise InvalidArgumentError(
            argument="durability", reason=f"must be one of {words}"
        ) from error
    return WriteOptions(
        connection=_connection(options),
        kind=kind,
        store=store,
        query=options.get("query"),
        durability=durability,
    )


def _written(options: Mapping[str, str]) -> tuple[StoreKind, str | None]:
    """Return the kind of the stores that are written, and the one store if it is one."""
    named = {kind: options[kind.word] for kind in StoreKind if kind.word in options}
    if len(named) > 1:
        raise InvalidArgumentError(argument="kv", reason="set either kv or stream")
    words = {kind.word: kind for kind in StoreKind}
    word = options.get("kind")
    if word is not None and word not in words:
        raise InvalidArgumentError(argument="kind", reason=f"must be {' or '.join(words)}")
    for kind, store in named.items():
        if word not in (None, kind.word):
            raise InvalidArgumentError(argument="kind", reason=f"must be {kind.word}, as named")
        return kind, check_store(store)
    return words[word or StoreKind.STREAM.word], None


def check_names(options: Mapping[str, str], known: frozenset[str], purpose: str) -> None:
    """Refuse an unknown option, and name the one that was probably meant. Spark does not
    distinguish upper and lower case."""
    spelled = {name.lower(): name for name in known}
    for name in options:
        if name.lower() in spelled or name.lower() in _OF_SPARK:
            continue
        if any(name.lower() == other.lower() for other in READ_NAMES | WRITE_NAMES):
            reason = f"is not an option for {purpose}"
        elif near := get_close_matches(name.lower(), spelled, 1):
            reason = f"there is no such option; did you mean {spelled[near[0]]!r}?"
        else:
            reason = f"there is no such option for {purpose}, only {', '.join(sorted(known))}"
        raise InvalidArgumentError(argument=name, reason=reason)


def _tenant(options: Mapping[str, str]) -> str:
    """Return the tenant: the one that is given, or that of the token."""
    token = own_token(options.get("nats_token")) if options.get("nats") else None
    given = options.get("tenant")
    if token is not None:
        return check_tenant(token.tenant(given, DEFAULT_TENANT))
    return check_tenant(DEFAULT_TENANT if given is None else given)


def _connection(options: Mapping[str, str]) -> Connection:
    nats = options.get("nats")
    if not nats:
        raise InvalidArgumentError(argument="nats", reason="must be the NATS URL of the cluster")
    token = options.get("nats_token")
    connection = Connection(
        nats,
        _tenant(options),
        options.get("prefix", DEFAULT_PREFIX),
        NatsLogin(
            credentials=options.get("nats_credentials"),
            nkey=options.get("nats_nkey"),
            tls=TlsFiles.of(*(options.get(name) for name in ("tls_ca", "tls_cert", "tls_key"))),
            options={} if token is None else {"token": token},
        ),
        options.get("inbox_prefix"),
    )
    # Raises for an inbox_prefix that is wrong, here on the driver.
    _ = connection.inboxes
    return connection


def value_format(options: Mapping[str, str]) -> str:
    """Return the format of typed values. Raises InvalidArgumentError."""
    schema, found = options.get("value_schema"), options.get("value_format")
    if found is not None and schema is None:
        raise InvalidArgumentError(argument="value_format", reason="it needs a value_schema")
    return found or "json"


def number(options: Mapping[str, str], name: str, *, least: int = 1) -> int | None:
    text = options.get(name)
    if text is None:
        return None
    if not _INTEGER.fullmatch(text) or int(text) < least:
        raise InvalidArgumentError(argument=name, reason=f"must be an integer of at least {least}")
    return int(text)


def flag(options: Mapping[str, str], name: str, default: bool) -> bool:
    text = options.get(name, str(default)).lower()
    if text not in ("true", "false"):
        raise InvalidArgumentError(argument=name, reason="must be true or false")
    return text == "true"


def _time_ms(text: str | None) -> int | None:
    if text is None:
        return None
    if _INTEGER.fullmatch(text):
        return int(text)
    try:
        time = datetime.datetime.fromisoformat(text)
    except ValueError as error:
        raise InvalidArgumentError(argument="start_time", reason=str(error)) from error
    if time.tzinfo is None:
        raise InvalidArgumentError(argument="start_time", reason="must have a zone")
    return int(time.timestamp() * 1000)
