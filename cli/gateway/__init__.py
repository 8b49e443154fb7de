"""`holdfast gateway`: other protocols in front of the cluster."""
