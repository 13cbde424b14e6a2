"""Rehearse a lease in processes that wait for their first one: each then has run its code and copied its memory.

A fork copies each page that it first writes to, which takes more than half of a first reset; a spawned process also
compiles and builds what libraries put off. Only a server whose reset tool declares it is rehearsed (`REHEARSAL_META`).
"""

from __future__ import annotations

from collections.abc import Iterable
from uuid import uuid4

import structlog

from gateway.errors import HarnessError
from gateway.leases.session import Session
from gateway.types import LeaseRequest, Role, ToolDefinition

log = structlog.get_logger(__name__)


def rehearsed(tools: Iterable[ToolDefinition]) -> list[ToolDefinition]:
    """The reset tools among `tools` that declare a rehearsal."""
    return [tool for tool in tools if tool.role is Role.RESET and tool.rehearsal is not None]


def request() -> LeaseRequest:
    """The request of a session for `rehearse`: a trajectory of its own, without tools of the policy."""
    return LeaseRequest(trajectory=f"rehearsal-{uuid4().hex}", task=None, seed=0, tools={})


async def rehearse(session: Session, resets: Iterable[ToolDefinition]) -> None:
    """Reset and release the servers of `resets`, with the arguments that each declares.

    Raises:
        GatewayError: a server broke.
    """
    for reset in resets:
        try:
            await session.invoke(Role.RESET, reset.rehearsal or {}, server=reset.server)
            if session.has(Role.RELEASE, reset.server):
                await session.invoke(Role.RELEASE, {}, server=reset.server)
        except HarnessError as error:
            if not error.refused:
                raise
            # A refused reset has made no world: the process is as fit for a lease as before.
            log.warning("rehearsal.refused", server=reset.server, problem=str(error))
