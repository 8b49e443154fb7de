"""Images in frames: snapshots of which a reader fetches the pages that it needs."""
