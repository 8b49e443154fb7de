"""JetStream gateways in the simulated cluster, with applications that judge what they get."""
