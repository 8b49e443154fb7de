"""Pure decisions: who is alive, who owns what."""
