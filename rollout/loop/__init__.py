"""One trajectory: `trajectory` is the main path, the other modules are its parts."""
