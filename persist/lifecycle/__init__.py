"""A server's life: it opens stores, sends heartbeats, hands stores over, and ends."""
