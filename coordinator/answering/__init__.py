"""Requests of peers: parsed, queued fairly among tenants, executed in batches, answered."""
