"""Live replicas: local copies of stores in memory."""
