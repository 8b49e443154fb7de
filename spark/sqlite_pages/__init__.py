"""Tables of SQLite databases, read from their pages: the format alone."""
