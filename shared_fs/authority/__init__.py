"""Who may decide over a tree of files: the last term, and what was committed in it."""
