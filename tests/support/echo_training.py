"""What it takes to train on the echo server: an environment, two rows, the lock, and a model that knows what to say."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import yaml
from commands import mcp_rollout
from taught_model import teach

from mcp_rollout.gateway.catalogue.tool_config import read_lock

ROOT = Path(__file__).parents[2]
ROWS = 2
JUDGED: dict[str, Any] = {
    "servers": {
        "echo": {
            "command": "${python}",
            "args": [str(ROOT / "tests" / "support" / "echo_server.py")],
            "roles": {"score": "judge"},
            "tools": {"allow": ["shout", "judge"]},
        }
    },
    "reward": {"server": "echo", "parts": ["letters"]},
}
"""The echo server, which scores the answer itself."""
CONVERSED: dict[str, Any] = {
    "servers": {
        "echo": {
            "command": "${python}",
            "args": [str(ROOT / "tests" / "support" / "echo_server.py")],
            "roles": {"start": "say_hello", "reply": "answer", "score": "judge"},
        }
    },
    "user": {"server": "echo"},
    "reward": {"server": "echo", "parts": ["letters"]},
}
"""The echo server, which is the user too."""
SHOUT_PLUM: list[dict[str, Any]] = [
    {"role": "user", "content": "Shout plum."},
    {"role": "assistant", "tool_calls": [{"function": {"name": "shout", "arguments": {"text": "plum"}}}]},
    {"role": "tool", "content": "PLUM"},
    {"role": "assistant", "content": "PLUM"},
]
"""A conversation with one call."""
ENDING_AGENT = '''
import os
import signal


class Ends:
    """Plays as the built-in agent does. The first time of all, its process is killed after a call."""

    async def play(self, turns):
        while (await turns.generate()).calls:
            await turns.call_tools()
            try:
                os.close(os.open(os.environ["KILLED_ONCE"], os.O_CREAT | os.O_EXCL))
            except FileExistsError:
                continue
            os.kill(os.getpid(), signal.SIGKILL)
'''
"""An environment's agent, for a file in PYTHONPATH; KILLED_ONCE names a file that does not exist yet."""


def prepare_training(
    home: Path, environment: dict[str, Any], conversation: Sequence[dict[str, Any]], *, samples: int
) -> dict[str, Any]:
    """verl's overrides for one step.

    Args:
        environment: The YAML of `echo`, which allows its tool `shout`; other files that it names lie beside it already.
        conversation: What the model has learnt by heart, from the row's prompt on.
        samples: Trajectories of each row.
    """
    environments, rows, lock = home / "environments", home / "rows.parquet", home / "lock.yaml"
    environments.mkdir(exist_ok=True)
    (environments / "echo.yaml").write_text(yaml.safe_dump(environment))
    mcp = {"environment": "echo", "task": "t", "seed": 1, "tools": ["shout"]}
    row = {
        "data_source": "echo",
        "agent_name": "mcp_agent",
        "prompt": conversation[:1],
        "reward_model": {"style": "rule", "ground_truth": ""},
    }
    table = pa.Table.from_pylist([{**row, "extra_info": {"index": index, "mcp": mcp}} for index in range(ROWS)])
    pq.write_table(table, rows)
    assert mcp_rollout("tool-config", environments / "echo.yaml", "-o", lock).status == 0
    tools = [entry.definition.openai_schema() for entry in read_lock(lock)]
    return {
        "data.train_files": rows,
        "data.val_files": rows,
        "data.train_batch_size": ROWS,
        "data.max_prompt_length": 1024,
        "data.max_response_length": 320,
        "actor_rollout_ref.model.path": teach(home / "model", conversation, tools),
        "actor_rollout_ref.rollout.n": samples,
        "actor_rollout_ref.rollout.multi_turn.tool_config_path": lock,
        "actor_rollout_ref.rollout.custom.mcp.environments_dir": environments,
        "++actor_rollout_ref.rollout.custom.mcp.environment.limits.tokens_per_turn": 64,
        "trainer.total_training_steps": 1,
    }
