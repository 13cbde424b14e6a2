"""A stdio server of 2025-11-25 without dependencies, whose tool `ask_twice` elicits two names within one call."""

import json
import sys


def send(message):
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
    sys.stdout.flush()


def ask(number):
    schema = {"type": "object", "properties": {"name": {"type": "string"}}}
    send({"id": number, "method": "elicitation/create", "params": {"message": "Who?", "requestedSchema": schema}})
    while True:
        answer = json.loads(sys.stdin.readline())
        if answer.get("id") == number and "method" not in answer:
            return answer["result"]["content"]["name"] if "result" in answer else answer["error"]["message"]


for line in sys.stdin:
    asked = json.loads(line)
    match asked.get("method"):
        case "initialize":
            server = {"name": "old", "version": "1"}
            known = {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}, "serverInfo": server}
            send({"id": asked["id"], "result": known})
        case "tools/list":
            tool = {"name": "ask_twice", "inputSchema": {"type": "object"}}
            send({"id": asked["id"], "result": {"tools": [tool]}})
        case "tools/call":
            names = f"{ask('a')} {ask('b')}"
            send({"id": asked["id"], "result": {"content": [{"type": "text", "text": names}]}})
        case _ if "id" in asked and "method" in asked:
            send({"id": asked["id"], "error": {"code": -32601, "message": "Method not found"}})
