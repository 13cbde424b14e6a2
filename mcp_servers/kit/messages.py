"""The messages that `score` gets, OpenAI style, parsed at the door."""

from __future__ import annotations

import json
from typing import Any, cast

from pydantic import BaseModel, ConfigDict


class _Open(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)


class FunctionCall(_Open):
    name: str
    arguments: str | dict[str, Any] = {}


class ToolCall(_Open):
    function: FunctionCall

    @property
    def name(self) -> str:
        """The server's own name for the tool: the gateway's `server__name` without the server."""
        return self.function.name.rpartition("__")[2]

    @property
    def arguments(self) -> dict[str, Any]:
        """The arguments; empty where they are no JSON object, since such a call was never made."""
        if isinstance(self.function.arguments, dict):
            return self.function.arguments
        try:
            parsed: Any = json.loads(self.function.arguments)
        except ValueError:
            return {}
        return cast("dict[str, Any]", parsed) if isinstance(parsed, dict) else {}


class TextPart(_Open):
    text: str = ""


class Message(_Open):
    role: str
    content: str | list[TextPart] | None = None
    tool_calls: list[ToolCall] | None = None

    @property
    def text(self) -> str:
        if isinstance(self.content, list):
            return "".join(part.text for part in self.content)
        return self.content or ""

    @property
    def is_told(self) -> bool:
        """Whether the user got to read it: said by the assistant, and not beside tool calls."""
        return self.role == "assistant" and not self.tool_calls and bool(self.text.strip())
