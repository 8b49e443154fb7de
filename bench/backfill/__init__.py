"""How a reader of an old, large stream affects those at its tail, here and on JetStream."""
