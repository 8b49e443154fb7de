"""What a takeover sees on mounts of their own: dead logs, and store files."""
