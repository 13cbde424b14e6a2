"""The SDK's everything server, on the kit or on the SDK alone: `conformance_server.py kit|sdk HOST:PORT`."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path

from mcp.server.mcpserver import MCPServer

from mcp_rollout.mcp_servers.kit import main

EVERYTHING = Path(__file__).parents[1] / "third_party" / "everything_server.py"

if __name__ == "__main__":
    sys.path.insert(0, str(EVERYTHING.parent))
    server: MCPServer = import_module(EVERYTHING.stem).mcp
    if sys.argv[1] == "kit":
        main(server, arguments=["--http", sys.argv[2]])
    else:
        host, _, port = sys.argv[2].rpartition(":")
        server.run("streamable-http", host=host, port=int(port))
