"""Snapshots, cold stores and the durability `stored`."""
