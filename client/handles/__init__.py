"""What applications hold: streams, key-value stores, consumers, transactions."""
