"""A handshake-era MCP server over stdio in one dependency-free file, which asks and talks within its calls.

`python old_server.py VERSION` speaks the protocol version of that name, whatever the client proposes.
"""

import json
import os
import queue
import sys
import threading
import time

VERSION = sys.argv[1]
ANSWERS = {}
LOCK = threading.Lock()
OBJECT = {"type": "object"}
READ_ONLY = {"readOnlyHint": True}


def send(message):
    with LOCK:
        sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
        sys.stdout.flush()


def ask(method, params):
    key = f"ask-{len(ANSWERS)}"
    ANSWERS[key] = queue.Queue()
    send({"id": key, "method": method, "params": params})
    return ANSWERS[key].get()


def text(value, **more):
    return {"content": [{"type": "text", "text": value}], **more}


def call(name, arguments, meta):
    match name:
        case "version":
            return text(VERSION)
        case "order":
            schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
            params = {"message": "How many?", "requestedSchema": schema}
            if arguments.get("marked"):
                params["_meta"] = {"mcp-rollout/trajectory": meta["mcp-rollout/trajectory"]}
            answer = ask("elicitation/create", params)
            if "error" in answer:
                return text(answer["error"]["message"], isError=True)
            return text(json.dumps(answer["result"], sort_keys=True))
        case "summarize":
            content = {"type": "text", "text": arguments["text"]}
            messages = [{"role": "user", "content": content}]
            answer = ask("sampling/createMessage", {"messages": messages, "maxTokens": 50})
            if "error" in answer:
                return text(answer["error"]["message"], isError=True)
            return text(answer["result"]["content"]["text"])
        case "count":
            for number in range(arguments["to"]):
                log = {"level": "debug" if number % 2 else "info", "data": f"at {number}"}
                send({"method": "notifications/message", "params": log})
                progress = {"progressToken": meta["progressToken"], "progress": number, "total": arguments["to"]}
                send({"method": "notifications/progress", "params": progress})
            return text("counted")
        case "wait":
            while not os.path.exists(arguments.get("file", "")) and "file" in arguments:
                time.sleep(0.01)
            threading.Event().wait(arguments.get("s", 0))
            return text("waited")


def handle(message):
    method, params = message["method"], message.get("params") or {}
    if method == "initialize":
        info = {"name": "old", "version": "1"}
        result = {"protocolVersion": VERSION, "capabilities": {"tools": {}, "logging": {}}, "serverInfo": info}
        sys.stderr.write(json.dumps(params["capabilities"]) + "\n")
    elif method == "tools/list":
        names = ("version", "order", "summarize", "count", "wait")
        result = {"tools": [{"name": name, "inputSchema": OBJECT} for name in names]}
    elif method == "tools/call":
        result = call(params["name"], params.get("arguments") or {}, params.get("_meta") or {})
    elif "id" not in message:
        return
    else:
        send({"id": message["id"], "error": {"code": -32601, "message": "no such method"}})
        return
    send({"id": message["id"], "result": result})


for line in sys.stdin:
    received = json.loads(line)
    if "method" in received:
        threading.Thread(target=handle, args=(received,), daemon=True).start()
    else:
        ANSWERS[received["id"]].put(received)
