"""JetStream's consumers: who gets which message of a stream when, what was acked, what is due."""
