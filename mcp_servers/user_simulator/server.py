"""Any simulated user as an MCP server: harness tools only, nothing for the policy."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol, TypeVar

from mcp.server.mcpserver import MCPServer

from mcp_servers.kit import Elicited, Harness, Reply
from mcp_servers.user_simulator.conversation import Conversation
from mcp_servers.user_simulator.load import Scenarios


class SimulatedUser(Protocol):
    """One conversation with a user. Each call is the next turn; the harness sees to repeats."""

    def opening(self) -> str | Awaitable[str]:
        """What the user says first. Asked again, the same."""
        ...

    def reply(self, message: str) -> Reply | Awaitable[Reply]:
        """What the user says to the agent's message."""
        ...

    def elicit(self, question: str) -> Elicited | Awaitable[Elicited]:
        """What the user answers to a question that a server asks within a call."""
        ...


U = TypeVar("U", bound=SimulatedUser)


def simulator(begin: Callable[[str, int], U], *, max_trajectories: int = 4096) -> MCPServer:
    """The server of these users, one for each trajectory.

    Args:
        begin: (task, seed) -> a user who has not spoken yet. Raises LookupError for an unknown task.
        max_trajectories: How many users there may be at a time.
    """
    server = MCPServer("user_simulator", log_level="WARNING")
    harness = Harness(server, begin, max_trajectories=max_trajectories)
    harness.start(lambda user: user.opening())
    harness.reply(lambda user, message: user.reply(message))
    harness.elicit(lambda user, question: user.elicit(question))
    return server


def create_server(scenarios: Scenarios) -> MCPServer:
    """The scripted user."""
    return simulator(lambda task, seed: Conversation(scenarios(task, seed)))
