"""What every server process shares: its life, its fair queue, its unexpected exceptions."""
