"""An open store in memory: counters, pending changes, operations, reads, retention, consumers, writers."""
