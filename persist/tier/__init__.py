"""Snapshots, cold stores and the archive: what moves between disk and bucket."""
