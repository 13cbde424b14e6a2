"""The former place of `mcp_servers.kit.answers` and `mcp_servers.kit.roles`."""

from mcp_servers.kit.answers import (
    Call,
    Done,
    Elicited,
    Expert,
    ExpertTurn,
    HarnessResult,
    Opening,
    Reply,
    Score,
    Split,
    TaskItem,
    TaskList,
)
from mcp_servers.kit.roles import CHANGE, NOTE, READ, ROLE_META, SET, HarnessRole, harness_tool

__all__ = [
    "CHANGE",
    "NOTE",
    "READ",
    "ROLE_META",
    "SET",
    "Call",
    "Done",
    "Elicited",
    "Expert",
    "ExpertTurn",
    "HarnessResult",
    "HarnessRole",
    "Opening",
    "Reply",
    "Score",
    "Split",
    "TaskItem",
    "TaskList",
    "harness_tool",
]
