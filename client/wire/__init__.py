"""Sends writes and reads to the owner of a store: batched, retried, answered once."""
