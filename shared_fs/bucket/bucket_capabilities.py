"""What a bucket honours of S3, and what holdfast does where something is lacking. Pure.

    ways = decide(observed)      # Ways, or Unfit with the reasons

`bucket_probe.py` observes. A store that ignores a condition answers with success, so only a trial
can tell. What lacks is replaced only where the replacement keeps the same promise:

| need | where it is lacking |
|---|---|
| `If-None-Match: *` of a put | refused: fences, log slots and manifests rest on it |
| `If-Match` of a put | the ETag without its quotes, if that is honoured; else refused |
| `If-None-Match: *` of an upload in parts | a large object is one put with the condition |
| `If-Match` of a delete | such deletes are refused; nothing needs them: keys are never reused |
| reads and lists show what was written, with its metadata | refused |

holdfast copies no object and uses no versions of a bucket, so their conditions are not tried.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final


class Capability(StrEnum):
    """What is tried, as reports name it."""

    CREATE = "If-None-Match of a put"
    REPLACE = "If-Match of a put"
    REPLACE_BARE = "If-Match without quotes"
    REPLACE_DELETED = "If-Match after a delete"
    COMPLETE = "If-None-Match of parts"
    METADATA = "metadata comes back"
    READ_AFTER_WRITE = "read after write"
    LIST_AFTER_WRITE = "list after write"
    DELETE = "If-Match of a delete"
    ONE_CREATES = "one of many creates"
    ONE_REPLACES = "one of many replaces"


class Observed(StrEnum):
    """What a store did with a condition."""

    HONOURED = "honoured"
    #: A write took effect although its condition did not hold, or a read showed an older state.
    IGNORED = "ignored"
    #: The condition held, and the write was refused all the same.
    NEVER_HOLDS = "never holds"
    #: The store knows of the condition, or of the request, only that it does not offer it.
    UNSUPPORTED = "unsupported"


@dataclass(frozen=True, slots=True)
class Ways:
    """How to talk to a store. The defaults are S3's own."""

    #: `If-Match` takes an ETag without its quotes.
    bare_versions: bool = False
    #: The condition of an upload in parts is honoured.
    uploads_in_parts: bool = True
    #: The condition of a delete is honoured.
    conditional_deletes: bool = True


@dataclass(frozen=True, slots=True)
class Unfit:
    """The store cannot be used, for these reasons."""

    reasons: tuple[str, ...]


S3_WAYS: Final = Ways()

#: What could happen if the store were used all the same.
_HARM: Final = {
    Capability.CREATE: "a fence or a log object could be overwritten",
    Capability.REPLACE: "two writers could overwrite each other's manifest",
    Capability.REPLACE_DELETED: "a late writer could bring back what was deleted",
    Capability.METADATA: "no object could be checked",
    Capability.READ_AFTER_WRITE: "an older manifest could be taken for the newest",
    Capability.LIST_AFTER_WRITE: "the end of a log could be missed",
    Capability.ONE_CREATES: "two owners could write one slot of a log",
    Capability.ONE_REPLACES: "two writers could overwrite each other's manifest",
}
_RACES: Final = (Capability.ONE_CREATES, Capability.ONE_REPLACES)


def decide(observed: Mapping[Capability, Observed]) -> Ways | Unfit:
    """Return how to use a store of which this was observed. What was not tried counts as lacking,
    except for races, which only `holdfast probe` tries."""
    if reasons := tuple(_reasons(observed)):
        return Unfit(reasons)
    return Ways(
        bare_versions=not _has(observed, Capability.REPLACE),
        uploads_in_parts=_has(observed, Capability.COMPLETE),
        conditional_deletes=_has(observed, Capability.DELETE),
    )


def replaces_bare(observed: Mapping[Capability, Observed]) -> bool:
    """Return whether `If-Match` works with the ETag without its quotes, and only so."""
    # A store that ignores a quoted ETag might compare a bare one: no reason to trust it.
    return observed.get(Capability.REPLACE) is Observed.NEVER_HOLDS and _has(
        observed, Capability.REPLACE_BARE
    )


def harm_of(capability: Capability) -> str:
    """Return what could happen without a capability; empty if holdfast does without it."""
    return _HARM.get(capability, "")


def _has(observed: Mapping[Capability, Observed], capability: Capability) -> bool:
    return observed.get(capability) is Observed.HONOURED


def _reasons(observed: Mapping[Capability, Observed]) -> Iterator[str]:
    for capability, harm in _HARM.items():
        found = observed.get(capability)
        if found is Observed.HONOURED or (found is None and capability in _RACES):
            continue
        if capability is Capability.REPLACE and replaces_bare(observed):
            continue
        yield f"{capability}: {found or 'not tried'}, so {harm}"
