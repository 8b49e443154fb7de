"""`holdfast stream ...`: append to streams, read, follow and trim them."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import click

from holdfast.cli.advice import EXIT_FAILED
from holdfast.cli.render import (
    ack_json,
    consumer_json,
    dead_letter_json,
    dead_letter_line,
    head_json,
    message_json,
    message_line,
    print_fields,
    print_json,
    print_table,
    size,
)
from holdfast.cli.settings import Settings, client_command
from holdfast.cli.stores.configuring import config_options, show_config
from holdfast.cli.stores.file_values import FILE_OPTION, OUTPUT_OPTION, opened, write_value
from holdfast.cli.stores.following import REVISION, follow, is_pattern
from holdfast.cli.stores.store_commands import (
    DURABILITY_OPTION,
    HEADER_OPTION,
    TTL_OPTION,
    destroy_store,
    missing,
    show_deleted,
    show_stores,
    show_value,
)
from holdfast.cli.stores.subjects import (
    FILTERS_OPTION,
    parse_filter,
    purge_subjects,
    show_subjects,
)
from holdfast.cli.stores.values import line_batches, read_value
from holdfast.protocol.consumers import ConsumerInfo
from holdfast.protocol.errors import NotFoundError
from holdfast.protocol.messages import Ack, Deleted, Durability, Head
from holdfast.protocol.names import StoreKind

SEQ = click.IntRange(min=1)


@click.group()
def stream() -> None:
    """Streams: messages in order, numbered from 1."""


@stream.command("ls")
@click.argument("name_prefix", default="")
@click.option("--limit", type=click.IntRange(1), help="List at most this many.")
@click.option("--names", "-n", is_flag=True, help="Print only names, one per line.")
@client_command
def ls(settings: Settings, name_prefix: str, limit: int | None, names: bool) -> None:
    """List the streams whose names start with NAME_PREFIX."""
    show_stores(settings, StoreKind.STREAM, name_prefix, limit, names_only=names)


@stream.command("info")
@click.argument("name")
@client_command
def info(settings: Settings, name: str) -> None:
    """Show a stream's size, seqs, revision and owner."""

    async def ask() -> Head:
        async with settings.connect() as client:
            return await client.stream(name).head()

    head = asyncio.run(ask())
    if settings.json:
        print_json({"name": name, **head_json(head)})
        return
    print_fields(
        {
            "stream": name,
            "messages": f"{head.count:,}",
            "size": size(head.bytes),
            "first seq": head.first_seq,
            "last seq": head.last_seq,
            "revision": head.revision,
            "server": head.server or "-",
            "epoch": head.epoch,
        }
    )


@stream.command("consumers")
@click.argument("name")
@client_command
def consumers(settings: Settings, name: str) -> None:
    """List the consumers of a stream and their progress."""

    async def ask() -> list[ConsumerInfo]:
        async with settings.connect() as client:
            return await client.stream(name).consumers()

    found = asyncio.run(ask())
    if settings.json:
        print_json({"consumers": [consumer_json(one) for one in found]})
        return
    columns = ("ack_floor", "ack_pending", "lag", "acked", "redelivered", "given_up")
    print_table(
        ("name", *columns),
        [
            (
                one.name,
                one.ack_floor,
                one.ack_pending_count,
                one.lag,
                one.acked_count,
                one.redelivered_count,
                one.given_up_count,
            )
            for one in found
        ],
        right=columns,
        optional=("acked", "redelivered"),
    )


@stream.command("dead-letters")
@click.argument("name")
@click.argument("consumer")
@client_command
def dead_letters(settings: Settings, name: str, consumer: str) -> None:
    """List the dead letters of a consumer, oldest first."""

    async def show() -> bool:
        async with settings.connect() as client:
            source = client.stream(name)
            if consumer not in [info.name for info in await source.consumers()]:
                return False
            async for letter in source.consumer(consumer).dead_letters():
                if settings.json:
                    print_json(dead_letter_json(letter))
                else:
                    click.echo(dead_letter_line(letter))
            return True

    if not asyncio.run(show()):
        _no_consumer(settings, name, consumer)


