"""The customers of the short tasks: `--scenarios lab.worlds.shop.users:scenario` of the user simulator."""

from __future__ import annotations

from lab.worlds.shop.short_tasks import short_case
from mcp_rollout.mcp_servers.retail.users import scenario_of
from mcp_rollout.mcp_servers.user_simulator.scripted import Scenario


def scenario(task: str, seed: int) -> Scenario:
    """The customer of this task and seed, who says one thing and leaves after the answer.

    Raises:
        LookupError: There is no such task.
    """
    return scenario_of(short_case(task, seed), patience=0)
