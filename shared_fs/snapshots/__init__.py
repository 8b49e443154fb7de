"""Snapshots in the bucket: packs, manifest, pins, garbage collection."""
