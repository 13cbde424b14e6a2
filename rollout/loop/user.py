"""The user simulator's side of a trajectory."""

from __future__ import annotations

import time

from pydantic import BaseModel

from mcp_rollout.gateway.types import Role
from mcp_rollout.rollout.environment.harness import Finite, call_harness
from mcp_rollout.rollout.trace.record import StopReason, Trace, UserEvent
from mcp_rollout.rollout.types import Message, TurnSession


class _Opening(BaseModel):
    message: str


class _Reply(BaseModel):
    message: str
    done: bool
    reward: Finite | None = None
    tools: list[str] | None = None
    state: str | None = None


class User:
    """The user of one trajectory, simulated by the harness tools `start` and `reply` of `server`.

    Messages carry a sequence number, so that a retried request cannot advance the user twice.
    """

    def __init__(self, session: TurnSession, server: str) -> None:
        self._session, self._server, self._seq = session, server, 0

    async def open(self, trace: Trace) -> None:
        """Start the user; its opening message joins the prompt unless that already ends with a user message.

        Raises:
            HarnessError: the server has no such tool, refused the call, or broke its contract.
            GatewayError: the world broke.
        """
        opening, _ = await call_harness(self._session, Role.START, {}, _Opening, server=self._server)
        if trace.messages[-1]["role"] != "user":
            trace.messages.append({"role": "user", "content": opening.message})

    async def answer(self, trace: Trace, message: str) -> Message:
        """Send the policy's message, record the user's reply, and return it as a chat message.

        The tools that the reply names may be called from now on. Sets the stop reason where the user is done. Raises
        what `open` raises.
        """
        # Before the call: a reply that is sent again by the gateway keeps its number, and the next one gets another.
        self._seq += 1
        began = time.monotonic()
        arguments = {"seq": self._seq, "message": message}
        reply, result = await call_harness(self._session, Role.REPLY, arguments, _Reply, server=self._server)
        # Not those that only the harness calls for this task.
        self._session.reveal(name for name in reply.tools or () if name in trace.task.later_tools)
        trace.add_user(
            UserEvent(
                seq=self._seq,
                message=reply.message,
                done=reply.done,
                reward=result.reward if reply.reward is None else reply.reward,
                elapsed_s=time.monotonic() - began,
                state=reply.state or result.state,
            )
        )
        if reply.done:
            trace.stop_reason = StopReason.USER_DONE
        return {"role": "user", "content": reply.message}
