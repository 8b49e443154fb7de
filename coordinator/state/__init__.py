"""What the coordinator knows for good: its state file, its term, its progress."""
