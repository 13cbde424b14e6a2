"""Configuration: server entries and their files, variables, tool selections, and errors with file, key and remedy."""
