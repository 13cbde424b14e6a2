"""An MCP server that answers as a case of tests/field/servers scripts it, over HTTP or SSE in this process.

`python -I -S scripted_server.py CASE RAN` does so over stdio: CASE is `given` as a JSON file, and RAN gets a line for
each call that ran.
"""

import asyncio
import json
import re
import sys

TOOLS = [
    {"name": "save", "inputSchema": {"type": "object"}},
    {"name": "read", "inputSchema": {"type": "object"}, "annotations": {"readOnlyHint": True}},
]
FORGOTTEN = {"status": 404, "body": "Not Found"}
PHRASES = {200: "OK", 202: "Accepted", 400: "Bad Request", 401: "Unauthorized", 404: "Not Found"}


class Script:
    """What the server answers; tests/field/README.md has the keys of `given`."""

    def __init__(self, given):
        self.given = given
        self.sessions, self.begun = set(), 0
        self.asked = {}
        self.ran = []

    def restart(self):
        self.sessions.clear()

    def reply(self, message, session=None):
        """The answer to a message, as in `given.answers`; None where there is none."""
        method = message.get("method", "")
        if self.given.get("sessions") and method != "initialize" and session is not None:
            if session not in self.sessions:
                return self.given.get("forgotten", FORGOTTEN)
        scripted = self.given.get("answers", {}).get(method)
        if scripted is None and method == "tools/call":
            scripted = self.given.get("answers", {}).get(message["params"]["name"])
        if scripted is not None:
            key = (method, message.get("params", {}).get("name"))
            number = self.asked[key] = self.asked.get(key, -1) + 1
            answer = scripted[min(number, len(scripted) - 1)]
        else:
            answer = self.usual(method, message)
        if method == "tools/call" and answer is not None and ("result" in answer or answer.get("runs")):
            self.ran.append(message["params"]["name"])
        return answer

    def usual(self, method, message):
        if "id" not in message:
            return None
        modern = self.given.get("era") == "modern"
        about = {"capabilities": {"tools": {}}, "serverInfo": {"name": "scripted", "version": "1"}}
        complete = {"resultType": "complete", "ttlMs": 0, "cacheScope": "private"} if modern else {}
        if method == "initialize" and not modern:
            return {"result": {"protocolVersion": self.given.get("version", "2025-06-18"), **about}}
        if method == "server/discover" and modern:
            return {"result": {**complete, "supportedVersions": ["2026-07-28"], **about}}
        if method == "tools/list":
            return {"result": {**complete, "tools": self.given.get("tools", TOOLS)}}
        if method == "tools/call":
            kind = {"resultType": "complete"} if modern else {}
            return {"result": {**kind, "content": [{"type": "text", "text": "ok"}]}}
        return {"result": {}} if method == "ping" else {"error": {"code": -32601, "message": "Method not found"}}

    def messages(self, answer, message):
        """The JSON-RPC messages of an answer, as text."""
        found = [json.dumps(each) for each in answer.get("before", [])]
        said = {key: answer[key] for key in ("result", "error") if key in answer}
        if said:
            number = message.get("id")
            own = float(number) if self.given.get("floats") and isinstance(number, int) else number
            request = {} if answer.get("id") == "none" else {"id": answer.get("id", own)}
            found += [json.dumps({"jsonrpc": "2.0", **request, **said})] * answer.get("times", 1)
        return found


class HttpServer:
    """Serves a script on 127.0.0.1, over streamable HTTP at /mcp and over SSE at /sse."""

    def __init__(self, script):
        self.script, self.port, self.streams = script, 0, {}
        self.served = {}

    async def __aenter__(self):
        self.server = await asyncio.start_server(self.serve, "127.0.0.1", 0)
        self.port = self.server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_):
        self.server.close()
        for writer in self.served.values():
            writer.transport.abort()
        await asyncio.gather(*self.served)
        await self.server.wait_closed()

    async def serve(self, reader, writer):
        self.served[asyncio.current_task()] = writer
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                text = head.decode("latin-1")
                length = re.search(r"(?i)\r\ncontent-length: *(\d+)", text)
                body = await reader.readexactly(int(length[1])) if length else b""
                session = re.search(r"(?i)\r\nmcp-session-id: *(\S+)", text)
                method, path, _ = text.split(" ", 2)
                self.take(writer, method, path, session and session[1], body)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        writer.transport.abort()
        del self.served[asyncio.current_task()]

    def take(self, writer, method, path, session, body):
        if path == "/sse" and method == "GET":
            name = str(len(self.streams))
            self.streams[name] = writer
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n")
            writer.write(b"event: endpoint\ndata: /post/%s\n\n" % name.encode())
        elif method != "POST":
            self.send(writer, 200 if method == "DELETE" else 405, "", "text/plain", {})
        elif path.startswith("/post/"):
            message, session = json.loads(body), path.removeprefix("/post/")
            answer = self.script.reply(message, session) or {}
            if message.get("method") == "initialize":
                self.script.sessions.add(session)
            self.send(writer, answer.get("status", 202), answer.get("body", ""), "text/plain", {})
            for text in self.script.messages(answer, message):
                self.streams[session].write(b"event: message\ndata: %s\n\n" % text.encode())
        else:
            message = json.loads(body)
            self.answer(writer, message, self.script.reply(message, session or ""))

    def answer(self, writer, message, answer):
        if answer is None:
            self.send(writer, 202, "", "text/plain", {})
            return
        headers = dict(answer.get("headers", {}))
        if message.get("method") == "initialize" and self.script.given.get("sessions") and "result" in answer:
            self.script.begun += 1
            self.script.sessions.add(session := f"session-{self.script.begun}")
            headers["mcp-session-id"] = session
        texts = self.script.messages(answer, message)
        if answer.get("ends"):
            writer.close()
        elif "body" in answer:
            body = answer["body"].replace("$id", json.dumps(message.get("id")))
            self.send(writer, answer.get("status", 200), body, answer.get("type", "text/plain"), headers)
        elif answer.get("stream") or len(texts) > 1:
            events = "".join(f"event: message\ndata: {text}\n\n" for text in texts)
            self.send(writer, answer.get("status", 200), events, "text/event-stream", headers)
        elif texts:
            self.send(writer, answer.get("status", 200), texts[0], "application/json", headers)

    def send(self, writer, status, body, kind, headers):
        lines = [f"HTTP/1.1 {status} {PHRASES.get(status, 'Other')}", f"content-type: {kind}"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        data = body.encode()
        writer.write("\r\n".join([*lines, f"content-length: {len(data)}", "", ""]).encode() + data)


def over_stdio(case, ran):
    with open(case, encoding="utf-8") as file:
        script = Script(json.load(file))
    for line in sys.stdin:
        message = json.loads(line)
        answer = script.reply(message)
        with open(ran, "a", encoding="utf-8") as file:
            file.writelines(f"{name}\n" for name in script.ran)
        script.ran.clear()
        if answer is None:
            continue
        if answer.get("ends"):
            sys.exit(int(answer.get("code", 0)))
        written = [answer["body"].replace("$id", json.dumps(message.get("id")))] if "body" in answer else []
        for text in written or script.messages(answer, message):
            sys.stdout.write(text + "\n")
            sys.stdout.flush()


if __name__ == "__main__":
    over_stdio(*sys.argv[1:])
