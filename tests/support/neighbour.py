"""Trajectories beside one whose server misbehaves: they hold leases, take new ones, and call, all the while."""

import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import anyio

from mcp_rollout import Gateway, GatewayError, Session, ToolResult

T = TypeVar("T")
LEAST_ROUNDS = 3
GOOD = Path(__file__).parents[1] / "hostile" / "good_server.py"


def good(**entry: Any) -> dict[str, Any]:
    """A well-behaved server. Its bounds are what makes a stalled neighbour fail."""
    bounds = {"call_timeout_s": 5, "start_timeout_s": 10, "required": True}
    return {"command": sys.executable, "args": ["-I", "-S", str(GOOD)], **bounds, **entry}


async def attempt(session: Session, tool: str, arguments: dict[str, Any] | None = None) -> ToolResult | GatewayError:
    try:
        return await session.call(tool, arguments or {})
    except GatewayError as error:
        return error


@dataclass(slots=True)
class Neighbour:
    """How many rounds of one new lease and two calls it got through; it stops counting when the incident is over."""

    rounds: int = 0


async def beside(
    gateway: Gateway, incident: Callable[[], Awaitable[T]], *, say: str = "say", neighbour: Neighbour | None = None
) -> tuple[T, Neighbour]:
    """What `incident` came to. Before, during and after it a neighbour's calls are answered, or this raises.

    Args:
        say: The name under which the policy sees the good server's tool.
        neighbour: To look at from within the incident.
    """
    neighbour, played, over = neighbour or Neighbour(), 0, anyio.Event()

    async def live(held: Session) -> None:
        nonlocal played
        while not over.is_set() or played < LEAST_ROUNDS:
            async with gateway.lease(trajectory=f"neighbour-{played}", task=None, seed=0, tools=[say]) as fresh:
                for session in (held, fresh):
                    said = await session.call(say, {"text": f"round {played}"})
                    assert said.text == f"round {played}", said.text
            played += 1
            neighbour.rounds += not over.is_set()

    async with gateway.lease(trajectory="neighbour", task=None, seed=0, tools=[say]) as held:
        assert (await held.call(say, {"text": "before"})).text == "before"
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(live, held)
            outcome = await incident()
            over.set()
        assert (await held.call(say, {"text": "after"})).text == "after"
    return outcome, neighbour
