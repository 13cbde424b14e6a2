"""Simulated users as MCP servers whose tools are all for the harness: scripted or modelled."""

from mcp_rollout.mcp_servers.user_simulator.modelled import Persona
from mcp_rollout.mcp_servers.user_simulator.scripted import Answer, Cue, Scenario, Step
from mcp_rollout.mcp_servers.user_simulator.server import SimulatedUser, create_server, simulator

__all__ = ["Answer", "Cue", "Persona", "Scenario", "SimulatedUser", "Step", "create_server", "simulator"]
