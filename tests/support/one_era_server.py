"""A stdio server of one protocol era, without dependencies: `... old` is of 2025-11-25, `... new` of 2026-07-28.

Its tool `ask_twice`, its prompt `greet` and its resource `test://names` elicit two names, and answer with them. The old
one sends a request for each name, the new one answers with a result that asks. With a second argument `odd`, calls
and lists of prompts are answered with JSON of a wrong shape. What it receives is added to the file SEEN.
"""

import json
import os
import sys

OLD, ODD = sys.argv[1] == "old", sys.argv[2:] == ["odd"]
SCHEMA = {"type": "object", "properties": {"name": {"type": "string"}}}
ELICITATION = {"message": "Who?", "requestedSchema": SCHEMA}
CAPABILITIES = {"tools": {}, "prompts": {}, "resources": {}}
COMPLETE = {"resultType": "complete", "ttlMs": 0, "cacheScope": "private"}
LISTS = {
    "tools/list": {"tools": [{"name": "ask_twice", "inputSchema": {"type": "object"}}]},
    "prompts/list": {"prompts": [{"name": "greet"}]},
    "resources/list": {"resources": [{"uri": "test://names", "name": "names"}]},
}
ANSWERS = {
    "tools/call": lambda names: {"content": [{"type": "text", "text": names}]},
    "prompts/get": lambda names: {"messages": [{"role": "user", "content": {"type": "text", "text": names}}]},
    "resources/read": lambda names: {"contents": [{"uri": "test://names", "text": names}]},
}


def seen(line):
    if path := os.environ.get("SEEN"):
        with open(path, "a") as file:
            file.write(line)
    return json.loads(line)


def send(message):
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
    sys.stdout.flush()


def ask(number):
    send({"id": number, "method": "elicitation/create", "params": ELICITATION})
    while True:
        answer = seen(sys.stdin.readline())
        if answer.get("id") == number and "method" not in answer:
            return answer["result"]["content"]["name"] if "result" in answer else answer["error"]["message"]


def names_or_question(params):
    """The two names, or None and the result that asks for the next one."""
    known = json.loads(params.get("requestState", "[]"))
    for answer in params.get("inputResponses", {}).values():
        known.append(answer["content"]["name"])
    if len(known) == 2:
        return " ".join(known), None
    asked = {"who": {"method": "elicitation/create", "params": ELICITATION}}
    return None, {"resultType": "input_required", "inputRequests": asked, "requestState": json.dumps(known)}


def result_of(method, params):
    if ODD and method == "tools/call":
        return {"resultType": "input_required", "inputRequests": [1]}
    if ODD and method == "prompts/list":
        return {**COMPLETE, "prompts": [1]}
    if method in LISTS:
        return {**COMPLETE, **LISTS[method]}
    names, question = (f"{ask('a')} {ask('b')}", None) if OLD else names_or_question(params)
    return question or {**COMPLETE, **ANSWERS[method](names)}


for line in sys.stdin:
    asked = seen(line)
    number, method = asked.get("id"), asked.get("method")
    if number is None or method is None:
        continue
    if OLD and method == "initialize":
        server = {"name": "old", "version": "1"}
        result = {"protocolVersion": "2025-11-25", "capabilities": CAPABILITIES, "serverInfo": server}
        send({"id": number, "result": result})
    elif not OLD and method == "server/discover":
        send({"id": number, "result": {"supportedVersions": ["2026-07-28"], "capabilities": CAPABILITIES, **COMPLETE}})
    elif method in LISTS or method in ANSWERS:
        send({"id": number, "result": result_of(method, asked.get("params") or {})})
    else:
        send({"id": number, "error": {"code": -32601, "message": "Method not found"}})
