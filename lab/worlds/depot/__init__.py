"""A depot clerk who handles parcels one after the other: a long task for small models."""

from lab.worlds.depot.server import create_server

__all__ = ["create_server"]
