"""Files on the shared disk: layout, fences, commit log, quarantine."""
