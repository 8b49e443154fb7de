"""Other people's tests of durable streams, against an HTTP gateway of a real cluster."""
