"""What a trial of a bucket means: a finding per capability, as for a file system. Pure.

The verdicts agree with `decide` of `bucket_capabilities.py`: one has failed if and only if a server
would refuse the bucket, or a race had two winners.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from holdfast.shared_fs.bucket.bucket_capabilities import (
    Capability,
    Observed,
    harm_of,
    replaces_bare,
)
from holdfast.shared_fs.inspection.probe_verdicts import Judged, Verdict

_MEND: Final = "use another store: docs/tiers.md lists those that were tried"
_NOTHING: Final = "nothing: holdfast"
#: What holdfast does where it can do without.
_INSTEAD: Final = {
    Capability.REPLACE: f"{_NOTHING} sends the ETag without its quotes",
    Capability.COMPLETE: f"{_NOTHING} puts each snapshot whole, up to 5 GiB",
    Capability.DELETE: f"{_NOTHING} never uses a deleted key again",
}


def judge_bucket(observed: Mapping[Capability, Observed]) -> list[Judged]:
    """Return a finding for each capability that matters for this store, in a fixed order."""
    return [
        _judged(capability, observed)
        for capability in Capability
        if capability is not Capability.REPLACE_BARE or capability in observed
    ]


def _judged(capability: Capability, observed: Mapping[Capability, Observed]) -> Judged:
    found = observed.get(capability)
    if found is None:
        return Judged(capability, Verdict.SKIPPED, "not tried")
    if found is Observed.HONOURED:
        return Judged(capability, Verdict.OK, found)
    harm = harm_of(capability)
    if harm and not (capability is Capability.REPLACE and replaces_bare(observed)):
        return Judged(capability, Verdict.FAILED, f"{found}: {harm}", _MEND)
    return Judged(capability, Verdict.WARNING, found, _INSTEAD.get(capability, ""))
