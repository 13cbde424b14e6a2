"""The authoring kit for environment servers; `docs/write.md` describes the contract."""

from mcp.server.mcpserver.exceptions import ToolError

from mcp_rollout.mcp_servers.kit.direct.memory import InProcess
from mcp_rollout.mcp_servers.kit.harness import Harness
from mcp_rollout.mcp_servers.kit.numbered import Numbered, OutOfOrder
from mcp_rollout.mcp_servers.kit.records import (
    Call,
    Elicited,
    Expert,
    ExpertTurn,
    Message,
    Reply,
    Score,
    Split,
    TaskItem,
    digest,
    texts_for_user,
    tool_result,
)
from mcp_rollout.mcp_servers.kit.roles import CHANGE, NOTE, READ, SET, harness_tool
from mcp_rollout.mcp_servers.kit.schema_tool import SchemaTool
from mcp_rollout.mcp_servers.kit.serve import main, parser, serve
from mcp_rollout.mcp_servers.kit.splits import Problem, Splits
from mcp_rollout.mcp_servers.kit.state import TrajectoryState

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
    "InProcess",
    "Message",
    "Numbered",
    "OutOfOrder",
    "Problem",
    "Reply",
    "SchemaTool",
    "Score",
    "Split",
    "Splits",
    "TaskItem",
    "ToolError",
    "TrajectoryState",
    "digest",
    "harness_tool",
    "main",
    "parser",
    "serve",
    "texts_for_user",
    "tool_result",
]
