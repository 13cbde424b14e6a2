"""What becomes of a line that a server wrote: the answer to a call, a message for mcp, a notification, or nothing."""

from __future__ import annotations

import structlog
from mcp_types import JSONRPCNotification, jsonrpc_message_adapter

from gateway.transport.line_calls import LineCalls
from gateway.transport.lines import Oversize, parse_message, read_line, unusable_answer
from gateway.transport.link import FOR_MCP, Link
from gateway.transport.streams import Inbox

log = structlog.get_logger(__name__)


class LineReader:
    """Reads the lines of one connection; a bad line affects no other.

    Args:
        server: Its name, for the log.
        limit: Bytes of a line, for the message about a longer one.
    """

    def __init__(self, server: str, link: Link, calls: LineCalls, inbox: Inbox, limit: int) -> None:
        self._server, self._link, self._calls, self._inbox, self._limit = server, link, calls, inbox, limit
        self._garbage = 0

    def read(self, line: bytes | Oversize) -> None:
        if isinstance(line, Oversize):
            self._refuse(line)
        elif line.strip():
            self._accept(line)

    def _accept(self, line: bytes) -> None:
        # Answers to calls go straight to their callers; all other messages are validated and go to mcp or to the link.
        found = read_line(line)
        if found is not None and self._calls.take(found):
            return
        message = parse_message(found) if found is not None else None
        if message is None:
            self._garbage += 1
            if self._garbage == 1:
                begins = self._link.redact(line.decode("utf-8", "replace"))[:80]
                log.warning("stdio.garbage", server=self._server, begins=begins)
        elif not isinstance(message, JSONRPCNotification) or message.method in FOR_MCP:
            self._inbox.put(message)
            if isinstance(message, JSONRPCNotification) and message.method != "notifications/cancelled":
                self._link.on_notification(message.method, message.params, None)  # a client's subscription, perhaps
        else:
            # Not by way of mcp, which makes tasks of each: a flood of them would delay answers.
            self._link.on_notification(message.method, message.params, None)

    def _refuse(self, line: Oversize) -> None:
        limit, answered = self._limit, line.answered_id()
        log.warning("stdio.oversize", server=self._server, bytes=line.size, limit=limit, answers=answered)
        if answered is not None:
            problem = f"the result has {line.size} bytes, max_message_bytes is {limit}"
            answer = unusable_answer(answered, problem)
            if not self._calls.take(answer):
                self._inbox.put(jsonrpc_message_adapter.validate_python(answer))
