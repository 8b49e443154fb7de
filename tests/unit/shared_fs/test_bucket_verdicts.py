"""What a trial of a bucket means: a verdict for each capability, which agrees with the decision."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from holdfast.shared_fs.bucket.bucket_capabilities import Capability, Observed, Ways, decide
from holdfast.shared_fs.inspection.bucket_verdicts import judge_bucket
from holdfast.shared_fs.inspection.probe_verdicts import Verdict, needs_are_met

S3 = {one: Observed.HONOURED for one in Capability if one is not Capability.REPLACE_BARE}
RADOSGW = {
    **S3,
    Capability.REPLACE: Observed.NEVER_HOLDS,
    Capability.REPLACE_BARE: Observed.HONOURED,
    Capability.COMPLETE: Observed.IGNORED,
    Capability.DELETE: Observed.IGNORED,
}


def test_a_store_that_honours_everything_meets_every_need() -> None:
    findings = judge_bucket(S3)
    assert [one.need for one in findings] == list(S3)
    assert {one.outcome for one in findings} == {Verdict.OK}


def test_where_holdfast_does_without_is_a_warning_that_says_how() -> None:
    warnings = {one.need: one for one in judge_bucket(RADOSGW) if one.outcome is not Verdict.OK}
    assert set(warnings) == {Capability.REPLACE, Capability.COMPLETE, Capability.DELETE}
    assert {one.outcome for one in warnings.values()} == {Verdict.WARNING}
    assert "without its quotes" in warnings[Capability.REPLACE].mend


def test_a_store_that_creates_nothing_is_tried_no_further() -> None:
    findings = judge_bucket({Capability.CREATE: Observed.UNSUPPORTED})
    assert [one.outcome for one in findings if one.outcome is not Verdict.SKIPPED] == [
        Verdict.FAILED
    ]


@given(st.dictionaries(st.sampled_from(Capability), st.sampled_from(Observed)))
@example({Capability.REPLACE: Observed.HONOURED, Capability.REPLACE_BARE: Observed.IGNORED})
def test_a_need_has_failed_exactly_where_a_server_would_refuse(
    observed: dict[Capability, Observed],
) -> None:
    tried = {**RADOSGW, **observed}
    assert needs_are_met(judge_bucket(tried)) == isinstance(decide(tried), Ways)