@stream.command("requeue")
@click.argument("name")
@click.argument("consumer")
@click.argument("seqs", metavar="[SEQ...]", type=SEQ, nargs=-1)
@click.option("--all", "every", is_flag=True, help="Requeue all dead letters of the consumer.")
@client_command
def requeue(
    settings: Settings, name: str, consumer: str, seqs: tuple[int, ...], every: bool
) -> None:
    """Append dead letters to their stream again. SEQ is the seq of the dead letter."""
    if bool(seqs) == every:
        raise click.UsageError("name dead letters, or give --all")

    async def send() -> list[int | None] | None:
        async with settings.connect() as client:
            source = client.stream(name)
            if consumer not in [info.name for info in await source.consumers()]:
                return None
            queue = source.consumer(consumer)
            found = [letter async for letter in queue.dead_letters()]
            if unknown := set(seqs) - {letter.message.seq for letter in found}:
                raise NotFoundError(what="dead letter", name=str(min(unknown)))
            wanted = [letter for letter in found if every or letter.message.seq in seqs]
            return [(await queue.requeue(letter)).seq for letter in wanted]

    new_seqs = asyncio.run(send())
    if new_seqs is None:
        _no_consumer(settings, name, consumer)
    elif settings.json:
        print_json({"requeued": len(new_seqs), "seqs": new_seqs})
    else:
        click.echo(f"{len(new_seqs):,} requeued")


def _no_consumer(settings: Settings, name: str, consumer: str) -> None:
    what = f"stream {name!r} has no consumer {consumer!r}"
    missing(settings, what, f"holdfast stream consumers {name}")


@stream.command("append")
@click.argument("name")
@click.argument("value", required=False)
@FILE_OPTION
@click.option("--lines", is_flag=True, help="Append each line of stdin as a message.")
@click.option("--subject", help="What the message is about: tokens joined by dots.")
@HEADER_OPTION
@click.option("--msg-id", help="Store a message with this id only once.")
@click.option(
    "--expected-last-seq",
    type=click.IntRange(min=0),
    help="Append only if this is the stream's last seq.",
)
@TTL_OPTION
@DURABILITY_OPTION
@client_command
def append(
    settings: Settings,
    name: str,
    value: str | None,
    file: Path | None,
    lines: bool,
    subject: str | None,
    headers: dict[str, str] | None,
    msg_id: str | None,
    expected_last_seq: int | None,
    ttl: float | None,
    durability: Durability | None,
) -> None:
    """Append VALUE as one message.

    If VALUE is missing or -, the message is the content of stdin. The command prints the new seq
    once the message is stored.
    """
    if file is not None and (lines or value is not None):
        raise click.UsageError("--file, --lines and VALUE exclude each other")
    if lines and (value not in (None, "-") or msg_id or expected_last_seq is not None):
        raise click.UsageError(
            "--lines reads stdin and goes with --subject, --header, --ttl and --durability only"
        )
    options: dict[str, Any] = {"subject": subject, "ttl_seconds": ttl, "durability": durability}
    if lines:
        _show_lines(settings, asyncio.run(_append_lines(settings, name, headers, options)))
        return
    options |= {"headers": headers, "msg_id": msg_id, "expected_last_seq": expected_last_seq}
    content = b"" if file is not None else read_value(value)

    async def send() -> Ack:
        async with settings.connect() as client:
            target = client.stream(name)
            if file is not None:
                with opened(file) as source:
                    return await target.put_file(source, **options)
            if isinstance(content, bytes):
                return await target.append(content, **options)
            return await target.put_file(content, **options)

    ack = asyncio.run(send())
    if settings.json:
        print_json(ack_json(ack))
    else:
        note = " (stored before)" if ack.duplicate else ""
        click.echo(f"{ack.seq}  {ack.durability.word}{note}")


