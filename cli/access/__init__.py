"""Commands for who may do what: keys, tokens, issuers, and the configuration of NATS."""
