"""Pure decisions: which servers are alive, and which one owns a store."""
