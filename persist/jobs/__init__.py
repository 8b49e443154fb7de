"""What operators ask a server for."""
