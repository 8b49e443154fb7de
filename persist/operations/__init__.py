"""The operations on an open store: writes, reads, consumers, large values, and the removals
that limits require."""
