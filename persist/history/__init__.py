"""The former values of a kv that keeps a history, while they are only in memory."""
