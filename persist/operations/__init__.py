"""What operations do to an open store: writes, reads, consumers, large values, and what limits
remove."""
