"""The former place of `mcp_servers.kit.messages`."""

from mcp_servers.kit.messages import FunctionCall, Message, TextPart, ToolCall

__all__ = ["FunctionCall", "Message", "TextPart", "ToolCall"]
