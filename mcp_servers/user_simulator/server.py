"""The server of any simulated user, with harness tools only, and users loaded from the command line's sources."""

from __future__ import annotations

import importlib
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Protocol, TypeVar, cast

from mcp.server.mcpserver import MCPServer
from pydantic import BaseModel, TypeAdapter, ValidationError

from mcp_rollout.mcp_servers.kit import Elicited, Harness, Reply
from mcp_rollout.mcp_servers.user_simulator.scripted import Scenario, ScriptedUser

ANY_TASK = "*"


class SimulatedUser(Protocol):
    """A user in one conversation. Each call is the next turn; the harness handles repeated requests."""

    def opening(self) -> str | Awaitable[str]:
        """The user's first message, the same at every call."""
        ...

    def reply(self, message: str) -> Reply | Awaitable[Reply]:
        """The user's reply to the agent's message."""
        ...

    def elicit(self, question: str) -> Elicited | Awaitable[Elicited]:
        """The user's answer to a question that a server asks during a tool call."""
        ...


M = TypeVar("M", bound=BaseModel)
U = TypeVar("U", bound=SimulatedUser)


def simulator(begin: Callable[[str, int], U], *, max_trajectories: int = 4096) -> MCPServer:
    """The server of simulated users, one per trajectory.

    Args:
        begin: (task, seed) -> a user at the start of a conversation. Raises LookupError for an unknown task.
        max_trajectories: Maximum number of conversations at a time.
    """
    server = MCPServer("user_simulator", log_level="WARNING")
    harness = Harness(server, begin, max_trajectories=max_trajectories)
    harness.start(lambda user: user.opening())
    harness.reply(lambda user, message: user.reply(message))
    harness.elicit(lambda user, question: user.elicit(question))
    return server


def create_server(scenarios: Callable[[str, int], Scenario]) -> MCPServer:
    """The server of scripted users.

    Args:
        scenarios: (task, seed) -> scenario, the same in every process. Raises LookupError for an unknown task.
    """
    return simulator(lambda task, seed: ScriptedUser(scenarios(task, seed)))


def load_by_task(source: str, model: type[M]) -> Callable[[str, int], M]:
    """Loads a function (task, seed) -> `model` from ``module:function``, or from a JSON object of models by task.

    Raises:
        ValueError: The source does not exist or is invalid; the message names source and problem.
    """
    if source.endswith(".json"):
        return _from_file(Path(source), model)
    module, _, name = source.partition(":")
    if not module or not name:
        raise ValueError(f"{source!r} is neither MODULE:FUNCTION nor FILE.json")
    try:
        found: object = getattr(importlib.import_module(module), name)
    # Nothing broader: a defect in the module keeps its traceback.
    except (ImportError, AttributeError) as error:
        raise ValueError(f"{source!r}: {error}") from error
    if not callable(found):
        raise ValueError(f"{source!r} is not a function (task, seed) -> {model.__name__}")
    return cast("Callable[[str, int], M]", found)


def _from_file(path: Path, model: type[M]) -> Callable[[str, int], M]:
    try:
        raw = TypeAdapter(dict[str, object]).validate_json(path.read_bytes())
        by_task = {task: model.model_validate(given) for task, given in raw.items()}
    except (OSError, ValidationError) as error:
        raise ValueError(f"{path}: {error}") from error

    def found(task: str, seed: int) -> M:
        if task not in by_task and ANY_TASK not in by_task:
            raise LookupError(f"{path.name} has nothing for task {task!r}")
        return by_task.get(task) or by_task[ANY_TASK]

    return found
