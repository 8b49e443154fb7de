"""A hostile tenant beside a well-behaved one: `make hostile MINUTES=n`.

A client with exactly a tenant's NATS permissions sends whatever a NATS client can send
(`attacks.py`) to a cluster of real processes, while another tenant writes and follows. The other
tenant's history is judged by the torture's checker, and what the processes, the bus and the clocks
tell by `verdict.py`.
"""
