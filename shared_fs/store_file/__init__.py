"""The SQLite file of a store: schema, rows, applying changes, images."""
