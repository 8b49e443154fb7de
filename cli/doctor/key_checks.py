"""What the doctor finds of the keys of encrypted tenants. It needs no master key."""

from __future__ import annotations

from collections import Counter

from holdfast.cli.doctor import checks
from holdfast.cli.doctor.checks import Findings
from holdfast.protocol.errors import StorageError
from holdfast.protocol.names import StoreId
from holdfast.shared_fs.disk.layout import Layout
from holdfast.shared_fs.encryption.registry import keys_of
from holdfast.shared_fs.inspection.inspection import FileVerdict


class KeyChecks:
    """Compares the registry of keys with the files that it is shown."""

    def __init__(self, layout: Layout, findings: Findings) -> None:
        self._layout = layout
        self._findings = findings
        #: How many files of each tenant have encrypted values.
        self._files: Counter[str] = Counter()

    def look_at(self, store: StoreId, verdict: FileVerdict) -> None:
        """Note whether a file has encrypted values."""
        self._files[store.tenant] += verdict.is_encrypted

    def run(self) -> None:
        """Check the registry. Call it after all files were looked at, because a tenant is there
        before its first encrypted value."""
        try:
            known = keys_of(self._layout, None).read().tenants
        except StorageError as error:
            self._findings.alarm(checks.KEYS, "encryption", str(error))
            return
        for tenant, (_, record) in sorted(known.items()):
            if record.current is None and record.shredded is None:
                where = f"encryption: tenants/{tenant}"
                self._findings.alarm(checks.KEYS, where, "the keys of the tenant are missing")
        for tenant, count in sorted(self._files.items()):
            if not count or tenant in known:
                continue
            what = f"it lacks tenant {tenant!r}, of which {count:,} files have encrypted values"
            if known:
                self._findings.alarm(checks.KEYS, "encryption", what)
            else:
                what += "; with --disk local, the registry is in the bucket"
                self._findings.warn(checks.KEYS, "encryption", what)
