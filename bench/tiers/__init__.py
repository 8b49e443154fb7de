"""Benchmarks of snapshots, cold stores and the durability `stored`."""
