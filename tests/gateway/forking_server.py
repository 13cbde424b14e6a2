"""A handshake-era MCP server on asyncio and the standard library alone, for tests of forks; `python forking_server.py`.

A program that sets TOOLS and `call` and runs `serve` is another server, which starts in a tenth of the SDK's time.

With BEFORE=thread it starts a thread before it serves.
"""

import asyncio
import json
import os
import random
import resource
import signal
import sys
import threading
import time

MADE = None
if os.environ.get("BEFORE") == "thread":
    threading.Thread(target=time.sleep, args=(600,), daemon=True).start()
STATE = []


def facts():
    signals = (signal.SIGPIPE, signal.SIGCHLD, signal.SIGINT, signal.SIGTERM, signal.SIGXFSZ, signal.SIGHUP)
    handlers = [signal.getsignal(number) for number in signals]
    return {
        "argv": sys.argv[1:],
        "cwd": os.getcwd(),
        "name": __name__,
        "path": sys.path[0],
        "env": {name: value for name, value in os.environ.items() if name != "MCP_ROLLOUT_OWNER"},
        "leads": os.getpid() == os.getpgrp() == os.getsid(0),
        "limits": [resource.getrlimit(limit) for limit in (resource.RLIMIT_DATA, resource.RLIMIT_CPU)],
        "signals": [handler if isinstance(handler, int) else type(handler).__name__ for handler in handlers],
        "threads": threading.active_count(),
        "tty": [stream.isatty() for stream in (sys.stdin, sys.stdout, sys.stderr)],
        "modes": [stream.line_buffering for stream in (sys.stdout, sys.stderr)],
    }


def call(name, arguments):
    match name:
        case "put":
            STATE.append(arguments["text"])
            return STATE
        case "facts":
            return facts()
        case "made":
            return MADE
        case "draw":
            return [random.random(), os.getpid(), os.getppid()]
        case "exit":
            sys.stderr.write("last words\n")
            sys.stderr.flush()
            os._exit(3)
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        case "child":
            return asyncio.get_running_loop().run_in_executor(None, os.spawnlp, os.P_NOWAIT, "sleep", "sleep", "600")
        case "owner":
            with open("/proc/self/environ", "rb") as file:
                block = b"\0" + file.read()
            return block.partition(b"\0MCP_ROLLOUT_OWNER=")[2].partition(b"\0")[0].decode()


TOOLS = [{"name": name} for name in ("put", "made", "facts", "draw", "exit", "kill", "child", "owner")]


async def serve():
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    while line := await reader.readline():
        message = json.loads(line)
        if message.get("id") is None:
            continue
        if message["method"] == "initialize":
            info = {"name": "forking", "version": "1"}
            result = {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}, "serverInfo": info}
        elif message["method"] == "tools/list":
            result = {"tools": [{"inputSchema": {"type": "object"}, **tool} for tool in TOOLS]}
        elif message["method"] == "tools/call":
            answer = call(message["params"]["name"], message["params"].get("arguments", {}))
            if asyncio.isfuture(answer):
                answer = await answer
            result = {"content": [{"type": "text", "text": json.dumps(answer)}]}
        else:
            error = {"code": -32601, "message": "no such method"}
            sys.stdout.write(json.dumps({"jsonrpc": "2.0", "id": message["id"], "error": error}) + "\n")
            sys.stdout.flush()
            continue
        sys.stdout.write(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    asyncio.run(serve())
