"""The auth service: nats-server asks it who connects with which token, and what that one may do."""
