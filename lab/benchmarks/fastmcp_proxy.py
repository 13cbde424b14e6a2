"""FastMCP's proxy in front of a server, run by its own interpreter: `fastmcp_proxy.py URL PORT`."""

# FastMCP has an environment of its own.
# pyright: basic, reportMissingImports=false

import sys

from fastmcp.server import create_proxy

if __name__ == "__main__":
    proxy = create_proxy(sys.argv[1], name="proxy")
    proxy.run(transport="http", host="127.0.0.1", port=int(sys.argv[2]), show_banner=False, log_level="error")
