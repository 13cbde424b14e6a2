"""A handshake-era MCP server over stdio that records each execution of a call before its effect, and then breaks.

`python -I -S breaking_server.py RECORD TOOL...` appends the `id` of each call that runs to the file RECORD. How it
breaks is among the call's own arguments: `breaks` has one entry for each attempt, which the file RECORD.asked counts.
"""

import json
import os
import sys
import threading
import time

RECORD, *NAMES = sys.argv[1:]
HINTS = {"put": {}, "look": {"readOnlyHint": True}, "assign": {"idempotentHint": True}}
WRITE = threading.Lock()


def raw(data):
    with WRITE:
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()


def send(message):
    raw(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")


def note(path, line):
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.write(file, line.encode() + b"\n")
    os.close(file)


def close(descriptor):
    """Close the pipe behind a descriptor, which no file opened later may get."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, descriptor)
    os.close(nowhere)


def attempts(call):
    note(f"{RECORD}.asked", call)
    with open(f"{RECORD}.asked") as file:
        return file.read().split().count(call)


def call(request, arguments):
    breaks, attempt = arguments.get("breaks", []), attempts(arguments["id"])
    kind = breaks[attempt - 1] if attempt <= len(breaks) else ""
    answer = {"id": request, "result": {"content": [{"type": "text", "text": arguments["id"]}]}}
    if kind == "dies before":
        os._exit(3)
    note(RECORD, arguments["id"])
    time.sleep((request % 3) * 0.005)
    match kind:
        case "dies after":
            os._exit(3)
        case "answers and dies":
            send(answer)
            os._exit(0)
        case "dies amid":
            raw(b'{"jsonrpc":"2.0","id":%d,"result":{"content":[' % request)
            os._exit(0)
        case "closes its output":
            close(1)
            return
        case "closes its errors":
            close(2)
        case "garbage":
            raw(b'Loading...\n{not json}\n\xff\xfe\n[1, 2]\n{"jsonrpc":"2.0","id":"x","result":{}}\n')
            return send(answer)
        case "garbage answer":
            return raw(b'{"jsonrpc":"2.0","id":%d,"result":7}\n' % request)
        case "error":
            return send({"id": request, "error": {"code": -32000, "message": "Connection closed"}})
    send(answer)


for line in sys.stdin:
    message = json.loads(line)
    request, method = message.get("id"), message.get("method")
    if request is None or method is None:
        continue
    if method == "initialize":
        info = {"name": "breaking", "version": "1"}
        send(
            {
                "id": request,
                "result": {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}, "serverInfo": info},
            }
        )
    elif method == "tools/list":
        schema = {"type": "object", "properties": {"id": {"type": "string"}}}
        tools = [{"name": name, "inputSchema": schema, "annotations": HINTS[name]} for name in NAMES]
        send({"id": request, "result": {"tools": tools}})
    elif method == "tools/call":
        threading.Thread(target=call, args=(request, message["params"]["arguments"]), daemon=True).start()
    else:
        send({"id": request, "error": {"code": -32601, "message": "no such method"}})
