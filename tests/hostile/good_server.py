"""The neighbour: a server over stdio that does what it should, in milliseconds. `python -I -S good_server.py`."""

import json
import sys

SCHEMA = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}

for line in sys.stdin:
    message = json.loads(line)
    match message["method"]:
        case "initialize":
            version = message["params"]["protocolVersion"]
            info = {"name": "good", "version": "1"}
            result = {"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": info}
        case "tools/list":
            result = {"tools": [{"name": "say", "description": "Say.", "inputSchema": SCHEMA}]}
        case "tools/call":
            result = {"content": [{"type": "text", "text": message["params"]["arguments"]["text"]}]}
        case _:
            result = None
    if "id" in message:
        answer = {"error": {"code": -32601, "message": "?"}} if result is None else {"result": result}
        print(json.dumps({"jsonrpc": "2.0", "id": message["id"], **answer}), flush=True)  # noqa: T201
