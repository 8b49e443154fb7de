"""Who may do what, as the cluster's storage has it: issuers, tokens, and what was revoked."""
