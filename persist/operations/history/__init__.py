"""What operations and limits do with the history of a kv: reads of its past, and what goes."""