async def _append_lines(
    settings: Settings, name: str, headers: dict[str, str] | None, options: dict[str, Any]
) -> list[Ack]:
    """Append stdin line by line; return the first and the last ack."""
    ends: list[Ack] = []
    async with settings.connect() as client:
        target = client.stream(name)
        async for batch in line_batches():
            values = batch if headers is None else [(line, headers) for line in batch]
            acks = await target.append_many(values, **options)
            ends = [ends[0] if ends else acks[0], acks[-1]]
    return ends


def _show_lines(settings: Settings, ends: list[Ack]) -> None:
    first_seq, last_seq = (ends[0].seq, ends[1].seq) if ends else (None, None)
    if settings.json:
        durability = ends[1].durability.word if ends else None
        print_json({"first_seq": first_seq, "last_seq": last_seq, "durability": durability})
    elif ends:
        click.echo(f"{first_seq}-{last_seq}  {ends[1].durability.word}")


@stream.command("get")
@click.argument("name")
@click.argument("seq", type=SEQ)
@OUTPUT_OPTION
@client_command
def get(settings: Settings, name: str, seq: int, output: Path | None) -> None:
    """Write the value of message SEQ to stdout or to a file."""

    async def show() -> bool:
        async with settings.connect() as client:
            reader = await client.stream(name).get_reader(seq)
            return await show_value(settings, reader, message_json, output)

    if not asyncio.run(show()):
        missing(settings, f"stream {name!r} has no message {seq}", f"holdfast stream info {name}")


@stream.command("read")
@click.argument("name")
@click.option("--start", type=SEQ, help="Start at this seq.")
@click.option("--end", type=SEQ, help="End with this seq.")
@click.option("--last", type=click.IntRange(1), help="Print the last messages, this many.")
@click.option("--limit", type=click.IntRange(1), help="List at most this many.")
@FILTERS_OPTION
@click.option(
    "--raw", is_flag=True, help="Print only the values, byte for byte, with nothing between them."
)
@client_command
def read(
    settings: Settings,
    name: str,
    start: int | None,
    end: int | None,
    last: int | None,
    limit: int | None,
    subjects: list[str] | None,
    raw: bool,
) -> None:
    """Print the messages of a stream, oldest first."""
    if last is not None and start is not None:
        raise click.UsageError("--last and --start exclude each other")
    if last is not None and subjects is not None:
        raise click.UsageError("--last and --subject exclude each other")

    async def show() -> None:
        async with settings.connect() as client:
            options: dict[str, Any] = {"end_seq": end, "last": last, "limit": limit}
            options["subjects"] = subjects
            if start is not None:
                options["start_seq"] = start
            target = client.stream(name)
            async for message in target.get_all(**options):
                if settings.json:
                    print_json(message_json(message))
                elif raw:
                    reader = await target.get_reader(message)
                    assert reader is not None
                    await write_value(settings, reader, None)
                else:
                    click.echo(message_line(message))

    asyncio.run(show())


@stream.command("tail")
@click.argument("name")
@click.option("--start", type=SEQ, help="Print existing messages from this seq on first.")
@click.option("--start-revision", type=REVISION, help="Continue after this revision.")
@click.option("--limit", type=click.IntRange(1), help="Stop after this many changes.")
@FILTERS_OPTION
@click.option("--raw", is_flag=True, help="Print only new values, byte for byte.")
@client_command
def tail(
    settings: Settings,
    name: str,
    start: int | None,
    start_revision: int | None,
    limit: int | None,
    subjects: list[str] | None,
    raw: bool,
) -> None:
    """Follow a stream until Ctrl-C.

    NAME is a stream, or a pattern such as `project.*.chat` that stands for all streams that match.
    """
    if start_revision is not None and start is not None:
        raise click.UsageError("--start-revision and --start exclude each other")
    if start_revision is not None and is_pattern(name):
        raise click.UsageError("--start-revision needs the name of one stream, not a pattern")
    if subjects is not None and is_pattern(name):
        raise click.UsageError("--subject needs the name of one stream, not a pattern")

    what = name
    if start is None and start_revision is None:
        what += " from now on (--start 1 shows what is there too)"

    async def show() -> None:
        async with settings.connect() as client:
            if is_pattern(name):
                found = client.subscribe(name, start_seq=start)
                await follow(settings, found, limit, what=what, raw=raw)
            else:
                stream = client.stream(name)
                changes = stream.subscribe(
                    start_seq=start, start_revision=start_revision, subjects=subjects
                )
                await follow(settings, changes, limit, what=what, raw=raw)

    asyncio.run(show())


