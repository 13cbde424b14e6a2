"""`DirectTools`: running a tool as the SDK's handler does, with less around it.

The SDK's `Tool.run` stays: it validates, calls the function and words its failures. What it uses is replaced where the
outcome is the same: the tool's context, the conversion of arguments, and the conversion of an ordinary result.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache
from typing import Any, NamedTuple, cast, get_args

import pydantic_core
from mcp.server.context import ServerRequestContext
from mcp.server.mcpserver import Audio, Context, Image, MCPServer
from mcp.server.mcpserver.tools.base import Tool
from mcp.server.mcpserver.tools.tool_manager import ToolManager
from mcp.server.mcpserver.utilities.func_metadata import FuncMetadata
from mcp_types import CallToolResult, ContentBlock, InputRequiredResult
from pydantic import BaseModel, TypeAdapter

from mcp_rollout.mcp_servers.kit import sdk

_OUTCOME: ContextVar[Any] = ContextVar("_OUTCOME", default=None)
_NOT_TAKEN = Context()
_SHAPED = (*get_args(ContentBlock), Image, Audio, CallToolResult, InputRequiredResult, str, list, tuple)
"""Types, with their subclasses, that the SDK does not write as JSON text."""


class OrdinaryResult(NamedTuple):
    """The result of a tool that returned data, in the protocol's form."""

    content: list[dict[str, Any]]
    structured: dict[str, Any] | None


class DirectTools:
    """The tools of one server; they may change at any time."""

    def __init__(self, server: MCPServer) -> None:
        self._server, self._blank = server, sdk.blank_context(server)
        self._is_stock = type(server) is MCPServer and "call_tool" not in vars(server)
        self._call_tool, self._call_or_outcome = server.call_tool, self._call
        server.call_tool = self._call_or_outcome
        self._direct: dict[str, tuple[Tool, FuncMetadata, Tool]] = {}

    def takes(self, handler: Any) -> bool:
        """Whether a handler of `tools/call` only runs the tool; with extensions, or in a subclass, it does more."""
        return (
            self._is_stock
            and getattr(handler, "__self__", None) is self._server
            and self._server.call_tool is self._call_or_outcome
        )

    def get(self, name: str, handler: Any) -> Tool | None:
        """The tool to run for a call; None if the SDK's handler has to."""
        manager = sdk.tools_of(self._server)
        if not self.takes(handler) or type(manager) is not ToolManager or "call_tool" in vars(manager):
            return None
        tool = manager.get_tool(name)
        if type(tool) is not Tool:
            return None
        known = self._direct.get(name)
        if known is not None and known[0] is tool and known[1] is tool.fn_metadata and known[2].fn is tool.fn:
            return known[2]
        direct = tool.model_copy()
        direct.fn_metadata = cast(FuncMetadata, DirectMetadata(tool.fn_metadata))
        self._direct[name] = tool, tool.fn_metadata, direct
        return direct

    async def _call(self, name: str, arguments: dict[str, Any], context: Context | None = None) -> Any:
        """In place of the server's own: the SDK's handler gets what `handing_over` says."""
        outcome = _OUTCOME.get()
        if isinstance(outcome, Exception):
            raise outcome
        return await self._call_tool(name, arguments, context) if outcome is None else outcome

    def context(self, tool: Tool, request_context: ServerRequestContext[Any, Any]) -> Context:
        """The tool's context; an empty one for a tool that takes none."""
        taken = tool.context_kwarg is not None or tool.resolved_params
        return sdk.context_of(self._blank, request_context) if taken else _NOT_TAKEN


@contextmanager
def handing_over(outcome: Any) -> Generator[None]:
    """Let the SDK word, log and shape what a tool has returned or raised, in place of running it."""
    token = _OUTCOME.set(outcome)
    try:
        yield
    finally:
        _OUTCOME.reset(token)


class DirectMetadata:
    """In place of a tool's `FuncMetadata`, of which `Tool.run` uses these methods."""

    def __init__(self, replaced: FuncMetadata) -> None:
        self._sdk = replaced
        self._arguments: tuple[Any, dict[str, str], frozenset[str]] = None, {}, frozenset()
        self._output: tuple[Any, TypeAdapter[Any] | None] = None, None

    def validate_arguments(self, arguments: dict[str, Any]) -> dict[str, Any]:
        model = self._sdk.arg_model
        known, names, parsed = self._arguments
        if known is not model:
            fields = model.model_fields
            names = {name: field.alias or name for name, field in fields.items()}
            by_key = {key: field for name, field in fields.items() for key in (name, names[name])}
            parsed = frozenset(key for key, field in by_key.items() if field.annotation is not str)
            self._arguments = model, names, parsed
        # A text in another field's place may be JSON, which the SDK reads.
        if any(type(value) is str and name in parsed for name, value in arguments.items()):
            return self._sdk.validate_arguments(arguments)
        validated = model.model_validate(arguments)
        return {alias: getattr(validated, name) for name, alias in names.items()}

    def call_fn(
        self, fn: Callable[..., Any], fn_is_async: bool, arguments: dict[str, Any], passed: dict[str, Any]
    ) -> Awaitable[Any]:
        return fn(**{**arguments, **passed}) if fn_is_async else self._sdk.call_fn(fn, fn_is_async, arguments, passed)

    def convert_result(self, value: Any) -> OrdinaryResult | CallToolResult | InputRequiredResult:
        content: list[dict[str, Any]] = []
        if not _add_texts(value, content):
            return self._sdk.convert_result(value)
        output_model = self._sdk.output_model if self._sdk.output_schema is not None else None
        if output_model is None:
            return OrdinaryResult(content, None)
        known, adapter = self._output
        if known is not output_model or adapter is None:
            adapter = sdk.adapter_of(self._sdk, output_model)
            self._output = output_model, adapter
        returned = {"result": value} if self._sdk.wrap_output else value
        validated = adapter.validator.validate_python(returned, by_alias=True, by_name=True)
        if isinstance(validated, BaseModel):
            structured = validated.model_dump(mode="json", by_alias=True)
        else:
            structured = adapter.dump_python(validated, mode="json", by_alias=True)
        if type(structured) is not dict or not is_plain(structured):
            return self._sdk.convert_result(value)
        return OrdinaryResult(content, cast("dict[str, Any]", structured))


def _add_texts(value: Any, content: list[dict[str, Any]]) -> bool:
    """Add the text blocks that the SDK makes of a returned value; False where it makes others."""
    kind = cast(Any, type(value))
    if kind is list or kind is tuple:
        return all(_add_texts(item, content) for item in value)
    if value is None:
        return True
    if kind is str:
        text: str = value
    elif _is_shaped(kind):
        return False
    else:
        text = pydantic_core.to_json(value, fallback=str, indent=2).decode()
    content.append({"text": text, "type": "text"})
    return True


@lru_cache(maxsize=256)
def _is_shaped(kind: type) -> bool:
    return issubclass(kind, _SHAPED)


def is_plain(value: Any) -> bool:
    """Whether `value` is made of JSON's own types, so that no serializer has to convert a part of it."""
    kind = cast(Any, type(value))
    if kind is dict:
        return all(type(key) is str and is_plain(item) for key, item in cast("dict[Any, Any]", value).items())
    if kind is list:
        return all(is_plain(item) for item in cast("list[Any]", value))
    return kind in (str, int, float, bool, type(None))
