"""The authoring kit: what an environment's server is written with. `docs/write.md` has the contract behind it."""

from mcp.server.mcpserver.exceptions import ToolError

from mcp_servers.kit.answers import Call, Elicited, Expert, ExpertTurn, Reply, Score, Split, TaskItem
from mcp_servers.kit.harness import Harness
from mcp_servers.kit.messages import Message
from mcp_servers.kit.numbered import Numbered, OutOfOrder
from mcp_servers.kit.roles import CHANGE, NOTE, READ, SET, harness_tool
from mcp_servers.kit.serve import main, parser, serve
from mcp_servers.kit.splits import Splits
from mcp_servers.kit.state import TrajectoryState

__all__ = [
    "CHANGE",
    "NOTE",
    "READ",
    "SET",
    "Call",
    "Elicited",
    "Expert",
    "ExpertTurn",
    "Harness",
    "Message",
    "Numbered",
    "OutOfOrder",
    "Reply",
    "Score",
    "Split",
    "Splits",
    "TaskItem",
    "ToolError",
    "TrajectoryState",
    "harness_tool",
    "main",
    "parser",
    "serve",
]
