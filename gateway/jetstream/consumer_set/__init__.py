"""The consumers of one served stream at work: NATS, reads, records and timers around the cores."""
