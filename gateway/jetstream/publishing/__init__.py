"""Publishing to a stream: what headers ask for, atomic batches, appends, and answers."""
