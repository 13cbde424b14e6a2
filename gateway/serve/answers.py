"""The members `"result": …` or `"error": …` of a JSON-RPC response, in bytes."""

from __future__ import annotations

from typing import Any

from pydantic_core import to_json

from gateway.errors import GatewayError
from gateway.remote.outcome import encoded_failure
from gateway.server_events import ServerEvents

Json = dict[str, Any]


def succeeded(result: Json) -> bytes:
    return b'"result":' + to_json(result)


def failed(error: GatewayError, *, events: ServerEvents | None = None) -> bytes:
    return b'"error":' + to_json(encoded_failure(error, events=events))
