"""Values of any size: sent and fetched in chunks, never held whole."""
