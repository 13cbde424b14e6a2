"""A dependency-free server whose schemas use what readers like to lose, and whose texts use what formats resolve."""

import json
import sys

AWKWARD = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "$defs": {"Point": {"type": "object", "properties": {"x": {"type": "number", "exclusiveMinimum": 0}}}},
    "type": "object",
    "title": "awkwardArguments",
    "properties": {
        "at": {"$ref": "#/$defs/Point"},
        "maybe": {"anyOf": [{"type": "string"}, {"type": "null"}], "default": None, "title": "Maybe"},
        "many": {"type": "array", "items": {"type": "string", "pattern": "^a{2}$"}, "minItems": 1},
        "one": {"const": 1.0},
        "ünïcode\u2028": {"type": "string", "enum": ["on", "1e3", "0x10", "é"]},
    },
    "required": ["at"],
    "additionalProperties": False,
    "x-vendor": {"big": 12345678901234567890, "float": 1e-9},
}
TOOLS = [
    {"name": "awkward", "description": "Keep: yes, 1e3\n\ttabs\n", "inputSchema": AWKWARD},
    {"name": "dollar", "description": "Costs ${price} or \\${price}", "inputSchema": {"type": "object"}},
]

for line in sys.stdin:
    message = json.loads(line)
    if "id" not in message:
        continue
    answer = {"jsonrpc": "2.0", "id": message["id"]}
    match message["method"]:
        case "initialize":
            info = {"name": "schemas", "version": "1"}
            answer["result"] = {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}, "serverInfo": info}
        case "tools/list":
            answer["result"] = {"tools": TOOLS}
        case _:
            answer["error"] = {"code": -32601, "message": "no such method"}
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()
