"""The table of what stores hold, beside a table of changes: the sets that no later change removes.

It has the columns and the layout of a table of changes, and a commit of it says up to which run of
which table it goes: `holdfast.latest.<id of the table of changes>` is the application, and the
number of the run the version of its transaction. Rows keep the run that added them. So the state of
the stores is at any time that of these rows and of the changes since that run, together.

It can be removed at any time, and is made anew by the next export that is asked for it.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Final

from deltalake.transaction import AddAction, CommitProperties, RemoveAction, Transaction

from holdfast.shared_fs.archive.table_location import TableLocation
from holdfast.spark.tables.table import AddedFile, ChangesTable, DeltaFile

_SUFFIX: Final = "-latest"
_APPLICATION: Final = "holdfast.latest."
_ERASURE: Final = "holdfast.erasure"


def latest_location(changes: TableLocation) -> TableLocation:
    """Return where the table of what stores hold is, beside that of their changes."""
    place, mark, options = changes.url.partition("?")
    return TableLocation(f"{place.rstrip('/')}{_SUFFIX}{mark}{options}")


class LatestTable(ChangesTable):
    """The table of what stores hold, as it was when this was created or refreshed. Blocking."""

    NAME: ClassVar = "latest"
    DESCRIPTION: ClassVar = "holdfast: what every store holds"

    def __init__(self, changes: ChangesTable) -> None:
        """Open the one that belongs to an existing table of changes, if it is there. Raises as
        ChangesTable does."""
        self._changes_id = str(changes.delta.metadata().id)
        layout = changes.layout if changes.layout.is_grouped else None
        super().__init__(latest_location(changes.location), layout)

    @property
    def changes_version(self) -> int | None:
        """The `export_version` of the table of changes up to which this goes; None if it was never
        made of that table."""
        if not self.exists:
            return None
        return self.delta.transaction_version(self._application)

    @property
    def _application(self) -> str:
        return f"{_APPLICATION}{self._changes_id}"

    def advance(
        self, changes_version: int, before: Sequence[DeltaFile], after: Sequence[AddedFile]
    ) -> None:
        """Commit that the table goes up to a run of the table of changes, with `after` in place of
        `before`. Raises TableConflictError if anybody has committed since this was refreshed."""
        actions: list[AddAction | RemoveAction] = [one.removal(data_change=True) for one in before]
        actions += [one.action(data_change=True) for one in after]
        properties = CommitProperties(
            # The rows follow from the version that was read, and from no other one.
            max_commit_retries=0,
            app_transactions=[Transaction(self._application, changes_version)],
        )
        self.look_at(after)
        self.commit(actions, properties)

    def refuse_earlier(self) -> None:
        """Commit nothing, so that no `advance` can commit that has read the tables before. Raises
        TableConflictError if anybody else does so just now."""
        version = int(time.time() * 1000)
        self.commit([], CommitProperties(app_transactions=[Transaction(_ERASURE, version)]))

    def erase(
        self,
        before: Sequence[DeltaFile],
        after: Sequence[AddedFile],
        report: Mapping[str, Any],
    ) -> None:
        """Replace files by others with fewer rows, or none. Raises TableConflictError if anybody
        has committed since this was refreshed."""
        self.check_features()
        actions: list[AddAction | RemoveAction] = [one.removal(data_change=True) for one in before]
        actions += [one.action(data_change=True) for one in after]
        metadata = {"holdfast": json.dumps(report)}
        self.look_at(after)
        self.commit(actions, CommitProperties(custom_metadata=metadata, max_commit_retries=0))
