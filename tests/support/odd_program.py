"""A program of the standard library alone: `odd_program.py HOW MODEL_URL MCP_URL [MORE]` plays one turn, and is odd; a
"plain" one plays to the end, and has MORE in its prompt.

It speaks chat completions, and of MCP the revision 2026-07-28, in which a request is one POST.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

HOW, MODEL, WORLD, *MORE = sys.argv[1:]


def post(url: str, body: dict[str, Any], **headers: str) -> dict[str, Any]:
    request = urllib.request.Request(url, json.dumps(body).encode(), {"content-type": "application/json", **headers})
    try:
        with urllib.request.urlopen(request, timeout=60) as response:
            return json.loads(response.read())
    except urllib.error.HTTPError as error:
        sys.stdout.write(f"{error.code} {error.read().decode()}\n")
        if HOW in ("hang", "ignore"):
            if HOW == "ignore":
                signal.signal(signal.SIGTERM, signal.SIG_IGN)
            Path(MORE[0]).write_text(str(os.getpid()))
            time.sleep(600)
        raise SystemExit(1) from None


def mcp(method: str, **params: Any) -> dict[str, Any]:
    meta = {
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientInfo": {"name": "odd", "version": "1"},
        "io.modelcontextprotocol/clientCapabilities": {},
    }
    body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": {**params, "_meta": meta}}
    headers = {
        "mcp-protocol-version": "2026-07-28",
        "mcp-method": method,
        "accept": "application/json, text/event-stream",
    }
    if "name" in params:
        headers["mcp-name"] = params["name"]
    return post(WORLD, body, **headers)["result"]


def function(tool: dict[str, Any]) -> dict[str, Any]:
    return {"name": tool["name"], "description": tool.get("description", ""), "parameters": tool["inputSchema"]}


def main() -> None:
    tools = [{"type": "function", "function": function(tool)} for tool in mcp("tools/list")["tools"]]
    opening = f"In {os.getcwd()}, HOME {os.environ['HOME']}, at {time.strftime('%Y-%m-%d')}T{time.time_ns()}"
    opening = "\n".join([opening, *(MORE if HOW == "plain" else ())])
    messages: list[dict[str, Any]] = [{"role": "user", "content": opening}]
    while True:
        message = post(f"{MODEL}/chat/completions", {"model": "m", "messages": messages, "tools": tools})["choices"][0][
            "message"
        ]
        messages.append(message)
        if HOW not in ("plain", "hang", "ignore"):
            odd()
        for call in message.get("tool_calls") or ():
            result = mcp(
                "tools/call", name=call["function"]["name"], arguments=json.loads(call["function"]["arguments"])
            )
            text = "".join(block["text"] for block in result["content"])
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": text})
        if not message.get("tool_calls"):
            sys.stdout.write(f"the end {os.getcwd()}\n")
            return


def odd() -> None:
    match HOW:
        case "fork":
            # One in a session of its own, one whose parent is gone besides, and one that has no environment either.
            (file,) = MORE
            sleep = "import os,sys,time; open(sys.argv[1],'a').write(f'{os.getpid()}\\n'); time.sleep(600)"
            command = [sys.executable, "-c", sleep, file]
            subprocess.Popen(command, start_new_session=True)
            for env in (os.environ, {}):
                if not os.fork():
                    os.setsid()
                    if os.fork():
                        os._exit(0)
                    os.execve(sys.executable, command, env)
            while not os.path.exists(file) or len(Path(file).read_text().split()) < 3:
                time.sleep(0.01)
            raise SystemExit(0)
        case "bomb":
            (file,) = MORE
            for _ in range(40):
                child = subprocess.Popen(["sleep", "600"], start_new_session=True, env={})
                with open(file, "a") as written:
                    written.write(f"{child.pid}\n")
            time.sleep(600)
        case "flood":
            for _ in range(2000):
                sys.stdout.write("x" * 10_000 + "\n")
            sys.stdout.write("end of the flood\n")
            raise SystemExit(3)
        case "die":
            os.kill(os.getpid(), signal.SIGKILL)
        case "orphan":
            os.kill(os.getppid(), signal.SIGKILL)
            time.sleep(600)
        case "memory":
            bytearray(1 << 30)
        case "guess":
            post(MODEL.replace(MODEL.split("/p/")[1][:8], "guessed8") + "/chat/completions", {"messages": []})
        case _:
            raise SystemExit(f"unknown: {HOW}")


main()