@stream.command("subjects")
@click.argument("name")
@click.argument("wanted", metavar="[FILTER]", default=">", callback=parse_filter)
@click.option("--limit", type=click.IntRange(1), help="List at most this many.")
@click.option("--names", "-n", is_flag=True, help="Print only subjects, one per line.")
@client_command
def subjects(settings: Settings, name: str, wanted: str, limit: int | None, names: bool) -> None:
    """List the subjects of a stream's messages that match FILTER."""
    show_subjects(settings, name, wanted, limit, names_only=names)


@stream.command("config")
@click.argument("name")
@config_options(StoreKind.STREAM)
@client_command
def config(settings: Settings, name: str, **wanted: Any) -> None:
    """Show the limits of a stream, after changing those you give. `none` removes a limit."""
    show_config(settings, StoreKind.STREAM, name, wanted)


@stream.command("delete")
@click.argument("name")
@click.argument("seqs", metavar="SEQ...", type=SEQ, nargs=-1, required=True)
@client_command
def delete(settings: Settings, name: str, seqs: tuple[int, ...]) -> None:
    """Delete single messages. Their seqs are never used again."""

    async def send() -> Deleted:
        async with settings.connect() as client:
            return await client.stream(name).delete(list(seqs))

    show_deleted(settings, asyncio.run(send()))


@stream.command("delete-all")
@click.argument("name")
@click.option("--end", type=SEQ, help="Delete only up to and including this seq.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@client_command
def delete_all(settings: Settings, name: str, end: int | None, yes: bool) -> None:
    """Delete all messages of a stream. New messages get the next seqs."""

    async def ask() -> Head:
        async with settings.connect() as client:
            return await client.stream(name).head()

    async def send(end_seq: int | None) -> Deleted:
        async with settings.connect() as client:
            return await client.stream(name).delete_all(end_seq=end_seq)

    if not yes:
        head = asyncio.run(ask())
        # The answer does not cover messages that arrive after the question.
        end = head.last_seq if end is None else min(end, head.last_seq)
        held = f"{head.count:,} messages, {size(head.bytes)}"
        question = f"Delete everything up to seq {end} in stream {name!r} ({held})?"
        if end == 0 or not click.confirm(question, err=True):
            click.echo("nothing deleted", err=True)
            click.get_current_context().exit(0 if end == 0 else EXIT_FAILED)
    show_deleted(settings, asyncio.run(send(end)))


@stream.command("purge")
@click.argument("name")
@click.option("--subject", metavar="FILTER", help="Only messages whose subject matches.")
@click.option("--end", type=SEQ, help="Delete only up to and including this seq.")
@click.option("--keep", type=click.IntRange(0), help="Keep the last messages, this many.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@client_command
def purge(
    settings: Settings,
    name: str,
    subject: str | None,
    end: int | None,
    keep: int | None,
    yes: bool,
) -> None:
    """Delete messages by their subject."""
    purge_subjects(settings, name, subject, end, keep, yes=yes)


@stream.command("destroy")
@click.argument("name")
@click.option("--yes", is_flag=True, help="Do not ask.")
@client_command
def destroy(settings: Settings, name: str, yes: bool) -> None:
    """Remove a stream and its snapshots. You cannot undo this."""
    destroy_store(settings, StoreKind.STREAM, name, yes=yes)
