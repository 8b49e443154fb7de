"""A kv as rows of its file, and the history that moves former values aside."""
