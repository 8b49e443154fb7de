"""What commands tell the audit log of what they did.

A command that works on the files of a cluster leaves it in the outbox, from which the coordinator
takes it. It has done its work by then: a log that cannot be told is a line on stderr, no failure.
"""

from __future__ import annotations

import getpass
import socket
import time
from pathlib import Path
from typing import Any

import click

from holdfast.protocol.access.audit_event import (
    AuditAction,
    AuditEvent,
    AuditOutcome,
    shown,
)
from holdfast.protocol.errors import HoldfastError


def operating_user() -> str:
    """Return who runs this command, as the operating system says."""
    try:
        name = getpass.getuser()
    except (KeyError, OSError):
        # A container may run as a number without a name.
        name = "unknown"
    return shown(f"{name}@{socket.gethostname()}")


def deed(action: AuditAction, **fields: Any) -> AuditEvent:
    """Return the event of something that this command has done."""
    context = click.get_current_context(silent=True)
    process = "holdfast" if context is None else context.command_path
    told = {"user": operating_user(), **fields}
    now_ms = time.time_ns() // 1_000_000
    return AuditEvent.seen(now_ms, process, action, AuditOutcome.DONE, told)


def leave_for_audit(
    data: Path | None, bucket: str | None, action: AuditAction, **fields: Any
) -> None:
    """Leave an event in the outbox of the cluster whose `--data` or `--bucket` this is."""
    from holdfast.shared_fs.access.audit_outbox import AuditOutbox
    from holdfast.shared_fs.bucket.bucket import open_bucket
    from holdfast.shared_fs.disk.layout import Layout

    try:
        if data is not None:
            outbox = AuditOutbox(None, Layout(data.resolve()).audit)
        else:
            outbox = AuditOutbox(open_bucket(str(bucket), make=False))
        outbox.put([deed(action, **fields)])
    except (HoldfastError, OSError) as error:
        not_told(error)


def not_told(error: Exception) -> None:
    """Say that the audit log lacks what this command did."""
    click.echo(f"warning: the audit log was not told of this: {error}", err=True)
