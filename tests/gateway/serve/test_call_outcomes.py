"""What `serve` keeps: outcomes of calls up to a number of bytes."""

from __future__ import annotations

import anyio
import pytest

from mcp_rollout.gateway.errors import DeliveryUnknown
from mcp_rollout.gateway.serve.bearers import Bearer
from mcp_rollout.gateway.serve.config import TokenLimits
from mcp_rollout.gateway.serve.served_lease import LeasedCalls

pytestmark = pytest.mark.anyio
LIMIT = 1 << 20
TOOL = ("server", "tool")


async def test_outcomes_are_dropped_in_the_order_of_their_ends_also_beside_a_call_that_takes_long() -> None:
    bearer = Bearer("", TokenLimits(kept_bytes=LIMIT))
    calls = LeasedCalls(bearer)
    may_end, began = anyio.Event(), anyio.Event()

    async def slow() -> bytes:
        began.set()
        await may_end.wait()
        return b"slow"

    async def large() -> bytes:
        return bytes(LIMIT // 2)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(calls.once, "slow", TOOL, slow)
        await began.wait()
        for key in "abcdef":
            await calls.once(key, TOOL, large)
        assert bearer.kept_bytes == LIMIT
        assert len(await calls.once("f", TOOL, large)) == LIMIT // 2
        with pytest.raises(DeliveryUnknown, match="not kept any more"):
            await calls.once("a", TOOL, large)
        may_end.set()
    assert await calls.once("slow", TOOL, large) == b"slow"
    calls.forget()
    assert bearer.kept_bytes == 0
