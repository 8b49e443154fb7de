"""Snapshots in the bucket: packs, manifest, pins, garbage collection, tenants' own buckets."""
