"""The path of a write: incoming, tick, log, sync, gate, release; then checkpoints."""
