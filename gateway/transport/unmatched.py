"""Errors without an id, by which a server says that it could not tell which request it answers. No I/O."""

from __future__ import annotations

from mcp_types import ErrorData, JSONRPCError, JSONRPCMessage, JSONRPCNotification, JSONRPCRequest, RequestId

from mcp_rollout.gateway.transport.messages import Json, answered_id, is_response, typed, unusable_answer

HANDSHAKE = frozenset(("server/discover", "initialize"))


def unmatched(message: Json) -> ErrorData | None:
    """The error of a response without an id; None for any other message."""
    if not is_response(message) or message.get("id") is not None or "error" not in message:
        return None
    try:
        found = typed({**message, "id": None})
    except ValueError:
        return None
    return found.error if isinstance(found, JSONRPCError) else None


def describe(error: ErrorData) -> str:
    return f"the server answered with an error that names no request: {error.message} (code {error.code})"


class Unanswered:
    """The requests of one line that have no answer yet: those that errors without an id must be about.

    As long as there are more requests than such errors, any of them may still get an answer of its own.
    """

    def __init__(self) -> None:
        self._methods: dict[RequestId, str] = {}
        self._errors: list[ErrorData] = []
        self._notified = 0
        """Notifications that the server may not have read yet: some answer these with such an error, too."""

    def wrote(self, message: JSONRPCMessage) -> None:
        """Note what mcp's session sends."""
        if isinstance(message, JSONRPCRequest):
            self.asked(message.id, message.method)
        elif isinstance(message, JSONRPCNotification):
            self._notified += 1
            if message.method == "notifications/cancelled":
                self._methods.pop((message.params or {}).get("requestId", ""), None)

    def asked(self, number: RequestId, method: str) -> None:
        """Note a request."""
        if method == "initialize":  # which follows a request that was given up
            self._methods.clear()
        self._methods[number] = method

    def given_up(self, number: RequestId) -> None:
        """Note that nothing waits for an answer to a request any more."""
        self._methods.pop(number, None)

    def read(self, message: Json) -> list[Json]:
        """What a message of the server stands for: itself, or the answers of errors without an id."""
        number, nameless, found = answered_id(message), unmatched(message), list[Json]()
        if number is not None:
            self._methods.pop(number, None)
            self._notified, found = 0, [message if message["id"] is number else {**message, "id": number}]
        elif nameless is None:
            return [message]
        elif self._notified:
            self._notified -= 1
        else:
            self._errors.append(nameless)
        if self._errors and len(self._errors) >= len(self._methods):
            pairs = zip(self._errors, self._methods.items(), strict=False)
            found += [_addressed(error, number, method) for error, (number, method) in pairs]
            self._errors, self._methods = [], {}
        return found


def _addressed(error: ErrorData, number: RequestId, method: str) -> Json:
    if method in HANDSHAKE:  # mcp's session decides by the code which protocol the server speaks
        return {"jsonrpc": "2.0", "id": number, "error": error.model_dump(exclude_none=True)}
    return unusable_answer(number, describe(error))
