"""What clients ask for: subjects and bodies of JetStream's API into checked values."""
