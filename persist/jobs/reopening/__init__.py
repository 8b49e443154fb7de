"""What an owner does of its own accord by closing a store: it opens anew, in memory or with larger
pages."""
