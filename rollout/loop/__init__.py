"""One trajectory: the main path, and the parts it calls."""
