"""Which open stores are encrypted, and with which keys."""
