"""The adapter to verl: the only package that imports verl, ray and torch."""
