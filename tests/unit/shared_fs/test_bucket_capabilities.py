"""What each finding about a bucket means: ways to use it, or the reasons why not."""

from __future__ import annotations

import pytest

from holdfast.shared_fs.bucket.bucket_capabilities import (
    S3_WAYS,
    Capability,
    Observed,
    Unfit,
    Ways,
    decide,
    harm_of,
)

ALL_HONOURED = dict.fromkeys(Capability, Observed.HONOURED)
#: Measured on radosgw 16.2.
RADOSGW = {
    **ALL_HONOURED,
    Capability.REPLACE: Observed.NEVER_HOLDS,
    Capability.COMPLETE: Observed.IGNORED,
    Capability.DELETE: Observed.IGNORED,
}
NEEDED = [one for one in Capability if harm_of(one)]


def test_a_store_that_honours_everything_is_used_as_s3_is() -> None:
    assert decide(ALL_HONOURED) == S3_WAYS


def test_radosgw_is_used_in_ways_of_its_own() -> None:
    assert decide(RADOSGW) == Ways(
        bare_versions=True, uploads_in_parts=False, conditional_deletes=False
    )


@pytest.mark.parametrize("found", [Observed.IGNORED, Observed.UNSUPPORTED])
@pytest.mark.parametrize("needed", NEEDED)
def test_a_store_without_what_is_needed_is_refused_with_the_harm(
    needed: Capability, found: Observed
) -> None:
    decided = decide({**ALL_HONOURED, needed: found})
    assert decided == Unfit((f"{needed}: {found}, so {harm_of(needed)}",))


@pytest.mark.parametrize("bare", [one for one in Observed if one is not Observed.HONOURED])
def test_a_store_that_compares_neither_form_is_refused(bare: Observed) -> None:
    decided = decide({**RADOSGW, Capability.REPLACE_BARE: bare})
    assert isinstance(decided, Unfit)
    [reason] = decided.reasons
    assert reason.startswith("If-Match of a put: never holds")


def test_a_store_that_ignores_quoted_versions_is_not_trusted_with_bare_ones() -> None:
    assert isinstance(decide({**ALL_HONOURED, Capability.REPLACE: Observed.IGNORED}), Unfit)


@pytest.mark.parametrize("capability", Capability)
def test_what_was_not_tried_is_not_relied_on(capability: Capability) -> None:
    tried = {one: found for one, found in RADOSGW.items() if one is not capability}
    races = (Capability.ONE_CREATES, Capability.ONE_REPLACES)
    replaced = (Capability.COMPLETE, Capability.DELETE)
    if capability in (*races, *replaced):
        assert decide(tried) == decide(RADOSGW)
    else:
        assert isinstance(decide(tried), Unfit)
