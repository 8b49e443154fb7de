"""What is counted, and how parts tell each other: names, units, numbers, prices. Pure."""
