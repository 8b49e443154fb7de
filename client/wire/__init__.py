"""Writes and reads on their way to the owner of a store: batched, retried, answered once."""
