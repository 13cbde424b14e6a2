"""OpenEnv servers and their own client, in the environment that `make mcp1` makes for them.

python openenv_servers.py serve template|tools DIRECTORY     writes its port on the first line
python openenv_servers.py client URL CALLS                   what the package's client sees, one JSON line a call
"""

import asyncio
import json
import random
import socket
import subprocess
import sys
from pathlib import Path
from typing import Annotated, Any


def template(directory: Path) -> Any:
    """The package's own template, as `openenv init` writes it."""
    program = Path(sys.executable).with_name("openenv")
    subprocess.run([program, "init", "echo_env", "--output-dir", directory], capture_output=True, check=True)
    sys.path.insert(0, str(directory / "echo_env"))
    from server.app import app

    return app


def tools(directory: Path) -> Any:
    """A game over `MCPEnvironment`: `add` up to a goal that the seed decides; a step in its direction is rewarded."""
    from fastmcp import FastMCP
    from openenv.core.env_server.http_server import create_fastapi_app
    from openenv.core.env_server.mcp_environment import MCPEnvironment
    from openenv.core.env_server.mcp_types import CallToolAction, CallToolObservation
    from openenv.core.env_server.types import Observation, State
    from pydantic import Field

    class Opening(Observation):
        goal: int

    class Game(MCPEnvironment):
        SUPPORTS_CONCURRENT_SESSIONS = True

        def __init__(self) -> None:
            server = FastMCP("game")
            self.sum, self.goal, self.steps = 0, 0, 0

            @server.tool()
            def add(number: int) -> str:
                """Add a number to the sum."""
                if not number:
                    raise ValueError("there is nothing to add")
                self.sum += number
                return f"The sum is {self.sum}."

            @server.tool()
            def look(after: Annotated[int, Field(ge=0, le=9)] = 0) -> str:
                """Look at the sum."""
                return f"The sum is {self.sum}."

            super().__init__(server)

        def reset(self, seed: int | None = None, episode_id: str | None = None, **_: Any) -> Observation:
            self.sum, self.goal, self.steps = 0, random.Random(seed).randint(3, 9), 0
            return Opening(goal=self.goal)

        async def step_async(self, action: Any, timeout_s: float | None = None, **kwargs: Any) -> Observation:
            before = self.sum
            seen = await super().step_async(action, timeout_s, **kwargs)
            self.steps += 1
            seen.reward = 0.1 * (self.sum > before) + (self.sum == self.goal)
            seen.done = self.sum >= self.goal
            return seen

        def _step_impl(self, action: Any, timeout_s: float | None = None, **_: Any) -> Observation:
            return Observation()

        @property
        def state(self) -> State:
            return State(step_count=self.steps)

    return create_fastapi_app(Game, CallToolAction, CallToolObservation, max_concurrent_envs=64)


def serve(app: Any) -> None:
    import uvicorn

    bound = socket.create_server(("127.0.0.1", 0))
    sys.stdout.write(f"{bound.getsockname()[1]}\n")
    sys.stdout.flush()
    uvicorn.Server(uvicorn.Config(app, log_level="error")).run(sockets=[bound])


async def client(url: str, calls: list[dict[str, Any]]) -> None:
    """A call is `{"reset": SEED}` or `{"step": ACTION}`."""
    from openenv.core.generic_client import GenericEnvClient

    async with GenericEnvClient(base_url=url) as session:
        for call in calls:
            seen: dict[str, Any]
            try:
                made = session.reset(seed=call["reset"]) if "reset" in call else session.step(call["step"])
                result = await made
                seen = {"observation": result.observation, "reward": result.reward, "done": result.done}
            except RuntimeError as error:
                seen = {"error": str(error)}
            sys.stdout.write(json.dumps(seen) + "\n")


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["serve", "template", directory]:
            serve(template(Path(directory)))
        case ["serve", "tools", directory]:
            serve(tools(Path(directory)))
        case ["client", url, calls]:
            asyncio.run(client(url, json.loads(calls)))
