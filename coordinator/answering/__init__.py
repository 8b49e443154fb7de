"""Requests of peers: parsed, queued in fair turns, done in batches, answered."""
