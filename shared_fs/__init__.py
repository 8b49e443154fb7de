"""Files: layout, store files, commit logs, fences. Knows nothing of NATS, subjects or servers."""
