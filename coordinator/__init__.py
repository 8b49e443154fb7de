"""The coordinator decides which persist servers are alive and which of them owns each store."""
