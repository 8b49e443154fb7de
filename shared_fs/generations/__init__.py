"""Which of a store's files is the current one, and copies of files that are in use."""
