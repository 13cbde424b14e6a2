"""Worlds on nodes of a Ray cluster: a gateway behind HTTP on each chosen node, and the choice of one for each lease."""
