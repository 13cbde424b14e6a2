"""Call harness tools and validate their results against the contract of `gateway.types.Role`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from mcp_rollout.gateway.errors import HarnessError
from mcp_rollout.gateway.leases.session import Session
from mcp_rollout.gateway.types import Role, ToolResult
from mcp_rollout.rollout.environment.task import Calls, Checks
from mcp_rollout.rollout.types import TurnSession

Model = TypeVar("Model", bound=BaseModel)
Finite = Annotated[float, Field(allow_inf_nan=False)]
"""A score, a part of one or a reward: one that is NaN or infinite would make the advantages of its whole group NaN."""

_ALL = 1_000_000
"""The limit where all tasks of a split are wanted."""


class ListedTask(BaseModel):
    """One task of an answer to `tasks`."""

    model_config = ConfigDict(strict=True)

    task: str
    seed: int
    prompt: str | None = None
    answer: str | None = None
    tools: list[str] | None = None
    """Tools that the policy is shown, by the listing server's own names; None means all."""
    later_tools: list[str] | None = None
    """Tools that are refused, and in no prompt, until a reply of the user names them."""
    setup: Calls = ()
    check: Checks = ()


class _TaskList(BaseModel):
    tasks: list[ListedTask]


async def call_harness(
    session: TurnSession, role: Role, arguments: Mapping[str, Any], model: type[Model], *, server: str
) -> tuple[Model, ToolResult]:
    """Call the server's tool for `role`; return its structured result as `model`, and the whole result.

    Raises:
        HarnessError: the server has no such tool, refused the call, or broke its contract.
        GatewayError: the world broke.
    """
    result = await session.invoke(role, dict(arguments), server=server)
    try:
        return model.model_validate(result.structured), result
    except ValidationError as error:
        fault = error.errors()[0]
        where = ".".join(str(part) for part in fault["loc"]) or "the result"
        raise HarnessError(f"{where}: {fault['msg']}", server=server, tool=role, role=role) from error


async def list_tasks(session: Session, server: str, split: str, *, limit: int | None = None) -> list[ListedTask]:
    """List the first `limit` tasks of a split, all of them by default. Raises as `call_harness` does."""
    arguments = {"split": split, "limit": limit or _ALL}
    answer, _ = await call_harness(session, Role.TASKS, arguments, _TaskList, server=server)
    return answer.tasks
