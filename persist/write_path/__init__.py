"""The path of a write: incoming, inbox, turn, log, sync, gate, release. Then checkpoints."""
