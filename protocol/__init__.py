"""What every peer of holdfast must agree on: names, subjects, frames, errors, limits, the bus."""
