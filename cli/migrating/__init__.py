"""Moving streams of other systems in: `holdfast migrate`."""
