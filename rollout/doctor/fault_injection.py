"""Faults injected into a server: whether a call ends in time when the server hangs or dies, and works afterwards.

Signals go to the server's process group, since a server behind `npx` or `uvx` is a child of the process we started.
"""

from __future__ import annotations

import contextlib
import os
import signal

import anyio
import anyio.lowlevel

from mcp_rollout.gateway.connection.connection import Connection
from mcp_rollout.gateway.errors import CallTimeout, GatewayError
from mcp_rollout.rollout.doctor.report import Behaviour

NOT_OURS = Behaviour(well=None, said="not tried: the process is not ours to stop")
IN_PROCESS = Behaviour(well=None, said="not tried: it runs inside the trainer, and a hang there hangs the trainer")


async def hang(connection: Connection, *, timeout_s: float) -> Behaviour:
    """Stop the process (SIGSTOP), make a request, resume the process and repeat the request."""
    pid = connection.pid
    assert pid is not None
    try:
        os.killpg(pid, signal.SIGSTOP)
    except ProcessLookupError:
        return Behaviour(well=False, said="it had already ended")
    try:
        await connection.list_raw(timeout_s=timeout_s)
        said = "it answered although it was stopped: another process answers for it, or it was not stopped"
        return Behaviour(well=None, said=said)
    except CallTimeout:
        pass
    except GatewayError as error:
        return Behaviour(well=False, said=f"stopped, it failed with: {error}")
    finally:
        # Also where the examination is cut off: a process that stays stopped ends only by SIGKILL.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGCONT)
    try:
        await connection.list_raw(timeout_s=5 * timeout_s)
    except GatewayError as error:
        # Servers on older SDKs may end when a request is cancelled. Their next lease gets another process.
        return Behaviour(
            well=None, said=f"a call ended after {timeout_s:g} s; resumed, it did not answer again: {error}"
        )
    return Behaviour(well=True, said=f"a call ended after {timeout_s:g} s; resumed, it answered again")


async def kill(connection: Connection, *, timeout_s: float) -> Behaviour:
    """Kill the process (SIGKILL) while a request is unanswered."""
    pid = connection.pid
    assert pid is not None
    failure: GatewayError | None = None
    began = anyio.current_time()

    async def request() -> None:
        nonlocal failure
        try:
            await connection.list_raw(timeout_s=timeout_s)
        except GatewayError as error:
            failure = error

    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGSTOP)  # so that it cannot answer before the kill
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(request)
        await anyio.lowlevel.checkpoint()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)
    after = anyio.current_time() - began
    if failure is None:
        return Behaviour(well=None, said="it answered although it was killed: another process answers for it")
    if isinstance(failure, CallTimeout):
        return Behaviour(well=False, said=f"its death was not noticed within {timeout_s:g} s")
    return Behaviour(well=True, said=f"its call failed at once ({after:.2f} s) and said why")
