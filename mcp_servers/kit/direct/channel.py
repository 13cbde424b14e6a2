"""`Channel`: a direct call's way to its client, the SDK's `DispatchContext`."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Mapping
from functools import cache
from typing import Any

import anyio
from mcp.shared.dispatcher import CallOptions
from mcp.shared.message import MessageMetadata
from mcp.shared.transport_context import TransportContext
from mcp_types import INTERNAL_ERROR, ErrorData, ProgressToken, RequestId

log = logging.getLogger(__name__)


@cache
def scope_type() -> type[anyio.CancelScope]:
    """The class of cancel scopes of this event loop; `anyio.CancelScope` looks for it each time, at half its cost."""
    return type(anyio.CancelScope())


def unasked_end(failure: BaseException) -> ErrorData:
    """The answer to a call that was not cancelled and whose tool raised what is not an `Exception`.

    Mostly a cancellation: that of a task or future of the tool's own, which it awaited. Raises what ends the program.
    """
    if isinstance(failure, KeyboardInterrupt | SystemExit | GeneratorExit):
        raise failure
    log.error("a tool ended its call", exc_info=failure)
    return ErrorData(code=INTERNAL_ERROR, message=f"the tool raised {type(failure).__name__}")


class Channel(ABC):
    """What the SDK's session sends through while the call runs.

    Args:
        request_id: The id of the call's request.
        progress_token: The client's token for progress, if it wants any.
    """

    def __init__(self, request_id: RequestId, progress_token: ProgressToken | None) -> None:
        self.request_id = request_id
        self._progress_token = progress_token
        self._cancel_requested: anyio.Event | None = None
        self.closed = False
        """The call is over: what it still sends is dropped."""
        self.cancelled = False
        """The client cancelled the call, or is gone: it is not answered."""

    @property
    @abstractmethod
    def transport(self) -> TransportContext: ...

    @property
    @abstractmethod
    def can_send_request(self) -> bool: ...

    @property
    def message_metadata(self) -> MessageMetadata:
        return None

    @property
    def cancel_requested(self) -> anyio.Event:
        # Made when it is asked for: hardly a tool does.
        if self._cancel_requested is None:
            self._cancel_requested = anyio.Event()
        return self._cancel_requested

    def cancel(self) -> None:
        self.cancelled = True
        self.cancel_requested.set()

    def close(self) -> None:
        self.closed = True

    @abstractmethod
    async def send_raw_request(
        self, method: str, params: Mapping[str, Any] | None, opts: CallOptions | None = None
    ) -> dict[str, Any]: ...

    @abstractmethod
    async def notify(self, method: str, params: Mapping[str, Any] | None, opts: CallOptions | None = None) -> None: ...

    async def progress(self, progress: float, total: float | None = None, message: str | None = None) -> None:
        if self._progress_token is None:
            return
        params: dict[str, Any] = {"progressToken": self._progress_token, "progress": progress}
        if total is not None:
            params["total"] = total
        if message is not None:
            params["message"] = message
        await self.notify("notifications/progress", params)
