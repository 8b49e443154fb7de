"""Server-sent events for very many followers: connections that cost little, one task for all."""
