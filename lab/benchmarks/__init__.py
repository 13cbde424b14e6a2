"""Measurements of this project's own code and of its peers; not part of the wheel."""
