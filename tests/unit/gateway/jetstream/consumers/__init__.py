"""The consumers of JetStream."""
