"""`holdfast rebuild`: build a new cluster from the bucket when everything else is lost."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from holdfast.cli.commands.doctor import progress_bar
from holdfast.cli.commands.parts import needed_server_packages
from holdfast.cli.owner_jobs import BUCKET_OPTION
from holdfast.cli.render import print_json
from holdfast.cli.settings import Settings, pass_settings, shared_options
from holdfast.protocol.errors import InvalidArgumentError


@click.command()
@BUCKET_OPTION
@click.option(
    "--data",
    type=click.Path(file_okay=False, path_type=Path),
    required=True,
    help="An empty folder: the new shared file system, or the coordinator's own disk.",
)
@click.option("--yes", is_flag=True, help="Do not ask.")
@shared_options("json")
@pass_settings
def rebuild(settings: Settings, bucket: str, data: Path, yes: bool) -> None:
    """Build a new cluster from the bucket.

    It has every snapshot, and every `stored` write since. First stop the coordinator and the
    servers that still run. The command fences them, and writes that they acknowledge later, or
    below level `stored`, are lost. Then start them with DATA.
    """
    with needed_server_packages():
        from holdfast.shared_fs.disk.privacy import private_files
    with private_files():
        report = _checked(bucket, data, yes)
    if settings.json:
        print_json(report)
    else:
        click.echo(
            f"{report['stores']:,} stores are in {data}; {report['changes']:,} changes of "
            f"{report['updated']:,} stores came from {report['logs']:,} logs"
        )
        for problem in report["problems"]:
            click.echo(f"{problem['name']}: {problem['reason']}", err=True)
        for damage in report["damaged_logs"]:
            click.echo(damage, err=True)
    if report["problems"] or report["damaged_logs"]:
        click.get_current_context().exit(1)


def _checked(bucket_url: str, data: Path, yes: bool) -> dict[str, Any]:
    from holdfast.coordinator.state.lost_state import write_state
    from holdfast.persist.recovery.rebuilding import epochs_of, fold_logs
    from holdfast.shared_fs.bucket.cluster_id import give_new_cluster_id, write_cluster_id
    from holdfast.shared_fs.bucket_log.bucket_log import fence_every_log
    from holdfast.shared_fs.disk.disk import Disk
    from holdfast.shared_fs.disk.layout import open_layout
    from holdfast.shared_fs.disk.tombstone import Grave, write_tombstone
    from holdfast.shared_fs.snapshots.existing_bucket import existing_bucket
    from holdfast.shared_fs.snapshots.garbage import forget_epoch
    from holdfast.shared_fs.snapshots.manifest import open_manifests
    from holdfast.shared_fs.snapshots.store_entry import KeepPolicy

    disk = Disk()
    if [name for name in disk.names(data) if name not in ("FORMAT", "lost+found")]:
        raise InvalidArgumentError(
            argument="--data",
            reason=f"{data} is not empty, and a rebuild overwrites nothing: name an empty folder",
        )
    bucket = existing_bucket(bucket_url)
    manifests = open_manifests(bucket)
    if not yes:
        click.confirm(
            f"Fence every server of {bucket.name}, and build a new cluster in {data}?",
            abort=True,
            err=True,
        )
    disk.make_directory(data)
    layout = open_layout(data, disk)
    cluster = give_new_cluster_id(bucket)
    fence_every_log(bucket)
    forget_epoch(bucket)
    with tempfile.TemporaryDirectory(prefix="holdfast-rebuild-") as folder, progress_bar() as bar:
        folded = fold_logs(
            manifests,
            Path(folder),
            clock_ms=lambda: int(time.time() * 1000),
            # Keep all snapshots.
            keep=KeepPolicy(count=1 << 20, days=1e5),
            progress=bar,
        )
    stores = epochs_of(manifests, folded.epochs)
    for store, epoch, revision in stores:
        entry = manifests.find(store) if revision is None else None
        if entry is not None and entry.deleted is not None:
            grave = Grave(epoch, entry.deleted.revision, entry.deleted.time)
            write_tombstone(disk, layout.tombstone(store), grave)
    write_state(layout, disk, stores)
    write_cluster_id(disk, layout, cluster)
    return rebuild_report(
        stores=sum(1 for _, _, revision in stores if revision is not None),
        logs=folded.logs,
        updated=folded.stores,
        changes=folded.changes,
        problems={str(store): reason for store, reason in folded.problems.items()},
        damaged_logs=folded.damaged,
    )


def rebuild_report(
    *,
    stores: int,
    logs: int,
    updated: int,
    changes: int,
    problems: Mapping[str, str],
    damaged_logs: list[str],
) -> dict[str, Any]:
    """Return what was done as JSON."""
    return {
        "stores": stores,
        "logs": logs,
        "updated": updated,
        "changes": changes,
        "problems": [{"name": name, "reason": reason} for name, reason in problems.items()],
        "damaged_logs": damaged_logs,
    }
