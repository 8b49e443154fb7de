"""A program named nats-server: the real one without JetStream, and holdfast's gateway."""
