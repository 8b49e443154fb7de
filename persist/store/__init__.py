"""An open store in memory: its states and leases, pending changes, retention, consumers,
writers."""
