"""What `holdfast doctor` examines."""
