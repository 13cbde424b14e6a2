"""Policies for the OpenEnv servers of openenv_servers.py that do not look: `--engine openenv_players:NAME`."""

from __future__ import annotations

from blind_engine import Blind

from mcp_rollout.rollout.engines.engine import EngineOptions
from mcp_rollout.rollout.types import Call


def letters(_: EngineOptions) -> Blind:
    """Ten letters to the template in every turn."""
    return Blind("letters", lambda task: ([Call(name="step", arguments={"message": "a" * 10})] * 100, []))


def ones(_: EngineOptions) -> Blind:
    """Adds 1 in every turn of the game."""
    return Blind("ones", lambda task: ([Call(name="add", arguments={"number": 1})] * 100, []))
