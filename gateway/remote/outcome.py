"""The outcome of a call on its way between two gateways: a `tools/call` result, or an error with what broke."""

from __future__ import annotations

import base64
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Annotated, Any, cast

from pydantic import Field, TypeAdapter, ValidationError
from pydantic_core import to_json

from mcp_rollout.gateway.errors import Failure, GatewayError, ProtocolError
from mcp_rollout.gateway.remote.names import FAILURE, OUTCOME_META, PROTOCOL
from mcp_rollout.gateway.server_events import ServerEvents
from mcp_rollout.gateway.transport.results import read_answer, read_result
from mcp_rollout.gateway.transport.tool_definitions import first_fault
from mcp_rollout.gateway.types import CallFault, Content, ContentKind, ToolResult

Json = dict[str, Any]
_Count = Annotated[int, Field(ge=0, lt=1 << 31)]


@dataclass(kw_only=True)
class _Events(ServerEvents):
    """As another gateway counts them: archives have no room for more."""

    more_requests: _Count = 0
    more_notifications: _Count = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class _Outcome:
    """What a result has no place for."""

    resends: _Count = 0
    events: _Events | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class _Fields:
    """Those of any class of `GatewayError`, so that one that was received is used like one that was raised here."""

    server: str | None = None
    tool: str | None = None
    problem: str = ""
    fault: CallFault | None = None
    difference: str = ""
    role: str | None = None
    refused: bool = False
    may_resend: bool = False


_EVENTS: TypeAdapter[ServerEvents] = TypeAdapter(ServerEvents)
_OUTCOME: TypeAdapter[_Outcome] = TypeAdapter(_Outcome)
_FIELDS: TypeAdapter[_Fields] = TypeAdapter(_Fields)
FAILED = -32000
"""The JSON-RPC code of an error whose data has a `Failure`."""


def encoded_result(result: ToolResult, events: ServerEvents) -> Json:
    """A result in the protocol's form. What the form has no place for is under `OUTCOME_META`.

    Args:
        events: What the tool's server asked and reported within the call.
    """
    outcome: Json = {"elapsed_s": round(result.elapsed_s, 6)}
    if result.resends:
        outcome["resends"] = result.resends
    if recorded := _encoded_events(events):
        outcome["events"] = recorded
    encoded: Json = {
        "content": [_block(block) for block in result.content],
        "isError": result.is_error,
        "resultType": "complete",
        "_meta": {**result.meta, OUTCOME_META: outcome},
    }
    if result.structured is not None:
        encoded["structuredContent"] = result.structured
    return encoded


def decoded_result(
    raw: Json, *, trusted: bool, elapsed_s: float, events: ServerEvents, redact: Callable[[Any], Any]
) -> ToolResult:
    """The result that was encoded, with this side's time; what its server asked and reported is added to `events`.

    Args:
        redact: Applied to what is added to `events`.

    Raises:
        ValueError: it is not a result, or its outcome is malformed.
    """
    meta = raw.get("_meta")
    # Taken out before the result is read, or it would be part of the trajectory's `meta`.
    given: Any = cast("Json", meta).pop(OUTCOME_META, {}) if isinstance(meta, dict) else {}
    try:
        outcome = _OUTCOME.validate_python(redact(given))
        # Read like any server's answer, since the bounds on results hold for hosts, too.
        answer = read_answer(raw, PROTOCOL)
    except ValidationError as error:  # whose own text quotes the input, and cuts it
        raise ValueError(f"the result does not fit the protocol: {first_fault(error)}") from None
    # The host's own gateway answers questions of servers, by the environment's user and model.
    if not hasattr(answer, "content"):
        raise ValueError("the host answered with a request for input")
    result = read_result(cast(Any, answer), trusted=trusted, elapsed_s=elapsed_s)
    if outcome.events is not None:
        events.add(outcome.events)
    return replace(result, resends=outcome.resends) if outcome.resends else result


def encoded_failure(error: GatewayError, *, events: ServerEvents | None = None) -> Json:
    """A JSON-RPC error with the class, the message and the fields of a `GatewayError`."""
    data: Json = {FAILURE: Failure.of(error).model_dump(mode="json", exclude_defaults=True)}
    if events is not None and (recorded := _encoded_events(events)):
        data[OUTCOME_META] = {"events": recorded}
    return {"code": FAILED, "message": str(error), "data": data}


def decoded_failure(error: Json, events: ServerEvents | None = None) -> GatewayError:
    """The error that was encoded, which must not be sent again."""
    data: Any = error.get("data")
    try:
        failure = Failure.model_validate(cast("Json", data)[FAILURE])
        fields = _FIELDS.validate_python(failure.state)
        outcome = _OUTCOME.validate_python(cast("Json", data).get(OUTCOME_META, {}))
    except (KeyError, TypeError, ValueError):
        return ProtocolError(f"the host answered with an error: {str(error.get('message'))[:500]}")
    if events is not None and outcome.events is not None:
        events.add(outcome.events)
    # The host has decided, and one hop resends.
    fields = replace(fields, problem=fields.problem or failure.message, may_resend=False)
    return failure.model_copy(update={"state": asdict(fields)}).error()


class HostError(Exception):
    """A host answered with a JSON-RPC error."""

    def __init__(self, error: Json) -> None:
        super().__init__(str(error.get("message")))
        self.error = error

    def decoded(self) -> GatewayError:
        return decoded_failure(self.error)


def _encoded_events(events: ServerEvents) -> Json | None:
    if not (events.requests or events.notifications or events.more_requests or events.more_notifications):
        return None
    return cast("Json", _EVENTS.dump_python(events, mode="json", exclude_defaults=True))


def _block(content: Content) -> Json:
    match content.kind:
        case ContentKind.TEXT:
            return {"type": "text", "text": content.text}
        case ContentKind.IMAGE | ContentKind.AUDIO:
            data = base64.b64encode(content.data).decode()
            return {"type": str(content.kind), "data": data, "mimeType": content.mime_type or ""}
        case ContentKind.RESOURCE:
            resource: Json = {"uri": content.uri or ""}
            if content.mime_type is not None:
                resource["mimeType"] = content.mime_type
            if content.data:
                resource["blob"] = base64.b64encode(content.data).decode()
            else:
                resource["text"] = content.text
            return {"type": "resource", "resource": resource}


def succeeded(result: Json) -> bytes:
    """The member `"result": …` of a JSON-RPC response."""
    return b'"result":' + to_json(result)


def failed(error: GatewayError, *, events: ServerEvents | None = None) -> bytes:
    """The member `"error": …` of a JSON-RPC response."""
    return b'"error":' + to_json(encoded_failure(error, events=events))
