"""Other people's JetStream tests against holdfast's gateway: `make conformance-jetstream`."""
