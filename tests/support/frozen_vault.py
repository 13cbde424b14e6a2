"""A server over stdio without the SDK: `keep` keeps a text, and ends its process where the text says so."""

import json
import os
import signal
import sys

KEEP = {
    "name": "keep",
    "description": "Keep a text.",
    "inputSchema": {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]},
}


def answer(message):
    method = message["method"]
    if method == "initialize":
        about = {"capabilities": {"tools": {}}, "serverInfo": {"name": "vault", "version": "1"}}
        return {"result": {"protocolVersion": "2025-06-18", **about}}
    if method == "tools/list":
        return {"result": {"tools": [KEEP]}}
    if method == "tools/call":
        text = message["params"]["arguments"]["text"]
        if "quince" in text:
            os.kill(os.getpid(), signal.SIGKILL)
        if "x1" in text:
            os._exit(3)
        return {"result": {"content": [{"type": "text", "text": f"Kept: {text}"}]}}
    if method == "ping":
        return {"result": {}}
    return {"error": {"code": -32601, "message": "Method not found"}}


for line in sys.stdin:
    asked = json.loads(line)
    if "id" in asked:
        sys.stdout.write(json.dumps({"jsonrpc": "2.0", "id": asked["id"], **answer(asked)}) + "\n")
        sys.stdout.flush()
