"""An open store in memory: its states and leases, counters, pending changes, retention
and writers."""
