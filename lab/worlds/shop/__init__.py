"""A counter of the retail shop: short tasks for tiny models, in its database and with its tools."""

from lab.worlds.shop.server import create_server

__all__ = ["create_server"]
