"""The HTTP gateway: a stateless client of the cluster that speaks HTTP."""
