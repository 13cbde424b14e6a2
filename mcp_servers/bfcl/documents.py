"""The leaderboard's function documents as MCP tools: nothing is left out, and types become JSON Schema's."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

from mcp_rollout.mcp_servers.bfcl import package

_TYPES: dict[str, dict[str, Any]] = {
    "dict": {"type": "object"},
    "float": {"type": "number", "format": "float"},
    "tuple": {"type": "array", "format": "tuple"},
    "any": {},
}
"""JSON Schema for the documents' own types; every other type has JSON Schema's name. `format` is an annotation, which
refuses no value: it keeps a float apart from a number."""


@dataclass(frozen=True, slots=True)
class Function:
    """One method of an API class, as a tool."""

    name: str
    class_name: str
    description: str
    input_schema: dict[str, Any]

    @property
    def rendered(self) -> str:
        """The tool as a line of JSON, as chat templates render it."""
        function = {"name": self.name, "description": self.description, "parameters": self.input_schema}
        return json.dumps({"type": "function", "function": function}, ensure_ascii=False)


def load_functions() -> dict[str, Function]:
    """The functions of all classes by name, in the package's order; no two classes share a name."""
    return {
        document["name"]: _function(class_name, document)
        for class_name in package.CLASSES
        for document in package.function_documents(class_name)
    }


def _function(class_name: str, document: Mapping[str, Any]) -> Function:
    # The leaderboard appends the same sentence for APIs without a field for it (`convert_to_tool`), and the results are
    # texts, so an output schema would not fit them.
    response = json.dumps(json_schema(document["response"]), ensure_ascii=False)
    return Function(
        name=document["name"],
        class_name=class_name,
        description=f"{document['description']} The response field has the following schema: {response}",
        input_schema=json_schema(document["parameters"]),
    )


def json_schema(document: Mapping[str, Any]) -> dict[str, Any]:
    """A type of the documents as JSON Schema: the same keywords, with the types translated at every depth."""
    schema: dict[str, Any] = {}
    for keyword, value in document.items():
        match keyword:
            case "type":
                schema |= _TYPES.get(value, {"type": value})
            case "properties":
                members = cast("Mapping[str, Mapping[str, Any]]", value)
                schema["properties"] = {name: json_schema(member) for name, member in members.items()}
            case "items":
                schema["items"] = json_schema(value)
            case _:
                schema[keyword] = value
    return schema
