"""The user simulator's side of a trajectory: sequence numbers, so that a retry can never advance the user twice."""

from __future__ import annotations

import time

from pydantic import BaseModel, Field

from gateway.leases.session import Session
from gateway.types import Role
from rollout.environment.harness import call_harness
from rollout.trace.record import UserEvent


class _Opening(BaseModel):
    message: str


class _Reply(BaseModel):
    message: str
    done: bool
    reward: float | None = Field(default=None, allow_inf_nan=False)


class User:
    """One trajectory's user, played by `server`'s harness tools `start` and `reply`."""

    def __init__(self, session: Session, server: str) -> None:
        self._session, self._server, self._seq = session, server, 0

    async def start(self) -> str:
        """The opening message.

        Raises:
            HarnessError: the server has no `start`, refused, or answered off contract.
            GatewayError: the world broke.
        """
        opening, _ = await call_harness(self._session, Role.START, {}, _Opening, server=self._server)
        return opening.message

    async def reply(self, message: str) -> UserEvent:
        """What the user says to the policy's message. Raises as `start` does."""
        self._seq += 1
        began = time.monotonic()
        arguments = {"seq": self._seq, "message": message}
        reply, result = await call_harness(self._session, Role.REPLY, arguments, _Reply, server=self._server)
        return UserEvent(
            seq=self._seq,
            message=reply.message,
            done=reply.done,
            reward=reply.reward if reply.reward is not None else result.reward,
            elapsed_s=time.monotonic() - began,
        )
