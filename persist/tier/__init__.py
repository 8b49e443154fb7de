"""Snapshots, cold stores, archives: what moves between disk and bucket."""
