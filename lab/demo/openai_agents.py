# pyright: basic
"""An agent of openai-agents, as its users write one, in the demo's place of the built-in agent.

The library is that of `make mcp2`, in an environment of its own.
"""

from __future__ import annotations

import sys
from pathlib import Path

import yaml

from mcp_rollout.rollout.programs.program import Offered

ROOT = Path(__file__).resolve().parents[2]
_PYTHON = f"python{sys.version_info.major}.{sys.version_info.minor}"
LIBRARY = ROOT / ".venv-mcp2" / "lib" / _PYTHON / "site-packages"
TURNS = 8
"""More than the environments' limit, which ends a trajectory first."""
WAIT_S = 120.0
"""For the world: a worker's trajectories begin together, and openai-agents waits 5 s by default."""


async def serve_customer(offered: Offered) -> None:
    """Plays one trajectory; what openai-agents gives the model is the task's own prompt."""
    if str(LIBRARY) not in sys.path:
        sys.path.append(str(LIBRARY))  # the last one: only what is missing here is taken from there
    from agents import Agent, OpenAIChatCompletionsModel, Runner, set_tracing_disabled
    from agents.mcp import MCPServerStreamableHttp
    from openai import AsyncOpenAI

    set_tracing_disabled(True)
    system = offered.messages[0]["content"]
    client = AsyncOpenAI(base_url=offered.model_url, api_key=offered.model_key)
    model = OpenAIChatCompletionsModel(model="policy", openai_client=client)
    params = {"url": offered.mcp_url, "timeout": WAIT_S}
    async with client, MCPServerStreamableHttp(params=params, client_session_timeout_seconds=WAIT_S) as shop:
        agent = Agent(name="Service", instructions=system, model=model, mcp_servers=[shop])
        await Runner.run(agent, offered.prompt, max_turns=TURNS)


def write_environments(directory: Path) -> Path:
    """Write the demo's environments as openai-agents plays them: without the customer, since a program answers once.

    The customer's only message is in the prompt, and the task, its world and its score are the same.
    """
    # Not above: a trainer's workers load this file by its path.
    from lab.worlds.copies import raw_environment

    directory.mkdir(parents=True, exist_ok=True)
    agent = {
        "use": "mcp_rollout.rollout.programs.program:Function",
        "with": {"use": f"{__file__}:{serve_customer.__name__}"},
    }
    found = raw_environment("shop")
    del found["user"], found["servers"]["customer"], found["limits"]["user_turns"]
    (directory / "shop.yaml").write_text(yaml.safe_dump(found | {"agent": agent}), encoding="utf-8")
    return directory
