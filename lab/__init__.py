"""Studies, benchmarks and their worlds. Nothing here is installed, and nothing that is imports it."""
