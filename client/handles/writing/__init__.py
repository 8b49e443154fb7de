"""What the writes of all handles have in common: batches, acks, and writes in flight."""
