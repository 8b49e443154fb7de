"""How shards are spread over gateways."""

from __future__ import annotations

from holdfast.gateway.jetstream.serving.shards import SHARD_COUNT, ShardTable, shard_of


def test_each_shard_has_one_gateway_and_shares_are_about_even() -> None:
    table = ShardTable(("a", "b", "c"))
    shares = [table.shards_of(gateway) for gateway in ("a", "b", "c")]
    assert sum(map(len, shares)) == SHARD_COUNT == len(frozenset().union(*shares))
    assert min(map(len, shares)) > SHARD_COUNT // 4
    assert all(
        shard_of(name) in table.shards_of(table.gateway_of(name)) for name in map(str, range(200))
    )


def test_who_comes_takes_only_its_own_and_who_goes_leaves_its_own_alone() -> None:
    two, three = ShardTable(("a", "b")), ShardTable(("a", "b", "c"))
    assert three.shards_of("a") < two.shards_of("a")
    assert three.shards_of("b") < two.shards_of("b")
    assert ShardTable(("a",)).shards_of("a") == frozenset(range(SHARD_COUNT))


def test_nobody_serves_without_gateways() -> None:
    table = ShardTable(())
    assert table.gateway_of("x") == ""
    assert table.shards_of("a") == frozenset()
