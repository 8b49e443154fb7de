"""holdfast's JetStream gateway beside JetStream, under the load of NATS' own client."""
