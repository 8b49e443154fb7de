"""Who may do what: rights, tokens, and the NATS permissions that follow from a token."""
