"""What every server process shares: its command line and loop, its fair
queue, its unexpected exceptions."""
