"""The gateway's two connections to NATS: a client's, to hear, and a leafnode's, to deliver."""
