"""Calls of harness tools whose answers are validated strictly: `check-env` refuses what a trajectory tolerates.

All of them raise `HarnessError` where the tool is missing, refuses or breaks its contract, and `GatewayError` where the
world breaks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from mcp_rollout.gateway.leases.session import Session
from mcp_rollout.gateway.types import Role
from mcp_rollout.rollout.environment.harness import Finite, ListedTask, call_harness
from mcp_rollout.rollout.types import Message


class _Answer(BaseModel):
    model_config = ConfigDict(strict=True)


class _Opening(_Answer):
    message: str


class Reply(_Answer):
    message: str
    done: bool
    reward: Finite | None = None


class Elicited(_Answer):
    action: Literal["accept", "decline", "cancel"]
    content: dict[str, Any] | None = None


class Score(_Answer):
    score: Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
    parts: dict[str, Finite]


class _Snapshot(_Answer):
    state: Any


class _Ignored(_Answer):
    """The answer to a role that has none; a foreign tool may answer anything."""


class Call(_Answer):
    name: str
    arguments: dict[str, Any] = {}


class Turn(_Answer):
    """A turn of the expert's script."""

    thinking: str | None = None
    content: str | None = None
    calls: list[Call] | None = None


class _Script(_Answer):
    turns: list[Turn]


async def start(session: Session, server: str) -> str:
    """Return the user's opening message."""
    return (await call_harness(session, Role.START, {}, _Opening, server=server))[0].message


async def reply(session: Session, server: str, seq: int, message: str) -> Reply:
    arguments = {"seq": seq, "message": message}
    return (await call_harness(session, Role.REPLY, arguments, Reply, server=server))[0]


async def elicit(session: Session, server: str, seq: int, message: str) -> Elicited:
    """Ask the user a question whose answer is an object with the text `answer`."""
    schema = {"type": "object", "properties": {"answer": {"type": "string"}}}
    arguments = {"seq": seq, "message": message, "schema": schema, "server": server, "tool": "any"}
    return (await call_harness(session, Role.ELICIT, arguments, Elicited, server=server))[0]


async def score(session: Session, server: str, messages: Sequence[Message]) -> Score:
    return (await call_harness(session, Role.SCORE, {"messages": messages}, Score, server=server))[0]


async def expert(session: Session, server: str, item: ListedTask) -> list[Turn]:
    """Return the turns that solve a task."""
    arguments = {"task": item.task, "seed": item.seed}
    return (await call_harness(session, Role.EXPERT, arguments, _Script, server=server))[0].turns


async def release(session: Session, server: str) -> None:
    await call_harness(session, Role.RELEASE, {}, _Ignored, server=server)


async def snapshot(session: Session, server: str) -> Any:
    """Return the server's state of the trajectory."""
    return (await call_harness(session, Role.SNAPSHOT, {}, _Snapshot, server=server))[0].state


async def restore(session: Session, server: str, state: Any) -> None:
    await call_harness(session, Role.RESTORE, {"state": state}, _Ignored, server=server)
