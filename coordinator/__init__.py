"""The coordinator: who of the persist servers lives, and which of them owns which store."""
