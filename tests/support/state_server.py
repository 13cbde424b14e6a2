"""A handshake-era MCP server in one dependency-free file that keeps its state in a configured place.

    python state_server.py WHERE TOOLS              over stdio
    python state_server.py WHERE TOOLS http         over streamable HTTP, the port on the first line of stdout

WHERE is `nowhere`, `process`, `session`, `trajectory`, `declared` (by trajectory, and the tools say so) or the path of
a file; TOOLS is `cell` (put, get), `counter` (bump), `tally` (a counter that is annotated read-only), `toggle`, `odd`
(stash, tell: names that say nothing), `pure` (add, shout), `clock` (read_clock, which moves on every 10 ms, and
shout), `silent` (save: what it keeps no tool shows), `refusing` (query: its backend is not there), `reaching`
(run_command, and open_url, which returns the page's title), `orders` (create_order, which makes an id, and
cancel_order and get_order, which want one) or `words` (an SQL database with a tool `query`, whose errors are ordinary
text).
"""

import json
import re
import secrets
import sqlite3
import sys
import threading
import time
import urllib.request
import uuid
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

TEXT = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}
NUMBERS = {"type": "object", "properties": {name: {"type": "integer"} for name in "ab"}, "required": ["a", "b"]}
NOTHING = {"type": "object", "properties": {}}
KINDS = {
    "cell": {"put": TEXT, "get": NOTHING},
    "counter": {"bump": NOTHING},
    "tally": {"tally": NOTHING},
    "toggle": {"toggle": NOTHING},
    "odd": {"stash": TEXT, "tell": NOTHING},
    "pure": {"add": NUMBERS, "shout": TEXT},
    "silent": {"save": TEXT},
    "refusing": {"query": TEXT},
    "reaching": {
        "run_command": TEXT,
        "open_url": {"type": "object", "properties": {"url": {"type": "string"}}, "required": ["url"]},
    },
    "orders": {
        "mark_paid": {"type": "object", "properties": {"order_id": {"type": "string"}}, "required": ["order_id"]},
        "create_order": {"type": "object", "properties": {"item": {"type": "string"}}, "required": ["item"]},
    },
    "words": {"query": {"type": "object", "properties": {"sql": {"type": "string"}}, "required": ["sql"]}},
    "clock": {"read_clock": NOTHING, "shout": TEXT},
}
STATES = {}
DESCRIPTIONS = {
    "run_command": "Run a command on this machine.",
    "query": "Run an SQL query." if sys.argv[2:3] == ["words"] else "Look into the orders.",
}
LOCK = threading.Lock()
ORDERS = {}
DATABASE = sqlite3.connect(":memory:", check_same_thread=False)


class State:
    """One value, in the place that this server keeps it."""

    def __init__(self, where, session, trajectory):
        self.where = where
        self.key = {"process": "", "session": session, "trajectory": trajectory, "declared": trajectory}.get(where)

    def get(self):
        if self.where == "nowhere":
            return None
        if self.key is not None:
            return STATES.get(self.key)
        path = Path(self.where)
        return path.read_text() if path.exists() else None

    def set(self, value):
        if self.where == "nowhere":
            return
        if self.key is not None:
            STATES[self.key] = value
        else:
            Path(self.where).write_text(value)


def call(name, arguments, state):
    with LOCK:
        match name:
            case "put" | "stash":
                state.set(arguments["text"])
                return "stored"
            case "get" | "tell":
                return state.get() or "nothing"
            case "bump" | "tally":
                state.set(str(int(state.get() or 0) + 1))
                return f"bumped to {state.get() or 1}"
            case "read_clock":
                return str(time.monotonic_ns() // 10_000_000)
            case "save":
                return "saved"
            case "query" if "sql" in arguments:
                return sql(arguments["sql"])
            case "query":
                return "Error: connection refused by 127.0.0.1:5432"
            case "run_command":
                return "done"
            case "open_url":
                return re.search("<title>(.*?)</title>", urllib.request.urlopen(arguments["url"]).read().decode())[1]
            case "create_order":
                ORDERS[f"o-{secrets.token_hex(3)}"] = "open"
                return json.dumps({"order_id": list(ORDERS)[-1], "status": "open"})
            case "mark_paid":
                if arguments["order_id"] not in ORDERS:
                    return "Error: no such order"
                before, ORDERS[arguments["order_id"]] = ORDERS[arguments["order_id"]], "paid"
                return f"it was {before}"
            case "toggle":
                state.set("off" if state.get() == "on" else "on")
                return state.get()
            case "add":
                return str(arguments["a"] + arguments["b"])
            case "shout":
                return arguments["text"].upper()


def sql(statement):
    try:
        return str(DATABASE.execute(statement).fetchall())
    except sqlite3.Error as error:
        return f"Database error: {error}"


def respond(message, session):
    """The answer to a message, or None where none is due."""
    method, params = message.get("method"), message.get("params") or {}
    if "id" not in message:
        return None
    answer = {"jsonrpc": "2.0", "id": message["id"]}
    if method == "initialize":
        info = {"name": "state", "version": "1"}
        capabilities = {"tools": {}}
        return answer | {"result": {"protocolVersion": "2025-06-18", "capabilities": capabilities, "serverInfo": info}}
    if method == "tools/list":
        tools = [
            {
                "name": name,
                "description": DESCRIPTIONS.get(name, f"{name}."),
                "inputSchema": schema,
                "annotations": hints(name),
                "_meta": {"mcp-rollout/trajectories": 100} if sys.argv[1] == "declared" else {},
            }
            for name, schema in KINDS[sys.argv[2]].items()
        ]
        return answer | {"result": {"tools": tools}}
    if method == "tools/call":
        trajectory = (params.get("_meta") or {}).get("mcp-rollout/trajectory", "")
        text = call(params["name"], params.get("arguments") or {}, State(sys.argv[1], session, trajectory))
        return answer | {"result": {"content": [{"type": "text", "text": text}]}}
    return answer | {"error": {"code": -32601, "message": "no such method"}}


def hints(name):
    return {"readOnlyHint": True} if name in ("get", "tally") else {}


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        message = json.loads(self.rfile.read(int(self.headers["content-length"])))
        session = self.headers.get("mcp-session-id") or uuid.uuid4().hex
        body = respond(message, session)
        data = b"" if body is None else json.dumps(body).encode()
        self.send_response(202 if body is None else 200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        if message.get("method") == "initialize":
            self.send_header("mcp-session-id", session)
        self.end_headers()
        self.wfile.write(data)

    def do_GET(self):
        self.send_response(405)
        self.send_header("content-length", "0")
        self.end_headers()

    do_DELETE = do_GET

    def log_message(self, *_):
        pass


def main():
    if sys.argv[3:] == ["http"]:
        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        server.daemon_threads = True
        sys.stdout.write(f"{server.server_port}\n")
        sys.stdout.flush()
        server.serve_forever()
    for line in sys.stdin:
        answer = respond(json.loads(line), "the one session")
        if answer is not None:
            sys.stdout.write(json.dumps(answer) + "\n")
            sys.stdout.flush()


main()
