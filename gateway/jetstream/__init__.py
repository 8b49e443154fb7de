"""The JetStream gateway: clients of JetStream work unchanged, and their streams are stores."""
