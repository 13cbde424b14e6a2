"""An environment around the echo server, rows for it, and the one conversation that the tests' tiny model is taught."""

from __future__ import annotations

from pathlib import Path
from typing import Any

SERVER = Path(__file__).with_name("echo_server.py")

ENVIRONMENT = {
    "servers": {
        "echo": {
            "command": "${python}",
            "args": [str(SERVER)],
            "roles": {"start": "say_hello", "reply": "answer", "score": "judge"},
        }
    },
    "user": {"server": "echo"},
    "reward": {"server": "echo", "parts": ["letters"]},
}
CONVERSATION: list[dict[str, Any]] = [
    {"role": "system", "content": "Shout what the user says."},
    {"role": "user", "content": "Shout plum."},
    {
        "role": "assistant",
        "reasoning_content": "plum",
        "tool_calls": [{"function": {"name": "shout", "arguments": {"text": "plum", "times": 2}}}],
    },
    {"role": "tool", "content": "PLUM PLUM"},
    {"role": "assistant", "content": "PLUM"},
    {"role": "user", "content": "Shout pear 1."},
    {
        "role": "assistant",
        "reasoning_content": "pear",
        "tool_calls": [{"function": {"name": "shout", "arguments": {"text": "pear"}}}],
    },
    {"role": "tool", "content": "PEAR"},
    {"role": "assistant", "content": "PEAR"},
]


def echo_row(agent: str, index: int) -> dict[str, Any]:
    """A dataset row for `agent`; its seed is its index."""
    task = {"task": "t", "seed": index}
    return {
        "data_source": "echo",
        "agent_name": agent,
        "prompt": CONVERSATION[:2],
        "reward_model": {"style": "rule", "ground_truth": ""},
        "extra_info": {
            "index": index,
            "mcp": {"environment": "echo", "tools": ["shout"], **task},
            "tools_kwargs": {"mcp": task},
        },
    }
