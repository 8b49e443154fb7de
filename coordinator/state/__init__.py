"""What the coordinator keeps on disk: its state file, its term, its progress."""
