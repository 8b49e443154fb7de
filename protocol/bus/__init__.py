"""The NATS connection: one interface, over nats-py and in memory, with the fence around nats-py's
internals."""
