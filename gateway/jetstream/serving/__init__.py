"""Several gateways as one: who lives, who serves which stream, and the process around it."""
