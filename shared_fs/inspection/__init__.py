"""Reading what is there without being its owner: inspection, verification."""
