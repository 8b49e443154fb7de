"""Operations on all keys of a kv that start with a prefix: conditions, and deletion."""
