"""What the configurations of streams, consumers and copies may be, and what is filled in."""
