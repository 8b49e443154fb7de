"""Live copies of stores in memory."""
