"""A rejected access token: what the server says not to have applied is sent once more, everything else is not."""

from __future__ import annotations

from typing import Any

import anyio
import anyio.lowlevel
import pytest
from breaking import breaking
from rejecting import REJECTIONS, Rejecting

from mcp_rollout import Gateway, GatewayConfig, GatewayError, ToolResult
from mcp_rollout.gateway.errors import DeliveryUnknown, ServerUnavailable

pytestmark = pytest.mark.anyio
AT_ONCE = 5


def config(server: Rejecting) -> GatewayConfig:
    return GatewayConfig.model_validate({"servers": {"world": {**server.entry, "call_timeout_s": 20}}})


async def put_at_once(session: Any, outcomes: list[ToolResult]) -> None:
    async def call(name: str) -> None:
        outcomes.append(await session.call("put", {"id": name}))

    async with anyio.create_task_group() as calls:
        for number in range(AT_ONCE):
            calls.start_soon(call, f"call-{number}")


@pytest.mark.parametrize("lifetime_s", [3600, None])
async def test_calls_that_meet_a_revoked_token_all_run_once_with_one_new_token(lifetime_s: int | None) -> None:
    async with breaking(Rejecting, "revoked", unread=0.0) as server:
        server.lifetime_s = lifetime_s
        async with Gateway(config(server)) as gateway, gateway.lease(trajectory="t", task=None, seed=1) as session:
            server.revoked, server.gathered = True, AT_ONCE
            outcomes: list[ToolResult] = []
            await put_at_once(session, outcomes)
        assert [outcome.is_error for outcome in outcomes] == [False] * AT_ONCE
        assert set(server.ran.values()) == {1} and len(server.ran) == AT_ONCE
        assert (server.rejected, server.issued) == (AT_ONCE, 2)


async def test_a_token_that_has_expired_is_renewed_before_the_calls_are_sent() -> None:
    async with breaking(Rejecting, "expired", unread=0.0) as server:
        server.lifetime_s = -1  # expires as it arrives
        async with Gateway(config(server)) as gateway, gateway.lease(trajectory="t", task=None, seed=1) as session:
            issued, server.lifetime_s = server.issued, 3600
            server.revoked = True
            outcomes: list[ToolResult] = []
            await put_at_once(session, outcomes)
        assert set(server.ran.values()) == {1} and len(server.ran) == AT_ONCE
        assert (server.rejected, server.issued) == (0, issued + 1)


@pytest.mark.parametrize("tool", ["put", "look", "assign"])
@pytest.mark.parametrize("kind", REJECTIONS)
async def test_what_becomes_of_a_call_whose_valid_token_is_rejected(kind: str, tool: str) -> None:
    """A server that runs what it says not to have applied runs it twice, and never a third time."""
    status, when, _, how = kind.replace(",", "").split()
    believed = how == "challenge"
    async with (
        breaking(Rejecting, kind, unread=0.0) as server,
        Gateway(config(server)) as gateway,
        gateway.lease(trajectory="t", task=None, seed=1) as session,
    ):
        server.plan["once"], server.plan["always"] = [kind], [kind] * 10
        if believed or tool != "put":
            assert (await session.call(tool, {"id": "once"})).text == "once"
        else:
            with pytest.raises(DeliveryUnknown, match=f"HTTP {status}"):
                await session.call(tool, {"id": "once"})
        assert server.ran["once"] == (when == "after") + (believed or tool != "put")
        with pytest.raises(ServerUnavailable if believed else DeliveryUnknown):
            await session.call(tool, {"id": "always"})
        assert 10 - len(server.plan["always"]) == (2 if believed or tool != "put" else 1)


async def test_a_call_whose_lease_ends_while_its_token_is_rejected_is_not_sent_again() -> None:
    outcomes: list[GatewayError] = []
    async with breaking(Rejecting, "late", unread=0.0) as server, Gateway(config(server)) as gateway:

        async def call(session: Any) -> None:
            with pytest.raises(ServerUnavailable) as caught:
                await session.call("put", {"id": "x"})
            outcomes.append(caught.value)

        async with anyio.create_task_group() as tasks:
            async with gateway.lease(trajectory="t", task=None, seed=1) as session:
                server.revoked = True
                tasks.start_soon(call, session)
                while not server.rejected:
                    await anyio.lowlevel.checkpoint()
    assert not server.ran and "the lease has ended" in str(outcomes[0])
