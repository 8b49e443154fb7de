"""The same work with holdfast and with JetStream."""
