"""What the commands for streams and key-value stores share."""
