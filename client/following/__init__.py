"""Following the changes of stores: listen, merge, ask for what was missed."""
