"""A handshake-era server over streamable HTTP that does one wrong thing.

`python -I -S hostile_http.py BEHAVIOUR [URL]` prints its port. `harm` does the wrong thing, `echo` is as it should be.
In a process of its own, so that what it sends does not count as the gateway's memory.
"""

import gzip
import json
import queue
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

BEHAVIOUR, *REST = sys.argv[1:]
MEGABYTE = b"x" * (1 << 20)
BEGAN = time.monotonic()
OVER = threading.Event()
"""What the behaviour sends beside the calls has ended, one way or the other."""
GETS = []
ARRIVED = [BEGAN]
ASKED = queue.Queue()
"""Requests of the older transport, whose answers go into its one stream."""


def answer(request, text):
    return {"jsonrpc": "2.0", "id": request, "result": {"content": [{"type": "text", "text": text}]}}


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def begin(self, kind, length=None, status=200, **headers):
        self.send_response(status)
        self.send_header("Content-Type", kind)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        if length is None:
            self.send_header("Connection", "close")
            self.close_connection = True
        else:
            self.send_header("Content-Length", str(length))
        self.end_headers()

    def reply(self, message, status=200, **headers):
        body = json.dumps(message).encode()
        self.begin("application/json", len(body), status, **headers)
        self.wfile.write(body)

    def event(self, message):
        self.wfile.write(b"event: message\ndata: " + json.dumps(message).encode() + b"\n\n")

    def do_GET(self):
        GETS.append(self.path)
        match BEHAVIOUR:
            case "get redirect" if "followed" not in self.path:
                self.flood(307, Location="/mcp?followed")
            case "get answered" | "sse redirect":
                self.flood(307 if "sse" in BEHAVIOUR else 200, Location="/sse")
            case "get endless event" | "resumed with an endless event":
                self.flood(200, kind="text/event-stream", beginning=b"event: message\ndata: ")
            case "get retry" | "resumed for ever":
                self.begin("text/event-stream")
                self.wfile.write(b"id: 2\nretry: 0\ndata:\n\n")
            case _ if self.path == "/sse":
                self.stream()
            case _:
                self.begin("text/plain", 0, 405)

    def stream(self):
        """The one stream of the older transport, with a flood before the end of the handshake's second answer."""
        self.begin("text/event-stream")
        self.wfile.write(b"event: endpoint\ndata: /post\n\n")
        while True:
            message = ASKED.get()
            result = {"content": [{"type": "text", "text": "hostile"}]}
            if message["method"] == "initialize":
                info, version = {"name": "bad", "version": "1"}, message["params"]["protocolVersion"]
                result = {"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": info}
            elif message["method"] == "tools/list":
                result = {"tools": [{"name": name, "inputSchema": {"type": "object"}} for name in ("echo", "harm")]}
            elif message["method"] == "tools/call" and message["params"]["name"] == "harm":
                line = b"data:\n" if BEHAVIOUR == "sse many data lines" else b"x\n"
                for _ in range(20):
                    self.wfile.write(line * 50_000)
                self.wfile.write(b"\n")
            elif message["method"] != "tools/call":
                self.event({"jsonrpc": "2.0", "id": message["id"], "error": {"code": -32601, "message": "?"}})
                continue
            self.event({"jsonrpc": "2.0", "id": message["id"], "result": result})

    def do_DELETE(self):
        if BEHAVIOUR == "delete answered":
            self.flood(200)
        else:
            self.begin("text/plain", 0, 405)

    def flood(self, status, kind="text/plain", beginning=b"", **headers):
        try:
            self.begin(kind, None, status, **headers)
            self.wfile.write(beginning)
            for _ in range(100):
                self.wfile.write(MEGABYTE)
        except OSError:
            self.close_connection = True
        OVER.set()

    def do_POST(self):
        message = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        method, request = message.get("method"), message.get("id")
        if self.path == "/post":
            if request is not None:
                ASKED.put(message)
            self.begin("text/plain", 0, 202)
            return
        if method == "notifications/cancelled" and BEHAVIOUR == "hang in call and cancellation":
            threading.Event().wait()
        elif request is None:
            self.begin("text/plain", 0, 202)
        elif method == "initialize":
            version, info = message["params"]["protocolVersion"], {"name": "bad", "version": "1"}
            result = {"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": info}
            headers = {"Mcp_Session_Id": "s"} if BEHAVIOUR.startswith(("get", "delete")) else {}
            self.reply({"jsonrpc": "2.0", "id": request, "result": result}, **headers)
        elif method == "tools/list":
            if BEHAVIOUR == "informational heads in list":
                self.inform(b"\r\n")
            if BEHAVIOUR == "hang in list":
                threading.Event().wait()
            listed = [{"name": name, "inputSchema": {"type": "object"}} for name in ("echo", "harm")]
            self.reply({"jsonrpc": "2.0", "id": request, "result": {"tools": listed}})
        elif method == "tools/call" and message["params"]["name"] == "harm":
            try:
                self.harm(request)
            except OSError:
                self.close_connection = True  # the gateway has had enough
                OVER.set()
        elif method == "tools/call":
            if BEHAVIOUR == "drip":
                OVER.wait()  # the line of the call that timed out is closed
            if BEHAVIOUR == "resumed for ever":
                self.reply(answer(request, json.dumps([len(GETS), time.monotonic() - BEGAN])))
                return
            self.reply(answer(request, "hostile"))
        else:
            self.reply({"jsonrpc": "2.0", "id": request, "error": {"code": -32601, "message": "?"}})

    def inform(self, end):
        try:
            while True:
                self.wfile.write((b"HTTP/1.1 103 A" + end + end) * 10_000)
        except OSError:
            self.close_connection = True

    def harm(self, request):
        match BEHAVIOUR:
            case "informational heads" | "informational heads, CRLF":
                self.inform(b"\r\n" if "CRLF" in BEHAVIOUR else b"\n")
            case "blank lines":
                self.begin("text/event-stream")
                for number in range(5000):
                    params = {"progressToken": request, "progress": number}
                    self.event({"jsonrpc": "2.0", "method": "notifications/progress", "params": params})
                self.wfile.write(b"\n" * 6_500_000)
                self.event(answer(request, "after blank lines"))
            case "cookies":
                body = json.dumps(answer(request, "x")).encode()
                lines = b"".join(b"Set-Cookie: c%d-%d=1\r\n" % (time.monotonic_ns(), number) for number in range(1200))
                head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n" % len(body)
                self.wfile.write(head + lines + b"\r\n" + body)
            case "hang in call" | "hang in call and cancellation":
                threading.Event().wait()
            case "drip":
                self.begin("text/event-stream")
                while not threading.Event().wait(0.05):
                    self.wfile.write(b":\n")
            case "get redirect" | "get answered" | "get endless event":
                OVER.wait()
                self.reply(answer(request, "over"))
            case "get retry":
                self.reply(answer(request, json.dumps([len(GETS), time.monotonic() - BEGAN])))
            case "resumed for ever" | "resumed with an endless event":
                self.begin("text/event-stream")
                self.wfile.write(b"id: 1\nretry: 0\ndata:\n\n")
            case "large answer" | "large answer, unannounced" | "large error":
                status = 500 if BEHAVIOUR == "large error" else 200
                head, tail = json.dumps(answer(request, "@")).encode().split(b"@")
                length = len(head) + 50 * len(MEGABYTE) + len(tail)
                self.begin("application/json", None if "unannounced" in BEHAVIOUR else length, status)
                self.wfile.write(head)
                for _ in range(50):
                    self.wfile.write(MEGABYTE)
                self.wfile.write(tail)
            case "large event" | "endless event":
                self.begin("text/event-stream")
                head, tail = json.dumps(answer(request, "@")).encode().split(b"@")
                self.wfile.write(b"event: message\ndata: " + head)
                for _ in range(50):
                    self.wfile.write(MEGABYTE)
                if BEHAVIOUR == "endless event":
                    threading.Event().wait()
                self.wfile.write(tail + b"\n\n")
            case "many events":
                self.begin("text/event-stream")
                for _ in range(50):
                    self.wfile.write((b": " + b"x" * 1020 + b"\n\n") * 1024)
                self.event(answer(request, "after 50 MB"))
            case "compressed answer":
                head, tail = json.dumps(answer(request, "@")).encode().split(b"@")
                body = gzip.compress(head + MEGABYTE * 50 + tail)
                self.begin("application/json", len(body), Content_Encoding="gzip")
                self.wfile.write(body)
            case "many blocks":
                self.reply({**answer(request, ""), "result": {"content": [{"type": "text", "text": "x"}] * 20_000}})
            case "many data lines" | "short lines" | "notifications, many data lines":
                self.begin("text/event-stream")
                for number in range(5000 if BEHAVIOUR.startswith("notifications") else 0):
                    params = {"progressToken": request, "progress": number}
                    self.event({"jsonrpc": "2.0", "method": "notifications/progress", "params": params})
                line = b"data:\n" if BEHAVIOUR.endswith("many data lines") else b"x\n"
                for _ in range(20):
                    self.wfile.write(line * 50_000)
                self.wfile.write(b"\n")
                self.event(answer(request, "after 1,000,000"))
            case "20,000 notifications":
                self.begin("text/event-stream")
                for number in range(20_000):
                    params = {"progressToken": request, "progress": number, "message": "x" * 100}
                    self.event({"jsonrpc": "2.0", "method": "notifications/progress", "params": params})
                self.event(answer(request, "after 20,000"))
            case "held":
                ARRIVED[0] = time.monotonic()
                while time.monotonic() - ARRIVED[0] < 0.2:  # until no other call arrives
                    time.sleep(0.02)
                self.reply(answer(request, "held"))
            case "3,000 pings":
                self.begin("text/event-stream")
                for number in range(3000):
                    self.event({"jsonrpc": "2.0", "id": f"ping-{number}", "method": "ping"})
                self.event(answer(request, "after 3,000"))
            case "redirect":
                self.begin("text/plain", 0, 307, Location=REST[0])
            case "garbage":
                body = b"\x00\xff{]}"
                self.begin("application/json", len(body))
                self.wfile.write(body)
            case "deep":
                head, tail = json.dumps(answer(request, "x") | {"deep": "@"}).encode().split(b'"@"')
                body = head + b"[" * 5000 + b"]" * 5000 + tail
                self.begin("application/json", len(body))
                self.wfile.write(body)
            case "garbage event":
                self.begin("text/event-stream")
                self.wfile.write(b"data: {]}\n\ndata\n\xff\xff\n\n")
            case "web page":
                self.begin("text/html", 4)
                self.wfile.write(b"<p>!")
            case "nothing":
                self.begin("application/json", 0)


ThreadingHTTPServer.request_queue_size = 1024
server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
server.daemon_threads = True
print(server.server_address[1], flush=True)  # noqa: T201
server.serve_forever()
