"""When a store is snapshotted and when its file may go."""

from __future__ import annotations

from holdfast.persist.tier.tier_policy import Extent, TierPolicy, changed_bytes

MIB = 1024 * 1024
POLICY = TierPolicy()


def test_a_small_change_of_an_open_store_waits_until_it_is_closed() -> None:
    tiny, grown = Extent(10, 10, 1000), Extent(1000, 1000, 100_000)
    assert not POLICY.has_changed_enough(grown, tiny)


def test_an_open_store_is_snapshotted_when_half_of_it_has_changed() -> None:
    before = Extent(100, 100, 10 * MIB)
    assert not POLICY.has_changed_enough(Extent(180, 180, 18 * MIB), before)
    assert POLICY.has_changed_enough(Extent(200, 200, 20 * MIB), before)


def test_overwriting_counts_though_nothing_is_added() -> None:
    before = Extent(1000, 100, 10 * MIB)
    assert changed_bytes(Extent(1050, 100, 10 * MIB), before) == 5 * MIB
    assert POLICY.has_changed_enough(Extent(1050, 100, 10 * MIB), before)


def test_a_store_that_was_emptied_has_changed_nothing_that_is_worth_a_snapshot_of_its_own() -> None:
    assert changed_bytes(Extent(101, 0, 0), Extent(100, 100, 10 * MIB)) == 0


def test_files_leave_early_when_the_file_system_is_nearly_full() -> None:
    assert POLICY.cold_seconds(0.5) == POLICY.cold_after_seconds
    assert POLICY.cold_seconds(0.05) == 60.0
    assert TierPolicy(cold_after_seconds=5.0).cold_seconds(0.05) == 5.0


def test_files_are_looked_through_at_least_every_hour_and_not_all_the_time() -> None:
    assert POLICY.sweep_seconds() == 3600.0
    assert TierPolicy(cold_after_seconds=60.0).sweep_seconds() == 30.0
    assert TierPolicy(cold_after_seconds=0.001).sweep_seconds() == 0.25
