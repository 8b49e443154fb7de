"""Direct connections of clients to the persist servers of their host, which spare the hops through
NATS."""
