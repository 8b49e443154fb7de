"""The bus: one interface, over nats-py and in memory. nats-py's internals are used here alone."""
