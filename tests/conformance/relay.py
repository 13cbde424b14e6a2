"""The program that the suite starts as its client: hands the scenario to the process behind a socket and waits.

`python -I -S relay.py SOCKET URL`. A whole client per scenario would spend its time importing mcp.
"""

import json
import os
import socket
import sys

with socket.socket(socket.AF_UNIX) as line, line.makefile("rw") as stream:
    line.connect(sys.argv[1])
    told = {
        "scenario": os.environ["MCP_CONFORMANCE_SCENARIO"],
        "context": json.loads(os.environ.get("MCP_CONFORMANCE_CONTEXT") or "{}"),
        "url": sys.argv[2],
    }
    stream.write(json.dumps(told) + "\n")
    stream.flush()
    sys.exit(0 if stream.readline() else 1)
